"""Rows that indices name: sent without being copied first, and summed by index on the way back."""

from __future__ import annotations

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
