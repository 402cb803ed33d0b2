"""Workloads: synthetic traffic by name, the offsets and sizes of an exchange, the right result.

numpy only, so that tests and notebooks can use it too.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from fastjax.traced.contract import Metadata
from fastjax.traffic import expert_popularity, pair_zipf, uniform

Skew = Literal["expert-popularity", "pair-zipf", "uniform"]
SKEWS: tuple[str, ...] = get_args(Skew)


def make_traffic(
    skew: Skew, devices: int, rows: int, alpha: float = 0.8, seed: int = 0
) -> np.ndarray:
    """Draws a traffic matrix: rows that device i sends to device j.

    Args:
      skew: "expert-popularity" is `fastjax.traffic.expert_popularity` with one expert a device,
        "pair-zipf" `fastjax.traffic.pair_zipf` and "uniform" `fastjax.traffic.uniform`.
      devices: number of devices.
      rows: rows a device sends; on average, for "pair-zipf".
      alpha: exponent of Zipf's law.
      seed: of the random numbers.

    Returns:
      int64, shape (devices, devices).
    """
    if skew == "uniform":
        return uniform(devices, rows)
    draw = expert_popularity if skew == "expert-popularity" else pair_zipf
    return draw(devices, rows, exponent=alpha, seed=seed)


def metadata(traffic: np.ndarray) -> Metadata[np.ndarray]:
    """Offsets and sizes of rows packed without gaps, at both ends, in order of the peer.

    Returns:
      int32, row i of each for device i.
    """
    before, above = (np.cumsum(traffic, axis=axis) - traffic for axis in (1, 0))
    fields = (before, traffic, above, traffic.T)
    return Metadata(*(np.ascontiguousarray(field, np.int32) for field in fields))


def reference(operand: np.ndarray, output: np.ndarray, meta: Metadata[np.ndarray]) -> np.ndarray:
    """What the exchange must return, row by row.

    Args:
      operand: all devices' rows, shape (devices, rows, ...).
      output: what rows that nobody sends to hold, shape (devices, output rows, ...).
      meta: one offset and size for each pair of devices.

    Returns:
      A new array of output's shape.
    """
    result = output.copy()
    for src, dst in np.argwhere(meta.send_sizes > 0):
        first, size = meta.input_offsets[src, dst], meta.send_sizes[src, dst]
        at = meta.output_offsets[src, dst]
        result[dst, at : at + size] = operand[src, first : first + size]
    return result


def wrong_rows(got: np.ndarray, want: np.ndarray) -> int:
    """How many rows differ, in any bit; arrays of shape (rows, ...) and one type.

    Raises:
      ValueError: shapes or types differ.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ValueError(
            f"got {got.dtype} of shape {got.shape}, want {want.dtype} of shape {want.shape}"
        )
    rows = got.shape[0]
    as_bytes = [np.ascontiguousarray(a).reshape(rows, -1).view(np.uint8) for a in (got, want)]
    return int((as_bytes[0] != as_bytes[1]).any(axis=1).sum())
