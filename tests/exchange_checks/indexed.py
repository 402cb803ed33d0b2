"""Rows that indices name: sent without being copied first, and summed by index on the way back."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import reference

import fastjax
from exchange_checks.backends import Backend, same
from exchange_checks.cases import narrowed, of_type
from exchange_checks.listed import check
from fastjax.traced.contract import Metadata
from fastjax.traced.planned_exchange import exchange_planned

ROWS = 7
# Types that rows travel in, and that they are summed in.
TYPES = (
    *(("float32", "float32"), ("complex64", "complex64")),
    *(("bfloat16", "float32"), ("float16", "float32")),
)


@check(sanitized=True)
def rows_that_indices_name(backend: Backend, rng: np.random.Generator) -> None:
    """There, and back again with factors. All are whole numbers, so that sums are exact."""
    size = backend.size
    for scheduler, (dtype, wide) in zip(itertools.cycle(("direct", "fast")), TYPES, strict=False):
        meta = reference.packed(reference.random_sizes(rng, size, 2 * size), gap=1)
        entries, room = (a.shape[1] for a in reference.data(rng, meta))
        indices = rng.integers(0, ROWS, (size, entries)).astype(np.int32)
        source = of_type(rng.integers(-9, 10, (size, ROWS, 5)), dtype)
        base = of_type(rng.integers(-9, 10, (size, room, 5)), dtype)
        home = of_type(rng.integers(-9, 10, (size, ROWS, 5)), wide)
        factors = rng.integers(-1, 2, (size, room)).astype(home.real.dtype)

        def program(_: Any, data: Any, meta: Any, at: str = scheduler) -> Any:
            way = Metadata(*meta)
            plan = fastjax.plan_ragged_all_to_all(
                way.send_sizes, axis_name="x", topology=backend.topology, scheduler=at
            )
            source, base, home, indices, factors = data
            there = exchange_planned(source, base, way, plan, indices=indices)
            back = functools.partial(exchange_planned, there, home, way, plan, indices=indices)
            return there, back(reverse=True), back(reverse=True, factors=factors)

        data = (source, base, home, indices, factors)
        there, *back = backend.compiled(program)(data, meta.arrays())
        copies = np.take_along_axis(source, indices[..., None], 1)
        arrived = reference.exchange(copies, base, meta)
        same(there, arrived)
        exact = arrived.astype("c16"), home.astype("c16"), meta, indices
        for result, scale in zip(back, (None, factors), strict=True):
            same(result, narrowed(reference.returned(*exact, scale), home.dtype))


@check(sanitized=True)
def sums_in_the_order_of_entries(backend: Backend, rng: np.random.Generator) -> None:
    """To the bit, whichever device has which slice of them: another order loses other ones."""
    for dtype, wide in TYPES:
        _summed_in_order(backend, rng, dtype, wide)


def _summed_in_order(backend: Backend, rng: np.random.Generator, dtype: str, wide: str) -> None:
    size = backend.size
    meta = reference.packed(reference.random_sizes(rng, size, 2 * size, zeros=0.1))
    for offsets, sizes in zip(meta.input_offsets, meta.send_sizes, strict=True):
        order = rng.permutation(len(sizes))
        offsets[order] = np.cumsum(sizes[order]) - sizes[order]
    entries, room = (a.shape[1] for a in reference.data(rng, meta))
    indices = rng.integers(0, ROWS, (size, entries)).astype(np.int32)
    real, imaginary = rng.normal(size=(2, size, room, 40)) * rng.choice([1, 1000], (room, 1))
    there = of_type(real + 1j * imaginary if dtype == "complex64" else real, dtype)
    base = np.zeros((size, ROWS, 40), wide)
    factors = rng.choice([0.3, 1, 7], (size, room)).astype(base.real.dtype)

    def program(_: Any, data: Any, meta: Any) -> Any:
        way = Metadata(*meta)
        plan = fastjax.plan_ragged_all_to_all(
            way.send_sizes, axis_name="x", topology=backend.topology
        )
        there, base, indices, factors = data
        back = functools.partial(exchange_planned, there, base, way, plan, indices=indices)
        return back(reverse=True), back(reverse=True, factors=factors)

    results = backend.compiled(program)((there, base, indices, factors), meta.arrays())
    for result, scale in zip(results, (None, factors), strict=True):
        same(result, reference.returned(there.astype(wide), base, meta, indices, scale))
