"""The process of one server: a layer in chunks, with experts that take a time that is set.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

import fastjax
from emulated_cluster import layer_work
from emulated_cluster.fabric import Fabric
from emulated_cluster.layer_worker import operands_of
from emulated_cluster.overlap_model import CHOSEN, EXCHANGES, EXPERTS, LEVELLED, Model
from emulated_cluster.timelines import Span, nearest, recorded
from emulated_cluster.worker import AXIS, Barrier, mesh_of_all, timed
from fastjax import moe
from fastjax.chunking import BACKWARD
from fastjax.traced.after import after

FACTORED = 8
"""Columns that experts multiply by their factors."""


@dataclasses.dataclass
class Processor:
    """What experts run on: it takes `seconds` for each row, and no processor of this machine.

    Attributes:
      seconds: for each row.
      spans: when experts have worked, by the machine's clock.
    """

    seconds: float = 0.0
    spans: list[Span] = dataclasses.field(default_factory=list)

    def work(self, rows: SupportsFloat, times: SupportsFloat) -> np.ndarray:
        """Takes as long as experts take for so many rows, `times` over."""
        begin = time.monotonic()
        time.sleep(float(rows) * float(times) * self.seconds)
        self.spans.append((begin, time.monotonic()))
        return np.zeros((), np.float32)

    def wait(self, rows: jax.Array, count: jax.Array, times: float) -> jax.Array:
        """The rows, once they are there and experts have worked on `count` of them."""
        done = jax.pure_callback(
            self.work,
            jax.ShapeDtypeStruct((), jnp.float32),
            after(count, rows),
            jnp.float32(times),
        )
        return after(rows, done)


def experts_of(processor: Processor) -> Callable[..., jax.Array]:
    """Experts that multiply the first columns of rows by their factors, and backward too.

    That shows a row at a wrong expert, and takes little of this machine's processors.
    """

    @jax.custom_vjp
    def work(rows: jax.Array, count: jax.Array) -> jax.Array:
        return processor.wait(rows, count, 1)

    def forward(rows: jax.Array, count: jax.Array) -> Any:
        return work(rows, count), count

    def backward(count: jax.Array, ct: jax.Array) -> Any:
        return processor.wait(ct, count, BACKWARD), None

    work.defvjp(forward, backward)

    def experts(rows: jax.Array, group_sizes: jax.Array, factors: jax.Array) -> jax.Array:
        each = jnp.repeat(factors, group_sizes, total_repeat_length=len(rows))
        return work(rows, group_sizes.sum()).at[:, :FACTORED].multiply(each[:, None])

    return experts


@dataclasses.dataclass(frozen=True)
class Runs:
    """What runs a program and takes its time, and how often."""

    network: Fabric
    barrier: Barrier
    rounds: int

    def median(self, program: Callable[[], Any]) -> float:
        """Seconds of a program, as the slowest process sees it."""
        runs = [timed(self.network, self.barrier, program) for _ in range(3)]
        seconds = [run["end"] - run["start"] for run in runs]
        return float(multihost_utils.process_allgather(np.float64(np.median(seconds))).max())


def serve(
    fabric: dict[str, Any],
    layer: dict[str, Any],
    chunks: Sequence[int],
    ratios: Sequence[float],
    rounds: int,
    backward: bool,
    deduplicate: bool,
    balance: bool,
    topology: dict[str, Any],
    timelines: bool,
) -> dict[str, Any]:
    """What this process saw: runs by experts' time and number of chunks, and what was wrong.

    Args:
      fabric: keyword arguments of Fabric.
      layer: keyword arguments of Layer.
      chunks: their numbers; what `moe.layer` chooses is measured besides.
      ratios: what experts take, as a multiple of what exchanges take alone; with `balance`, what
        they take on average.
      rounds: times that each runs, in turn with the others.
      backward: whether the gradients are taken too.
      deduplicate: see `moe.layer`.
      balance: whether to measure all numbers of chunks with levelled experts, too.
      topology: what fastjax.Topology is told.
      timelines: whether to record those of the fewest and of the most chunks, levelled with
        `balance`.
    """
    network = Fabric(**fabric)
    mesh = mesh_of_all()
    what = layer_work.Layer(**layer)
    choices = what.choices()
    operands = (*operands_of(what, choices, mesh), factors_of(what, mesh))
    shape = fastjax.Topology(network.servers, network.rails, **topology)
    options = {
        "topology": shape,
        "deduplicate": deduplicate,
        "buffer_factor": layer_work.room_factor(what, choices),
        "balance": False,
    }
    processor = Processor()
    build = functools.partial(_program, what, mesh, processor, options, backward=backward)
    runs = Runs(network, Barrier(mesh), rounds)
    busiest = layer_work.arriving(what, choices)
    compiled = {str(n): build(n, None).lower(*operands).compile() for n in chunks}
    if balance:
        levelled = functools.partial(
            _program, what, mesh, processor, options | {"balance": True}, backward=backward
        )
        for n in chunks:
            compiled[f"{n}{LEVELLED}"] = levelled(n, None).lower(*operands).compile()
    run = lambda program: lambda: jax.block_until_ready(program(*operands))  # noqa: E731
    alone = run(compiled["1"] if 1 in chunks else build(1, None))
    alone()
    one_token_s = runs.median(_of_one_token(what, mesh, processor, options, backward=backward))
    found: dict[str, Any] = {}
    for ratio in ratios:
        processor.seconds = 0.0
        exchanges = runs.median(alone)
        rows = what.tokens * what.top_k if balance else busiest
        seconds = ratio * exchanges / rows / (1 + BACKWARD if backward else 1)
        by_rule = build(None, seconds)
        programs = {name: run(program) for name, program in compiled.items()}
        programs[CHOSEN] = run(by_rule)
        found[str(ratio)] = _measure(
            programs, alone, processor, seconds, busiest, backward, runs, operands, what
        )
        model = Model(what, shape, deduplicate, seconds, backward, one_token_s)
        for name, measured in found[str(ratio)].items():
            measured["model_s"] = model.seconds_of(name)
            measured["one_token_s"] = one_token_s
        if timelines and ratio == nearest(ratios):
            processor.seconds = seconds
            most = f"{max(chunks)}{LEVELLED if balance else ''}"
            for name in dict.fromkeys((str(min(chunks)), most)):
                found[str(ratio)][name]["timeline"] = recorded(
                    network, runs.barrier, processor.spans, programs[name]
                )
    return found


def _measure(
    programs: dict[str, Callable[[], Any]],
    alone: Callable[[], Any],
    processor: Processor,
    seconds: float,
    busiest: int,
    backward: bool,
    runs: Runs,
    operands: tuple[jax.Array, ...],
    layer: layer_work.Layer,
) -> dict[str, Any]:
    times = 1 + BACKWARD if backward else 1
    experts = lambda: processor.work(busiest, times)  # noqa: E731
    everything = {EXCHANGES: alone, EXPERTS: experts, **programs}
    found: dict[str, Any] = {name: {"wrong": 0, "runs": []} for name in everything}
    for name, program in programs.items():
        found[name]["wrong"] = wrong(program(), operands, layer)
    rng = np.random.default_rng(layer.seed)
    for _ in range(runs.rounds):
        for name in rng.permutation(list(everything)).tolist():
            processor.seconds = 0.0 if name == EXCHANGES else seconds
            found[name]["runs"].append(timed(runs.network, runs.barrier, everything[name]))
    return found


def factors_of(layer: layer_work.Layer, mesh: jax.sharding.Mesh) -> jax.Array:
    """A factor for each expert, so that a row at a wrong one shows."""
    factors = np.linspace(0.5, 1.5, layer.experts, dtype=np.float32)
    sharding = jax.NamedSharding(mesh, jax.P(AXIS))
    return jax.make_array_from_callback(factors.shape, sharding, lambda index: factors[index])


def _program(
    layer: layer_work.Layer,
    mesh: jax.sharding.Mesh,
    processor: Processor,
    options: dict[str, Any],
    chunks: int | None,
    seconds: float | None,
    *,
    backward: bool,
) -> Any:
    experts = experts_of(processor)

    def whole(x: jax.Array, ids: jax.Array, weights: jax.Array, factors: jax.Array) -> jax.Array:
        return moe.layer(
            x,
            ids,
            weights,
            factors,
            grouped_fn=experts,
            num_experts=layer.experts,
            axis_name=AXIS,
            chunks=chunks,
            seconds_per_row=seconds,
            **options,
        )

    def with_gradients(x: jax.Array, ids: jax.Array, weights: jax.Array, factors: jax.Array) -> Any:
        result, back = jax.vjp(lambda x, w, f: whole(x, ids, w, f), x, weights, factors)
        # There is no cotangent before there is a result, as with a loss.
        return result, *back(after(jnp.ones_like(result), result))

    spec = jax.P(AXIS)
    function = with_gradients if backward else whole
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


def _of_one_token(
    layer: layer_work.Layer,
    mesh: jax.sharding.Mesh,
    processor: Processor,
    options: dict[str, Any],
    *,
    backward: bool,
) -> Callable[[], Any]:
    """What runs such a layer of one token on each device, in one chunk; it has run once already."""
    one = dataclasses.replace(layer, tokens=1)
    choices = one.choices()
    operands = (*operands_of(one, choices, mesh), factors_of(one, mesh))
    options = options | {"buffer_factor": layer_work.room_factor(one, choices)}
    program = _program(one, mesh, processor, options, 1, None, backward=backward)
    run = lambda: jax.block_until_ready(program(*operands))  # noqa: E731
    run()
    return run


def wrong(results: Any, operands: tuple[jax.Array, ...], layer: layer_work.Layer) -> int:
    """Tokens of this process whose value, or gradient, is not that of the factors chosen."""
    x, ids, weights, _ = operands
    factors = np.linspace(0.5, 1.5, layer.experts, dtype=np.float32)
    values = results if isinstance(results, tuple) else (results,)
    count = 0
    for place, shard in enumerate(x.addressable_shards):
        at = lambda array, place=place: np.asarray(array.addressable_shards[place].data)  # noqa: E731
        share = np.repeat(at(weights).sum(1, keepdims=True), shard.data.shape[1], 1)
        share[:, :FACTORED] = (factors[at(ids)] * at(weights)).sum(1, keepdims=True)
        wanted = [np.asarray(shard.data) * share, share]
        for value, want in zip(values[:2], wanted, strict=False):
            count += int((np.abs(at(value) - want) > 1e-3).any(axis=1).sum())
    return count
