"""The cheapest stages between servers, solved for."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.optimal.checks import Clock, check_rows
from fastjax.optimal.programs import TOLERANCE
from fastjax.optimal.search import cheapest_cover, cost_of
from fastjax.traffic import checks


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """Stages that together carry all rows between servers, and how good they can be at most.

    Attributes:
      targets: server that each server sends to in each stage, -1 for none; int32, shape (stages,
        servers). No two servers have the same target in a stage.
      lengths: rows that each pair of a stage may send in it, longest stage first; int64, shape
        (stages,).
      objective: the sum that was minimised.
      bound: no stages have a lower objective.
      optimal: the bound proves that the objective cannot be improved by more than a millionth.
    """

    targets: np.ndarray
    lengths: np.ndarray
    objective: float
    bound: float
    optimal: bool

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.lengths)


def solve_stages(rows: Any, *, startup_rows: float, time_limit: float = 60.0) -> Stages:
    """Cheapest stages: least sum of lengths + startup_rows * number of stages.

    In a stage each server sends to one other at most and receives from one other at most. The rows
    of a pair may be split over stages, and a pair may be done before its stage is. Up to about
    five servers the result is proved optimal within seconds; beyond, it is the best found in time.

    Args:
      rows: rows that each rail must carry from server s to server d, integers, shape (servers,
        servers), zero diagonal.
      startup_rows: the cost of starting a stage: rows that a rail could send in the meantime.
      time_limit: seconds after which the best so far is returned. Programs already running may
        add some to it, and so may the simple covers that there are at least.

    Returns:
      The stages; objective and bound in rows.

    Raises:
      ArgumentError: rows is not such a matrix, or startup_rows or time_limit is impossible.
      UnsupportedError: scipy is not installed.
    """
    matrix = check_rows(rows)
    checks.real("startup_rows", startup_rows, 0, 2**62)
    if not checks.real("time_limit", time_limit, 0):
        raise ArgumentError(f"time_limit must be more than 0 seconds, got {time_limit!r}.")
    clock = Clock(time_limit)
    startup = Fraction(startup_rows)  # of integers exactly
    cover, lower = cheapest_cover(matrix, startup, clock)
    cost = cost_of(cover, startup)
    return Stages(
        targets=cover.targets,
        lengths=cover.lengths,
        objective=float(cost),
        bound=float(lower),
        optimal=cost - lower <= Fraction(TOLERANCE) * cost,
    )
