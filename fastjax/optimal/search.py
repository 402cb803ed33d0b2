"""The search for the cheapest cover: simple ones first, then parts anew, then all at once."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fastjax.optimal.checks import Clock
from fastjax.optimal.column_bound import column_bound
from fastjax.optimal.cover import (
    Cover,
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
# How often in a row some stages are made anew in vain.
_PATIENCE = 200
_PART_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Goal:
    """What is sought: least startup * stages + length, within limits.

    Attributes:
      startup: rows that starting a stage costs.
      most_stages: stages allowed.
      most_length: rows that all stages together may be long.
    """

    startup: Fraction
    most_stages: float = math.inf
    most_length: float = math.inf

    def cost(self, cover: Cover) -> Fraction:
        """What a cover costs, in rows, exactly."""
        return self.startup * len(cover.lengths) + cover.length

    def allows(self, cover: Cover) -> bool:
        """Whether it keeps within the limits."""
        return len(cover.lengths) <= self.most_stages and cover.length <= self.most_length

    def besides(self, cover: Cover) -> Goal:
        """The goal for the rest of a cover."""
        return Goal(
            self.startup,
            self.most_stages - len(cover.lengths),
            self.most_length - cover.length,
        )


class Found(NamedTuple):
    """The result of a search.

    Attributes:
      cover: the cheapest cover found, or None.
      lower: none costs less.
    """

    cover: Cover | None
    lower: Fraction


def cheapest_cover(rows: np.ndarray, goal: Goal, clock: Clock) -> tuple[Cover, Fraction]:
    """The cheapest cover found until time is up, and what none costs less than."""
    best = _simple_cover(rows, goal, clock)
    lower = goal.startup * degree(rows) + busiest_line(rows)
    places = degree(rows) * np.count_nonzero(rows)
    quarter = clock.seconds / 4
    if places > _EASY and goal.cost(best) > lower:
        best = _improve(rows, best, 3, goal, clock.at_most(quarter))
        lower = max(lower, column_bound(rows, goal.startup, clock.at_most(quarter / 2)))
    if places > _EASY and goal.cost(best) > lower:
        rest = quarter if places <= _HARD else math.inf
        best = _improve(rows, best, 4, goal, clock.at_most(rest))
    if goal.cost(best) > lower:
        found = _by_count(rows, goal, goal.cost(best), clock)
        best = found.cover or best
        lower = max(lower, found.lower)
    return trimmed(rows, best), min(lower, goal.cost(best))


def _simple_cover(rows: np.ndarray, goal: Goal, clock: Clock) -> Cover:
    """The better of the two ends, fewest stages and least length, that the goal allows."""
    covers = [fewest_stages(rows)]
    # Only a limit on length cannot do without the other end.
    shortest = least_length(rows, clock if goal.most_length == math.inf else Clock(math.inf))
    if shortest is not None:
        covers.append(shortest)
    return min((cover for cover in covers if goal.allows(cover)), key=goal.cost)


def _by_count(rows: np.ndarray, goal: Goal, below: Fraction, clock: Clock) -> Found:
    """Solves for one number of stages after the other, the least promising bound first.

    Args:
      rows: rows between servers.
      goal: what is sought.
      below: covers that cost as much or more are of no interest.
      clock: when to stop.

    Returns:
      The cheapest cover below `below`; None where none was found. A lower bound of at most `below`.
    """
    least, count = busiest_line(rows), degree(rows)
    if not rows.any():
        return Found(no_stages(len(rows)) if below > 0 else None, Fraction(0))
    best, lower = None, below
    if not goal.startup and goal.most_stages < math.inf:
        count = int(goal.most_stages)
    while count <= goal.most_stages and goal.startup * count + least < below:
        if not clock.left():
            # Without start-ups, more stages would never become too dear.
            lower = min(lower, goal.startup * count + least)
            break
        room = math.ceil(below - goal.startup * count) - 1
        answer = shortest_cover(rows, count, int(min(room, goal.most_length)), clock)
        if answer.cover is not None and goal.cost(answer.cover) < below:
            best, below = answer.cover, goal.cost(answer.cover)
        lower = min(lower, goal.startup * count + answer.lower)
        count += 1
    return Found(best, min(lower, below))


def _improve(rows: np.ndarray, cover: Cover, size: int, goal: Goal, clock: Clock) -> Cover:
    """Makes `size` stages anew at a time, until that no longer helps or time is up."""
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
        spent = goal.cost(cover) - goal.cost(rest)
        found = _by_count(left, goal.besides(rest), spent, clock.at_most(_PART_SECONDS))
        if found.cover is None:
            failures += 1
        else:
            cover = join(rest, found.cover)
            failures, tried = 0, set()
    return cover
