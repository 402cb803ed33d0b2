"""Plans made on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from fastjax import _core, optimal, plot, scheduling
from fastjax.checks import DEFAULT_ROW_BYTES, check_row_bytes, check_topology
from fastjax.errors import ArgumentError
from fastjax.host import explanation
from fastjax.schedule import TRANSFER_DTYPE
from fastjax.scheduling import check_scheduler, check_scheduler_fits
from fastjax.topology import Topology
from fastjax.traffic import checks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Matchings = tuple[np.ndarray, np.ndarray]
"""Targets, int16, shape (matchings, servers), -1 for none; and weights, int64."""

Made = tuple[np.ndarray, Topology, str, int, Matchings | None]
"""What a plan is made from: traffic, topology, scheduler, bytes of a row, what a solver found."""


class Plan:
    """The schedule of one exchange, made on the host by `make_plan`.

    Attributes:
      traffic: rows device i sends to device j, int64, shape (devices, devices).
      topology: the fabric it was made for.
      scheduler: the scheduler that made it; where "auto" was asked for, the one it chose.
      row_bytes: bytes of a row, which times are predicted with.
    """

    def __init__(self, core: _core.HostPlan, made: Made, *, transposed: bool = False):
        self._core = core
        self._made = made
        self._transposed = transposed
        traffic, self.topology, self._asked, self.row_bytes, _ = made
        self.traffic = traffic.T if transposed else traffic
        chosen = scheduling.NAMES[core.chosen]
        self.scheduler = self._asked if scheduling.ALL[self._asked].solves else chosen
        self._transfers: np.ndarray | None = None

    @property
    def num_stages(self) -> int:
        """Scale-out stages."""
        return self._core.num_stages

    @property
    def matchings(self) -> tuple[np.ndarray, np.ndarray]:
        """Different matchings of servers that stages were cut from: who sends to whom, how long.

        Returns:
          Targets, int16, shape (matchings, servers): the server that each sends to, which may be
          itself or one that it has nothing left for, or -1; and weights, int64, shape
          (matchings,): rows that each rail of a pair carries at most, where NICs are equal. Empty
          for schedulers that make none.
        """
        targets, weights = self._core.matchings()
        targets = targets.reshape(len(weights), self.topology.servers)
        if not self._transposed:
            return targets, weights
        back = np.full_like(targets, -1)
        which, sender = np.nonzero(targets >= 0)
        back[which, targets[which, sender]] = sender
        return back[::-1], weights[::-1]

    @property
    def transfers(self) -> np.ndarray:
        """All transfers, of `TRANSFER_DTYPE`, in an order that can be executed as it stands."""
        if self._transfers is None:
            packed = self._core.transfers(transposed=self._transposed)
            self._transfers = packed.view(TRANSFER_DTYPE)
            self._transfers.flags.writeable = False
        return self._transfers

    def lower_bound(self) -> float:
        """Seconds that no schedule can beat (FAST, arXiv 2505.09764).

        The larger of: rows leaving or entering the busiest server over all its NICs; rows leaving
        or entering the busiest device over its scale-up and scale-out links together.
        """
        return self._core.lower_bound()

    def predicted_time(self) -> float:
        """Seconds from the counts to the last row, by the cost model (docs/design/cost_model.md).

        Planning is part of it; `planning_time` is that part.
        """
        return self._core.predicted_time()

    def planning_time(self) -> float:
        """Seconds that planning for one device takes in a program, about.

        Of a plan that "auto" chose, looking at the others is part of it.
        """
        return self._core.planning_time()

    def explain(self) -> str:
        """Why this schedule, in words and numbers."""
        return explanation.explain(self, self._asked, self._core.choices())

    def plot(self) -> Figure:
        """Draws the plan, with matplotlib (the extra `plot`); see `fastjax.plot.plot_plan`."""
        return plot.plot_plan(self)

    def transpose(self) -> Plan:
        """The plan of the way back, of the transposed traffic: this one, read backwards."""
        return Plan(self._core, self._made, transposed=not self._transposed)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies are planned anew, which gives the same plan."""
        return _restored, (self._made, self._transposed)

    def stage_table(self, device: int) -> np.ndarray:
        """The transfers of `device`, as the int32 array that the compiled program executes.

        Raises:
          ArgumentError: there is no such device, or a block of 2**31 rows or more does not fit the
            table's integers; nor do as many rows that a device stages for others.
        """
        if device not in range(self.topology.num_devices):
            raise ArgumentError(
                f"device must be from 0 to {self.topology.num_devices - 1}, got {device}."
            )
        try:
            return self._core.table(int(device), transposed=self._transposed)
        except ValueError as error:
            what = str(error)
            if self.traffic.max() < 2**31:
                what = "a device stages 2^31 rows or more for others"
            raise ArgumentError(f"{what}; split the exchange.") from None

    def __repr__(self) -> str:
        return (
            f"Plan(scheduler={self.scheduler!r}, devices={self.topology.num_devices}, "
            f"rows={int(self.traffic.sum())}, num_stages={self.num_stages})"
        )


