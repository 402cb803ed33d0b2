"""The compiled planner, told of a traffic matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fastjax import _core, optimal, scheduling
from fastjax.checks import check_row_bytes, check_topology
from fastjax.errors import ArgumentError
from fastjax.scheduling import check_scheduler, check_scheduler_fits
from fastjax.topology import Topology
from fastjax.traffic import checks

Matchings = tuple[np.ndarray, np.ndarray]
"""Targets, int16, shape (matchings, servers), -1 for none; and weights, int64."""


class Made(NamedTuple):
    """What a plan is made from: the arguments of `make`.

    Attributes:
      traffic: rows device i sends to device j.
      topology: the fabric.
      asked: the scheduler that was asked for.
      row_bytes: bytes of a row.
      solved: the matchings that the planner took from a solver, if any.
    """

    traffic: np.ndarray
    topology: Topology
    asked: str
    row_bytes: int
    solved: Matchings | None


def make(
    traffic: ArrayLike,
    topology: Topology,
    asked: str,
    row_bytes: int,
    solved: Matchings | None = None,
    *,
    time_limit: float = 60.0,
) -> tuple[_core.HostPlan, Made]:
    """Plans; a scheduler that solves for its matchings takes those of `solved`, if any.

    Raises:
      ArgumentError: an argument is impossible; so are OptionError and TopologyError.
    """
    check_scheduler(asked, "scheduler")
    check_topology(topology)
    check_row_bytes(row_bytes)
    check_scheduler_fits(asked, topology)
    matrix = _checked_traffic(traffic, topology)
    traits = scheduling.ALL[asked]
    core = _core.HostPlan(matrix, topology.words, traits.number, int(row_bytes))
    if traits.solves and solved is None:
        solved = _solve(core, topology.servers, time_limit)
    if solved is not None:
        core.plan_with(*solved)
    return core, Made(matrix, topology, asked, int(row_bytes), solved)


def _solve(core: _core.HostPlan, servers: int, time_limit: float) -> Matchings | None:
    units = core.units().reshape(servers, servers)
    if not units.any():
        return None
    targets, lengths = optimal.solve_stages(
        units, startup_rows=core.startup_units, time_limit=time_limit
    )
    return targets.astype(np.int16), lengths


def _checked_traffic(traffic: ArrayLike, topology: Topology) -> np.ndarray:
    """A copy of the traffic matrix, as int64, if it is one that the planner takes."""
    of = f"a topology of {topology.servers} x {topology.devices_per_server} devices"
    try:
        matrix = checks.matrix("traffic", traffic, topology.num_devices, of)
    except TypeError as error:  # a traced array
        raise ArgumentError(
            "traffic must be known when the plan is made; inside programs, plan with "
            f"fastjax.plan_ragged_all_to_all. {error}"
        ) from None
    # The planner adds entries up in int64.
    if int(matrix.max(initial=0)) > 2**62 // max(1, matrix.size):
        raise ArgumentError("traffic has more rows than int64 can add up.")
    owned = np.array(matrix, dtype=np.int64, order="C")
    owned.flags.writeable = False
    return owned
