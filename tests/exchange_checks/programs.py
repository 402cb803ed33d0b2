"""Programs around exchanges: loops, plans that are used again, several in flight at once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import moe_layers
import numpy as np
import reference

import fastjax
import fastjax.moe
from exchange_checks.backends import SCHEDULERS, Backend, close, same
from exchange_checks.cases import drawn
from exchange_checks.listed import check


@check(sanitized=True)
def scan(backend: Backend, rng: np.random.Generator) -> None:
    size, steps = backend.size, 5
    metas = [reference.packed(reference.random_sizes(rng, size, size)) for _ in range(steps)]
    rows = max(max(reference.rows_needed(meta)) for meta in metas)
    operand, output = rng.integers(-9, 10, (2, size, rows, 2)).astype(np.float32)
    by_step = [np.stack(arrays) for arrays in zip(*(meta.arrays() for meta in metas), strict=True)]

    def program(exchange: Any, operand: Any, output: Any, arrays: Any) -> Any:
        def step(carried: Any, now: Any) -> Any:
            return exchange(operand + carried, carried, *now, scheduler="fast"), None

        # Steps come first, also where devices did.
        arrays = [jnp.moveaxis(a, -2, 0) for a in arrays]
        return jax.lax.scan(step, output, arrays)[0]

    by_device = [np.moveaxis(array, 0, 1) for array in by_step]
    result = backend.compiled(program)(operand, output, by_device)
    expected = output
    for meta in metas:
        expected = reference.exchange(operand + expected, expected, meta)
    same(result, expected)


@check(sanitized=True)
def several_in_one_program(backend: Backend, rng: np.random.Generator) -> None:
    """In a loop, with collectives of XLA among them, whose order is not ours; launches queue."""
    options = [{"scheduler": name} for name in ("fast", "direct", "balanced", "spreadout")]
    # From such that one thread moves to such that take long beside the others.
    cases = [
        drawn(rng, backend.size, updates=1, most=3 * 10**size, trailing=(32,), **given)
        for size, given in enumerate(options)
    ]

    def program(exchange: Any, count: Any, data: Any) -> Any:
        def step(count: Any, _: Any) -> Any:
            results = [
                exchange(args[0] + 0 * count, *args[1:], **given)
                for args, given in zip(data, options, strict=True)
            ]
            gathered = [jax.lax.all_gather(args[0] + count, "x").sum() for args in data]
            return count + 1 + 0 * sum(gathered), (results, gathered)

        count, (results, gathered) = jax.lax.scan(step, count, None, length=3)
        return count, [rows[-1] for rows in results], [sums[-1] for sums in gathered]

    run = backend.compiled(program)
    count, arguments = np.zeros(backend.size, np.float32), [case.arguments() for case in cases]
    queued = [run(count, arguments) for _ in range(5)]
    for count, results, gathered in queued:
        same(count, np.full(backend.size, 3, np.float32))
        for result, sums, case in zip(results, gathered, cases, strict=True):
            same(result, case.expected())
            whole = np.full(backend.size, (case.operand + 2).sum(dtype=float), np.float32)
            close(sums, whole, 1e-3)


@check(sanitized=True)
def programs_in_flight(backend: Backend, rng: np.random.Generator) -> None:
    """Two programs, launched by turns without waiting; one process has other things to do too."""
    launched = []
    for scheduler in ("fast", "direct"):
        case = drawn(rng, backend.size, most=40, trailing=(16,), scheduler=scheduler)
        run = backend.compiled(lambda exchange, *args, o=case.options: exchange(*args, **o))
        launched.append((run, case))
    results = []
    for turn in range(6):
        if jax.process_index() == turn % backend.processes:
            jax.jit(lambda x, t=turn: x * t)(np.ones(3))
        results += [(run(*case.arguments()), case) for run, case in launched]
    for result, case in results:
        same(result, case.expected())


def way_back(meta: reference.Metadata) -> reference.Metadata:
    """The exchange that returns every row to where it came from; one update for each peer."""
    offsets = (np.ascontiguousarray(a.T) for a in (meta.output_offsets, meta.input_offsets))
    there, back = offsets
    return reference.Metadata(there, meta.recv_sizes, back, meta.send_sizes)


@check
def planned_reused_and_transposed(backend: Backend, rng: np.random.Generator) -> None:
    """Out and back: what comes back is what was sent."""
    for topology in backend.topologies():
        case = drawn(rng, backend.size, updates=1)
        base, back = np.zeros_like(case.operand), way_back(case.meta)

        def program(exchange: Any, args: Any, base: Any, back: Any, at: Any = topology) -> Any:
            operand, output, *out = args
            plan = fastjax.plan_ragged_all_to_all(
                out[1], axis_name="x", scheduler="fast", topology=at
            )
            first = exchange(operand, output, *out, plan=plan)
            again = exchange(2 * operand, first, *out, plan=plan)
            return first, again, exchange(again, base, *back, plan=plan.transpose())

        first, again, returned = backend.compiled(program)(case.arguments(), base, back.arrays())
        expected = case.expected()
        same(first, expected)
        expected = reference.exchange(2 * case.operand, expected, case.meta)
        same(again, expected)
        same(returned, reference.returned(expected, base, case.meta))


@check(needs=lambda backend: backend.size > 1)
def one_planning_serves_a_layer_and_its_gradients(
    backend: Backend, rng: np.random.Generator
) -> list[int]:
    """Dispatch, an expert, combine: as a Mixture-of-Experts layer does it."""
    return [_planned_layer(backend, rng, topology) for topology in backend.some_topologies()]


def _planned_layer(backend: Backend, rng: np.random.Generator, topology: fastjax.Topology) -> int:
    """One for every scheduler, each with traffic of its own; returns how many plans were made."""
    # As many rows each, so that what is expected is compiled once.
    rows = 5 * backend.size
    cases = [drawn(rng, backend.size, updates=1, rows=rows) for _ in SCHEDULERS]
    backs = [way_back(case.meta) for case in cases]
    weights = [rng.normal(size=case.output.shape).astype(np.float32) for case in cases]

    def layer(x: Any, weights: Any, send: Any, send_back: Any) -> Any:
        rows = jnp.sin(send(x, jnp.zeros_like(weights))) * weights
        return jnp.sum(send_back(rows, jnp.zeros_like(x)) ** 2)

    def one(exchange: Any, scheduler: str, x: Any, weights: Any, there: Any, back: Any) -> Any:
        plan = fastjax.plan_ragged_all_to_all(
            there[1], axis_name="x", topology=topology, scheduler=scheduler
        )
        send = lambda x, y: exchange(x, y, *there, plan=plan)  # noqa: E731
        send_back = lambda x, y: exchange(x, y, *back, plan=plan.transpose())  # noqa: E731
        return jax.grad(layer, (0, 1))(x, weights, send, send_back)

    def program(exchange: Any, data: Any) -> Any:
        return [one(exchange, *args) for args in zip(SCHEDULERS, *data, strict=True)]

    run = backend.compiled(program)
    sent = [case.meta.arrays() for case in cases], [back.arrays() for back in backs]
    before = fastjax.planning_count()
    results = jax.block_until_ready(run(([case.operand for case in cases], weights, *sent)))
    planned = fastjax.planning_count() - before
    for result, case, back, weight in zip(results, cases, backs, weights, strict=True):
        expected = jax.grad(layer, (0, 1))(
            jnp.asarray(case.operand),
            jnp.asarray(weight),
            functools.partial(reference.exchange_in_jax, meta=case.meta),
            functools.partial(reference.exchange_in_jax, meta=back),
        )
        for got, wanted in zip(result, expected, strict=True):
            close(got, wanted)
    assert planned == len(SCHEDULERS)
    return planned


@check
def expert_parallel_layer(backend: Backend, rng: np.random.Generator) -> int:
    """A layer and its gradients against one device; how many plans each process made."""
    planned = _layer(backend, rng, deduplicate=False)
    assert planned == 1
    return planned


@check
def deduplicated_layer(backend: Backend, rng: np.random.Generator) -> None:
    """The same of tokens that cross once; also to servers of several processes."""
    for servers in {2, backend.size} if backend.size % 2 == 0 else {backend.size}:
        topology = fastjax.Topology(servers, backend.size // servers)
        assert _layer(backend, rng, deduplicate=True, topology=topology) >= 1


def _layer(backend: Backend, rng: np.random.Generator, **options: Any) -> int:
    size = backend.size
    arrays = moe_layers.problem(rng, 12, devices=size, experts=2 * size, top_k=2)
    options = {"topology": None} | options

    def spread_out(arrays: Any) -> Any:
        return jax.tree.map(lambda a: a.reshape(size, -1, *a.shape[1:]), arrays)

    def program(_: Any, *arrays: Any) -> Any:
        (result, *_), slopes = moe_layers.with_gradients(
            functools.partial(moe_layers.steps, **options)
        )(*arrays)
        return result, slopes

    before = fastjax.planning_count()
    got = jax.block_until_ready(backend.compiled(program)(*spread_out(arrays)))
    planned = fastjax.planning_count() - before
    wanted = spread_out(moe_layers.dense_with_gradients(arrays))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        close(one, other, 1e-5)
    return planned
