"""Tracks for what may happen at the same time."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import ArrayLike

_LATEST = 2.0**62  # 146 years: what comes later is drawn there


def in_ns(seconds: ArrayLike) -> np.ndarray:
    """Whole nanoseconds: what ends when the next begins does so exactly."""
    return np.rint(np.minimum(np.asarray(seconds) * 1e9, _LATEST)).astype(np.int64)


def side_by_side(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The narrow track in which each of these is drawn, and how many there are beside each other.

    What overlaps is in different tracks, as in a calendar: each takes the first track that is free.
    All that overlap, directly or through others, have as many tracks as any moment of theirs needs.

    Args:
      start: integers, shape (things,).
      end: integers, none before its start, shape (things,).

    Returns:
      Tracks, from 0, and numbers of tracks; both of shape (things,).
    """
    track, tracks = np.zeros((2, len(start)), np.int64)
    running: list[tuple[int, int]] = []
    free: list[int] = []
    together: list[int] = []
    used = 0
    for i in np.lexsort((end, start)).tolist():
        while running and running[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(running)[1])
        if not running:
            tracks[together] = used
            free, together, used = [], [], 0
        if free:
            track[i] = heapq.heappop(free)
        else:
            track[i], used = used, used + 1
        together.append(i)
        heapq.heappush(running, (int(end[i]), int(track[i])))
    tracks[together] = used
    return track, tracks


__all__ = ["in_ns", "side_by_side"]
