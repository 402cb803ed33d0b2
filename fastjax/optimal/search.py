"""The search for the cheapest cover: simple ones first, then parts again, then all at once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.optimal.cover import (
    Clock,
    Cover,
    busiest_line,
    degree,
    fewest_stages,
    least_length,
    trimmed,
)
from fastjax.optimal.programs import shortest_cover

# Pairs with rows times the fewest stages: 80 for five servers, 150 for six, 252 for seven, 392 for
# eight. Up to the first number all stages at once are solved in seconds, so that nothing else is
# worth its time; beyond the second hardly ever, so that everything else comes first.
_EASY, _HARD = 100, 300
# How often in a row some stages are solved again in vain.
_PATIENCE = 200
_PART_SECONDS = 2.0


def solve_stages(rows: np.ndarray, *, startup_rows: float, time_limit: float) -> Cover:
    """Cheapest stages: least sum of lengths + startup_rows * number of stages.

    In a stage each server sends to one other at most and receives from one other at most. The rows
    of a pair may be split over stages, and a pair may be done before its stage is. Up to about
    five servers the result is the optimum, found within seconds; beyond, it is the best found in
    time.

    Args:
      rows: rows that each rail must carry from server s to server d, int64, 0 or more, shape
        (servers, servers), zero diagonal.
      startup_rows: the cost of starting a stage: rows that a rail could send in the meantime.
      time_limit: seconds after which the best so far is returned. Programs already running may
        add some to it, and so may the simple covers that there are at least.

    Returns:
      The stages, the longest first.

    Raises:
      ArgumentError: there are too many rows.
      UnsupportedError: scipy is not installed.
    """
    # Sums must be exact both in int64 and in the solver's floats.
    if int(rows.max()) > 2**52 // len(rows):
        raise ArgumentError(
            f"rows between servers must be at most 2**52 // {len(rows)} on a rail, to be solved "
            f"for, got {rows.max()}."
        )
    clock, startup = Clock(time_limit), Fraction(startup_rows)  # of integers exactly
    # The two ends: fewest stages, least length.
    best, shortest = fewest_stages(rows), least_length(rows, clock)
    if shortest is not None:
        best = min(best, shortest, key=lambda cover: cover.cost(startup))
    lower = startup * degree(rows) + busiest_line(rows)
    places = degree(rows) * np.count_nonzero(rows)
    quarter = clock.seconds / 4
    for size, seconds in ((3, quarter), (4, quarter if places <= _HARD else math.inf)):
        if places > _EASY and best.cost(startup) > lower:
            best = _improve(rows, best, size, startup, clock.at_most(seconds))
    if best.cost(startup) > lower:
        best = _by_count(rows, startup, best.cost(startup), clock) or best
    return trimmed(rows, best)


def _by_count(rows: np.ndarray, startup: Fraction, below: Fraction, clock: Clock) -> Cover | None:
    """Solves for one number of stages after the other, the least promising bound first.

    Args:
      rows: rows between servers.
      startup: rows that starting a stage costs.
      below: covers that cost as much or more are of no interest.
      clock: when to stop.

    Returns:
      The cheapest cover below `below`; None where none was found.
    """
    least, count = busiest_line(rows), degree(rows)
    if not rows.any():
        return Cover.of(len(rows), [], []) if below > 0 else None
    best = None
    # Without start-ups, more stages would never become too dear.
    while startup * count + least < below and clock.left():
        room = math.ceil(below - startup * count) - 1
        cover = shortest_cover(rows, count, room, clock)
        if cover is not None and cover.cost(startup) < below:
            best, below = cover, cover.cost(startup)
        count += 1
    return best


def _improve(rows: np.ndarray, cover: Cover, size: int, startup: Fraction, clock: Clock) -> Cover:
    """Solves for `size` stages at a time again, until that no longer helps or time is up."""
    rng = np.random.default_rng(0)
    failures, tried = 0, set()
    while failures < _PATIENCE and clock.left():
        count = len(cover.lengths)
        picked = rng.choice(count, min(size, count), replace=False)
        part = np.isin(np.arange(count), picked)
        if part.tobytes() in tried:
            failures += 1
            continue
        tried.add(part.tobytes())
        rest = Cover(cover.targets[~part], cover.lengths[~part])
        left = np.maximum(rows - rest.carried(), 0)
        spent = cover.cost(startup) - rest.cost(startup)
        found = _by_count(left, startup, spent, clock.at_most(_PART_SECONDS))
        if found is None:
            failures += 1
        else:
            cover = Cover(*map(np.concatenate, zip(rest, found, strict=True)))
            failures, tried = 0, set()
    return cover
