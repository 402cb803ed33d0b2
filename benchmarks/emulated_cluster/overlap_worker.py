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
from emulated_cluster.layer_worker import Whole
from emulated_cluster.overlap_model import CHOSEN, EXCHANGES, EXPERTS, LEVELLED, Model
from emulated_cluster.timelines import Span, nearest, recorded
from emulated_cluster.worker import Barrier, mesh_of_all, timed
from fastjax.chunking.times import BACKWARD
from fastjax.traced.after import after


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

    def forth_and_back(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """The rows, once experts have worked on them; and backward too."""

        @jax.custom_vjp
        def work(rows: jax.Array, count: jax.Array) -> jax.Array:
            return self.wait(rows, count, 1)

        def forward(rows: jax.Array, count: jax.Array) -> Any:
            return work(rows, count), count

        def backward(count: jax.Array, ct: jax.Array) -> Any:
            return self.wait(ct, count, BACKWARD), None

        work.defvjp(forward, backward)
        return work


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
      topology: keyword arguments of fastjax.Topology.
      timelines: whether to record those of the fewest and of the most chunks, levelled with
        `balance`.
    """
    network = Fabric(**fabric)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    what = layer_work.Layer(**layer)
    shape = fastjax.Topology(**topology)
    processor = Processor()
    whole = Whole(what, mesh, shape, backward, processor.forth_and_back())
    program = functools.partial(whole.program, deduplicate=deduplicate)

    def median(run: Callable[[], Any]) -> float:
        """Seconds of a program, as the slowest process sees it."""
        runs = [timed(network, barrier, run) for _ in range(3)]
        seconds = [each["end"] - each["start"] for each in runs]
        return float(multihost_utils.process_allgather(np.float64(np.median(seconds))).max())

    compiled = {str(n): program(n) for n in chunks}
    if balance:
        compiled |= {f"{n}{LEVELLED}": program(n, balance=True) for n in chunks}
    alone = compiled["1"] if 1 in chunks else program(1)
    small = dataclasses.replace(whole, layer=dataclasses.replace(what, tokens=1))
    one = small.program(1, deduplicate=deduplicate)
    jax.block_until_ready((alone(), one()))  # not for the first time below
    one_token_s = median(one)
    busiest = layer_work.arriving(what, what.choices())
    times = 1 + BACKWARD if backward else 1
    found: dict[str, Any] = {}
    for ratio in ratios:
        processor.seconds = 0.0
        rows = what.tokens * what.top_k if balance else busiest
        seconds = ratio * median(alone) / rows / times
        programs = {**compiled, CHOSEN: program(None, seconds_per_row=seconds)}
        experts = functools.partial(processor.work, busiest, times)
        everything = {EXCHANGES: alone, EXPERTS: experts, **programs}
        cells: dict[str, Any] = {name: {"wrong": 0, "runs": []} for name in everything}
        for name, run in programs.items():
            cells[name]["wrong"] = whole.wrong(run())
        rng = np.random.default_rng(what.seed)
        for _ in range(rounds):
            for name in rng.permutation(list(everything)).tolist():
                processor.seconds = 0.0 if name == EXCHANGES else seconds
                cells[name]["runs"].append(timed(network, barrier, everything[name]))
        model = Model(what, shape, deduplicate, seconds, backward, one_token_s)
        for name, measured in cells.items():
            measured["model_s"] = model.seconds_of(name)
            measured["one_token_s"] = one_token_s
        if timelines and ratio == nearest(ratios):
            processor.seconds = seconds
            most = f"{max(chunks)}{LEVELLED if balance else ''}"
            for name in dict.fromkeys((str(min(chunks)), most)):
                cells[name]["timeline"] = recorded(
                    network, barrier, processor.spans, programs[name]
                )
        found[str(ratio)] = cells
    return found
