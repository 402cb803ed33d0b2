"""Stages between servers, solved: the cheapest, the fewest, and all that is worth having."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.optimal.checks import check_rows, check_startup, check_time_limit
from fastjax.optimal.cover import Cover, busiest_line, degree, fewest_stages
from fastjax.optimal.programs import TOLERANCE, shortest_cover
from fastjax.optimal.search import Goal, cheapest_cover


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """Stages that together carry all rows between servers, and how good they can be at most.

    Attributes:
      targets: server that each server sends to in each stage, -1 for none; int32, shape (stages,
        servers). No two servers have the same target in a stage.
      lengths: rows that each pair of a stage may send in it, longest stage first; int64, shape
        (stages,).
      objective: what was minimised.
      bound: no stages have a lower objective.
      optimal: the bound proves that the objective cannot be improved by more than a millionth.
      seconds: that solving took.
    """

    targets: np.ndarray
    lengths: np.ndarray
    objective: float
    bound: float
    optimal: bool
    seconds: float

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.lengths)


def solve_stages(
    rows: Any, *, startup_rows: float, time_limit: float = 60.0, max_stages: int | None = None
) -> Stages:
    """Cheapest stages: least sum of lengths + startup_rows * number of stages.

    In a stage each server sends to one other at most and receives from one other at most. The rows
    of a pair may be split over stages, and a pair may be done before its stage is. Up to about
    five servers the result is proved optimal within seconds; beyond, it is the best found in time.

    Args:
      rows: rows that each rail must carry from server s to server d, integers, shape (servers,
        servers), zero diagonal.
      startup_rows: what starting a stage costs: rows that a rail could send in the meantime.
      time_limit: seconds after which the best so far is returned. Programs already running may
        add some to it, and so may the simple covers that are the least one gets.
      max_stages: stages allowed; by default any number.

    Returns:
      The stages; objective and bound in rows.

    Raises:
      ArgumentError: rows is not such a matrix, startup_rows or time_limit is impossible, or
        max_stages is less than the peers of the server that has most.
      UnsupportedError: scipy is not installed.
    """
    matrix, startup = check_rows(rows), check_startup(startup_rows)
    clock = check_time_limit(time_limit)
    goal = Goal(Fraction(startup))
    if max_stages is not None:
        goal = dataclasses.replace(goal, most_stages=_check_max_stages(matrix, max_stages))
    cover, lower = cheapest_cover(matrix, goal, clock)
    return _stages(cover, goal.cost(cover), lower, clock.spent())


def min_stages(rows: Any, max_length: int, *, time_limit: float = 60.0) -> Stages:
    """Fewest stages with a total length of at most max_length, and among those the shortest found.

    Args:
      rows: rows between servers, as `solve_stages` takes them.
      max_length: rows that all stages together may be long.
      time_limit: seconds, as for `solve_stages`.

    Returns:
      The stages; objective and bound are numbers of stages.

    Raises:
      ArgumentError: rows is not such a matrix, max_length is less than the busiest server's rows,
        or time_limit is impossible.
      UnsupportedError: scipy is not installed.
    """
    matrix, clock = check_rows(rows), check_time_limit(time_limit)
    limit = _check_max_length(matrix, max_length)
    # One stage less is worth any length that is allowed.
    goal = Goal(Fraction(limit + 1), most_length=limit)
    cover, lower = cheapest_cover(matrix, goal, clock)
    fewest = -((limit - lower) // goal.startup)
    return _stages(cover, Fraction(len(cover.lengths)), Fraction(fewest), clock.spent())


def frontier(rows: Any, *, time_limit: float = 60.0) -> list[tuple[int, int]]:
    """What stages cost in length: the shortest total length for each number of stages.

    Args:
      rows: rows between servers, as `solve_stages` takes them.
      time_limit: seconds for all points together.

    Returns:
      (number of stages, total length in rows) from the fewest stages to the least length, each
      proved optimal to a millionth; numbers that make nothing shorter are left out.

    Raises:
      ArgumentError: rows is not such a matrix, or time_limit is impossible.
      UnsupportedError: a point could not be proved in time, as is usual from six servers on; or
        scipy is not installed.
    """
    matrix, clock = check_rows(rows), check_time_limit(time_limit)
    count, least = degree(matrix), busiest_line(matrix)
    best = fewest_stages(matrix).length
    points: list[tuple[int, int]] = []
    while True:
        answer = shortest_cover(matrix, count, best - 1, clock)
        if answer.cover is not None:
            best = answer.cover.length
        if not _close(best, min(answer.lower, best)):
            raise UnsupportedError(
                f"the frontier was not proved in {time_limit} s: {count} stages take from "
                f"{answer.lower} to {best} rows. Give it more time_limit, or fewer servers than "
                f"{len(matrix)}."
            )
        if not points or best < points[-1][1]:
            points.append((count, best))
        if _close(best, least):
            return points
        count += 1


def _stages(cover: Cover, cost: Fraction, lower: Fraction, seconds: float) -> Stages:
    return Stages(
        targets=cover.targets,
        lengths=cover.lengths,
        objective=float(cost),
        bound=float(lower),
        optimal=_close(cost, lower),
        seconds=seconds,
    )


def _close(cost: Fraction | int, lower: Fraction | int) -> bool:
    return cost - lower <= Fraction(TOLERANCE) * cost


def _check_max_stages(rows: np.ndarray, max_stages: Any) -> int:
    fewest = degree(rows)
    if not isinstance(max_stages, (int, np.integer)) or max_stages < fewest:
        raise ArgumentError(
            f"max_stages must be an integer of at least {fewest}, since some server has "
            f"{fewest} peers, got {max_stages!r}."
        )
    return int(max_stages)


def _check_max_length(rows: np.ndarray, max_length: Any) -> int:
    least = busiest_line(rows)
    if not isinstance(max_length, (int, np.integer)) or not least <= max_length <= 2**62:
        raise ArgumentError(
            f"max_length must be an integer from {least}, the rows of the busiest server, to "
            f"2**62, got {max_length!r}."
        )
    return int(max_length)
