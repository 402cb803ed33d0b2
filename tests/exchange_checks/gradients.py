"""Gradients: of rows and of outputs, of groups, of slices that were sent to several devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference

import fastjax
from exchange_checks.backends import Backend, close, same
from exchange_checks.cases import Case, drawn, narrowed, of_type
from exchange_checks.listed import check
from exchange_checks.values import left_of, reaching_out


def _options(backend: Backend) -> list[dict[str, Any]]:
    groups = np.arange(backend.size).reshape(backend.servers, -1).T.tolist()
    alone = np.arange(backend.size)[:, None].tolist()
    flat = [backend.topologies()[0]] if backend.processes == 1 else []  # compiled by each process
    return [
        *(
            {"groups": given, "topology": topology}
            for given in (None, groups)
            for topology in (*flat, backend.topology)
        ),
        {"groups": alone, "topology": backend.topology},
    ]


@check
def gradients(backend: Backend, rng: np.random.Generator) -> None:
    """Also with empty slices and with groups."""
    _gradients(backend, rng)


@check(needs=lambda backend: backend.processes == 1)
def gradients_without_check_vma(backend: Backend, rng: np.random.Generator) -> None:
    _gradients(backend, rng, check_vma=False)


def _loss(exchange: Any, operand: Any, output: Any, weights: Any) -> Any:
    return jnp.sum(weights * jnp.sin(exchange(operand, output)))


def _slopes(exchange: Any, cases: Any, data: Any, weights: Any) -> list[Any]:
    """For operand and output of each case, by the exchange."""
    results = []
    for (operand, output, *arrays), weight, case in zip(data, weights, cases, strict=True):
        one = lambda a, b, m=arrays, o=case.options: exchange(a, b, *m, **o)  # noqa: E731
        results.append(jax.grad(_loss, (1, 2))(one, operand, output, weight))
    return results


def _close_to_reference(results: Any, cases: Any, weights: Any) -> None:
    for result, case, weight in zip(results, cases, weights, strict=True):
        one = lambda a, b, c=case: reference.exchange_in_jax(a, b, c.meta, c.members)  # noqa: E731
        wanted = jax.grad(_loss, (1, 2))(
            one, jnp.asarray(case.operand), jnp.asarray(case.output), weight
        )
        for got, expected in zip(result, wanted, strict=True):
            close(got, expected)


def _gradients(backend: Backend, rng: np.random.Generator, check_vma: bool = True) -> None:
    rows = 10 * backend.size  # of all, so that what is expected is compiled once
    cases = [drawn(rng, backend.size, rows=rows, **options) for options in _options(backend)]
    for case in cases:
        case.operand, case.output = case.operand / 8, case.output / 8
    weights = [rng.normal(size=case.output.shape).astype(np.float32) for case in cases]

    def program(exchange: Any, data: Any, weights: Any) -> Any:
        return _slopes(exchange, cases, data, weights)

    run = backend.compiled(program, check_vma=check_vma)
    results = run([case.arguments() for case in cases], weights)
    _close_to_reference(results, cases, weights)


@check(needs=lambda backend: backend.size > 1)
def gradients_of_rows_that_are_left(backend: Backend, rng: np.random.Generator) -> None:
    """Where rows out of range are dropped, they have none; also of a batch, and with a plan."""
    cases = reaching_out(rng, backend)
    weights = [rng.normal(size=case.output.shape).astype(np.float32) for case in cases]

    def program(exchange: Any, data: Any, weights: Any) -> Any:
        results = _slopes(exchange, cases, data, weights)
        first, *_ = data
        operand, output, *arrays = first
        plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
        planned = lambda a, b: exchange(a, b, *arrays, plan=plan)  # noqa: E731
        one = lambda a, b: (planned(a, b), jax.grad(_loss, (1, 2))(planned, a, b, weights[0]))  # noqa: E731
        stacked = jax.tree.map(lambda *rows: jnp.stack(rows), first, first)
        batch = jax.vmap(one)(*stacked[:2]), jax.vmap(exchange)(*stacked)
        return results, one(operand, output), *batch

    with fastjax.options(overflow="drop"):
        run = backend.compiled(program)
        results, planned, batch, unplanned = run([case.arguments() for case in cases], weights)
    lefts = [*map(left_of, cases)]
    _close_to_reference(results, lefts, weights)
    expected = lefts[0].expected()
    for values, slopes in (planned, *(jax.tree.map(lambda a, i=i: a[:, i], batch) for i in (0, 1))):
        same(values, expected)
        _close_to_reference([slopes], lefts[:1], weights[:1])
    same(unplanned, np.stack([expected, expected], 1))


@check(sanitized=True)
def gradients_of_a_slice_sent_to_everyone(backend: Backend, rng: np.random.Generator) -> None:
    """They add up. Small integers: sums are exact in every type, in any order."""
    size = backend.size
    meta = reference.packed(np.full((size, 2 * size), 3))
    meta.input_offsets[:] = np.arange(size)[:, None] % 2
    cases, cotangents = [], []
    for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn", "complex64"):
        for topology in (backend.topologies()[0], backend.topology):
            data = (of_type(np.round(rows), dtype) for rows in reference.data(rng, meta, (5,)))
            cases.append(Case(meta, *data, options={"topology": topology}))
            whole = rng.integers(-1, 2, (2, *cases[-1].output.shape))
            of_both = whole[0] + 1j * whole[1] if dtype == "complex64" else whole[0]
            cotangents.append(of_type(of_both, dtype))

    def program(exchange: Any, data: Any, cotangents: Any) -> Any:
        results = []
        for (operand, output, *arrays), ct, case in zip(data, cotangents, cases, strict=True):
            one = lambda a, b=output, m=arrays, o=case.options: exchange(a, b, *m, **o)  # noqa: E731
            results.append(jax.vjp(one, operand)[1](ct)[0])
        return results

    results = backend.compiled(program)([case.arguments() for case in cases], cotangents)
    for result, case, ct in zip(results, cases, cotangents, strict=True):
        expected = np.zeros(case.operand.shape, "c16")
        for i, start, j, landing, rows in reference.moves(meta):
            expected[i, start : start + rows] += ct[j, landing : landing + rows].astype("c16")
        same(result, narrowed(expected, case.operand.dtype))
