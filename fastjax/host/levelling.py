"""Devices for rows of popular experts, as programs choose them: for simulations."""

from __future__ import annotations

import numpy as np

from fastjax import _core
from fastjax.checks import check_levelling
from fastjax.errors import ArgumentError


def level(
    rows: np.ndarray, *, servers: int, devices: int, copies: int, cost_rows: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The slots and rows of `fastjax.traced.levelling.Levelled`, as numpy arrays.

    Args:
      rows: integers, shape (experts,): rows of each expert, less than 2**31 together.
      servers: as `fastjax.traced.levelling.level` takes it, as all others.
      devices: of each server.
      copies: slots of each device.
      cost_rows: the rows that a copy takes as long as.

    Raises:
      ArgumentError: an argument is impossible.
    """
    if not np.issubdtype(rows.dtype, np.integer):
        raise ArgumentError(f"rows must be integers, got {rows.dtype}.")
    check_levelling(
        rows.shape, servers=servers, devices=devices, copies=copies, cost_rows=cost_rows
    )
    if int(rows.min()) < 0:
        expert = int(rows.argmin())
        raise ArgumentError(f"rows must be 0 or more, got rows[{expert}] = {rows[expert]}.")
    if sum(rows.tolist()) >= 2**31:
        raise ArgumentError(f"rows must be less than 2**31 together, got {sum(rows.tolist())}.")
    narrow = np.ascontiguousarray(rows, np.int32)
    slots, levelled = _core.level_experts(narrow, servers, devices, copies, cost_rows)
    ranks = servers * devices
    return slots.reshape(ranks, copies), levelled.reshape(ranks, -1)
