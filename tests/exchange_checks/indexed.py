"""Rows that indices name: sent without being copied first, and summed by index on the way back."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import reference

import fastjax
from exchange_checks.backends import Backend, same
from exchange_checks.listed import check
from fastjax.traced.contract import Metadata
from fastjax.traced.indexed_exchange import indexed_exchange

ROWS = 7


@check(sanitized=True)
def rows_that_indices_name(backend: Backend, rng: np.random.Generator) -> None:
    """There, and back again with factors. All are whole numbers, so that sums are exact."""
    size = backend.size
    for scheduler in ("direct", "fast"):
        meta = reference.packed(reference.random_sizes(rng, size, 2 * size), gap=1)
        entries, room = (a.shape[1] for a in reference.data(rng, meta))
        indices = rng.integers(0, ROWS, (size, entries)).astype(np.int32)
        source = rng.integers(-9, 10, (size, ROWS, 5)).astype(np.float32)
        base = rng.integers(-9, 10, (size, room, 5)).astype(np.float32)
        factors = rng.integers(-3, 4, (size, room)).astype(np.float32)

        def program(_: Any, data: Any, meta: Any, at: str = scheduler) -> Any:
            way = Metadata(*meta)
            plan = fastjax.plan_ragged_all_to_all(
                way.send_sizes, axis_name="x", topology=backend.topology, scheduler=at
            )
            source, base, indices, factors = data
            there = indexed_exchange(source, base, way, indices, plan)
            back = indexed_exchange(
                there, source, way, indices, plan, reverse=True, factors=factors
            )
            return there, back

        data = (source, base, indices, factors)
        there, back = backend.compiled(program)(data, meta.arrays())
        copies = np.take_along_axis(source, indices[..., None], 1)
        arrived = reference.exchange(copies, base, meta)
        same(there, arrived)
        same(back, reference.returned(arrived, source, meta, indices, factors))


@check(sanitized=True)
def sums_in_the_order_of_entries(backend: Backend, rng: np.random.Generator) -> None:
    """To the bit, whichever device has which slice of them: another order loses other ones."""
    size = backend.size
    meta = reference.packed(reference.random_sizes(rng, size, 2 * size, zeros=0.1))
    for offsets, sizes in zip(meta.input_offsets, meta.send_sizes, strict=True):
        order = rng.permutation(len(sizes))
        offsets[order] = np.cumsum(sizes[order]) - sizes[order]
    entries, room = (a.shape[1] for a in reference.data(rng, meta))
    indices = rng.integers(0, ROWS, (size, entries)).astype(np.int32)
    there = rng.choice([1e8, -1e8, 1, 3], (size, room, 40)).astype(np.float32)
    factors = rng.choice([0.3, 1, 7], (size, room)).astype(np.float32)
    base = np.zeros((size, ROWS, 40), np.float32)

    def program(_: Any, data: Any, meta: Any) -> Any:
        way = Metadata(*meta)
        plan = fastjax.plan_ragged_all_to_all(
            way.send_sizes, axis_name="x", topology=backend.topology
        )
        there, base, indices, factors = data
        back = functools.partial(indexed_exchange, there, base, way, indices, plan, reverse=True)
        return back(), back(factors=factors)

    results = backend.compiled(program)((there, base, indices, factors), meta.arrays())
    for result, scale in zip(results, (None, factors), strict=True):
        same(result, reference.returned(there, base, meta, indices, scale))