def make_plan(
    traffic: ArrayLike,
    topology: Topology,
    *,
    scheduler: str = "auto",
    row_bytes: int = DEFAULT_ROW_BYTES,
    time_limit: float = 60.0,
) -> Plan:
    """Plans one exchange on the host.

    Args:
      traffic: rows device i sends to device j; integers of 0 or more, shape (devices, devices) in
        the topology's server-major numbering.
      topology: the fabric.
      scheduler: one of `fastjax.schedulers()`. "fast" is FAST (arXiv 2505.09764): rows are balanced
        over the rails inside each server, cross in one-to-one Birkhoff stages and take a last local
        hop. "balanced" balances as "fast" does and sends to all servers side by side, in a few
        pieces; so does "rails", RailS (arXiv 2510.19262), which sprays rows over the rails, and
        "relay", which sends over each device's own NIC, to be handed on at the other end.
        "spreadout" sends in shifted pairs, "direct" everything at once. "auto" predicts the time of
        these but "rails" and takes the fastest. "optimal" solves for the best stages, for few
        servers: seconds, and scipy (the extra `optimal`).
      row_bytes: bytes of a row; start-ups are weighed against it.
      time_limit: seconds that "optimal" may solve for; then the best plan so far is taken.

    Returns:
      The plan. The same arguments give the same plan, bit for bit, on every host; but "optimal"
      stops by the clock.

    Raises:
      ArgumentError: traffic is not such a matrix, or row_bytes or time_limit is not positive.
      OptionError: there is no such scheduler, or it needs NICs that have failed.
      UnsupportedError: "optimal" without scipy.
    """
    if not time_limit > 0:
        raise ArgumentError(f"time_limit must be seconds above 0, got {time_limit!r}.")
    check_scheduler(scheduler, "scheduler")
    check_topology(topology)
    check_row_bytes(row_bytes)
    check_scheduler_fits(scheduler, topology)
    given = _checked_traffic(traffic, topology), topology, scheduler, int(row_bytes)
    with jax.profiler.TraceAnnotation("fastjax.make_plan", scheduler=scheduler):
        solves = scheduling.ALL[scheduler].solves
        made = (*given, _solve(_planned(*given), topology.servers, time_limit) if solves else None)
        return Plan(_planned(*made), made)


def _planned(
    traffic: np.ndarray,
    topology: Topology,
    scheduler: str,
    row_bytes: int,
    solved: Matchings | None = None,
) -> _core.HostPlan:
    number = scheduling.ALL[scheduler].number
    core = _core.HostPlan(traffic, topology.words, number, row_bytes)
    if solved is not None:
        core.plan_with(*solved)
    return core


def _restored(made: Made, transposed: bool) -> Plan:
    made[0].flags.writeable = False
    return Plan(_planned(*made), made, transposed=transposed)


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
