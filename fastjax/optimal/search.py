"""The search for the cheapest cover: simple ones first, then parts again, then all at once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from fastjax.optimal.checks import Clock
from fastjax.optimal.cover import (
    Cover,
    Found,
    busiest_line,
    degree,
    fewest_stages,
    join,
    least_length,
    no_stages,
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


def cost_of(cover: Cover, startup: Fraction) -> Fraction:
    """What a cover costs, in rows, exactly."""
    return startup * len(cover.lengths) + cover.length


def cheapest_cover(
    rows: np.ndarray, startup: Fraction, clock: Clock
) -> tuple[Cover, Fraction | int]:
    """The cheapest cover found until time is up, and what none costs less than.

    Args:
      rows: rows between servers.
      startup: rows that starting a stage costs.
      clock: when to stop.
    """
    # The two ends: fewest stages, least length.
    best, shortest = fewest_stages(rows), least_length(rows, clock)
    if shortest is not None:
        best = min(best, shortest, key=lambda cover: cost_of(cover, startup))
    lower = startup * degree(rows) + busiest_line(rows)
    places = degree(rows) * np.count_nonzero(rows)
    quarter = clock.seconds / 4
    if places > _EASY and cost_of(best, startup) > lower:
        best = _improve(rows, best, 3, startup, clock.at_most(quarter))
    if places > _EASY and cost_of(best, startup) > lower:
        rest = quarter if places <= _HARD else math.inf
        best = _improve(rows, best, 4, startup, clock.at_most(rest))
    if cost_of(best, startup) > lower:
        found = _by_count(rows, startup, cost_of(best, startup), clock)
        best = found.cover or best
        lower = max(lower, found.lower)
    return trimmed(rows, best), min(lower, cost_of(best, startup))


def _by_count(rows: np.ndarray, startup: Fraction, below: Fraction, clock: Clock) -> Found:
    """Solves for one number of stages after the other, the least promising bound first.

    Args:
      rows: rows between servers.
      startup: rows that starting a stage costs.
      below: covers that cost as much or more are of no interest.
      clock: when to stop.

    Returns:
      The cheapest cover below `below`; None where none was found. A lower bound of at most `below`.
    """
    least, count = busiest_line(rows), degree(rows)
    if not rows.any():
        return Found(no_stages(len(rows)) if below > 0 else None, Fraction(0))
    best, lower = None, below
    while startup * count + least < below:
        if not clock.left():
            # Without start-ups, more stages would never become too dear.
            lower = min(lower, startup * count + least)
            break
        room = math.ceil(below - startup * count) - 1
        answer = shortest_cover(rows, count, room, clock)
        if answer.cover is not None and cost_of(answer.cover, startup) < below:
            best, below = answer.cover, cost_of(answer.cover, startup)
        lower = min(lower, startup * count + answer.lower)
        count += 1
    return Found(best, min(lower, below))


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
        spent = cost_of(cover, startup) - cost_of(rest, startup)
        found = _by_count(left, startup, spent, clock.at_most(_PART_SECONDS))
        if found.cover is None:
            failures += 1
        else:
            cover = join(rest, found.cover)
            failures, tried = 0, set()
    return cover
