"""Lanes for what may happen at the same time."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike

_LATEST = 2.0**62  # 146 years: what comes later is drawn there


def in_ns(seconds: ArrayLike) -> np.ndarray:
    """Whole nanoseconds: what ends when the next begins does so exactly."""
    return np.rint(np.minimum(np.asarray(seconds) * 1e9, _LATEST)).astype(np.int64)


def side_by_side(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The narrow lane in which each of these is drawn, and how many there are beside each other.

    What overlaps is in different lanes, as in a calendar: each takes the first lane that is free.
    All that overlap, directly or through others, have as many lanes as any moment of theirs needs.

    Args:
      start: integers, shape (things,).
      end: integers, none before its start, shape (things,).

    Returns:
      Lanes, from 0, and numbers of lanes; both of shape (things,).
    """
    lane, lanes = np.zeros((2, len(start)), np.int64)
    running: list[tuple[int, int]] = []
    free: list[int] = []
    together: list[int] = []
    used = 0
    for i in np.lexsort((end, start)).tolist():
        while running and running[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not running:
            lanes[together] = used
            free, together, used = [], [], 0
        if free:
            lane[i] = heapq.heappop(free)
        else:
            lane[i], used = used, used + 1
        together.append(i)
        heapq.heappush(running, (int(end[i]), int(lane[i])))
    lanes[together] = used
    return lane, lanes


__all__ = ["in_ns", "side_by_side"]
