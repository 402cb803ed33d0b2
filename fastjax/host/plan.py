"""Plans made on the host."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fastjax import _core, config, optimal, plot
from fastjax.errors import ArgumentError, OptionError, TopologyError
from fastjax.host import explanation, plan_file
from fastjax.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRANSFER_DTYPE = np.dtype(
    [
        ("phase", "i1"),
        ("stage", "i4"),
        ("src", "i4"),
        ("dst", "i4"),
        ("origin", "i4"),
        ("target", "i4"),
        ("first_row", "i8"),
        ("rows", "i8"),
    ]
)
"""Fields of `Plan.transfers`.

phase is 0 local, 1 balance, 2 scale-out, 3 redistribute; stage is the scale-out stage that a
balance feeds, a scale-out is part of or a redistribution drains, and -1 for local.
"""


_TOO_MANY_DEVICES = 2**15


class Plan:
    """The schedule of one exchange, made on the host by `make_plan`.

    Attributes:
      traffic: rows device i sends to device j, int64, shape (devices, devices).
      topology: the fabric it was made for.
      scheduler: the scheduler that made it; where "auto" was asked for, the one it chose.
      row_bytes: bytes of a row, which times are predicted with.
    """

    def __init__(self, made: Made, *, transposed: bool = False):
        self._made = made
        self._transposed = transposed
        self.traffic = made.traffic.T if transposed else made.traffic
        self.topology = made.topology
        self.row_bytes = made.row_bytes
        chosen = _core.scheduler_names()[made.core.chosen]
        self.scheduler = "optimal" if made.asked == "optimal" else chosen
        self._transfers: np.ndarray | None = None

    @property
    def num_stages(self) -> int:
        """Scale-out stages."""
        return self._made.core.num_stages

    @property
    def num_matchings(self) -> int:
        """Different matchings of servers that the stages were cut from.

        As many as there are stages, for schedulers that do not cut any.
        """
        return self._made.core.num_matchings

    @property
    def matchings(self) -> tuple[np.ndarray, np.ndarray]:
        """Those matchings: who sends to whom, and how long.

        Returns:
          Targets, int16, shape (matchings, servers): the server that each sends to, which may be
          itself or one that it has nothing left for, or -1; and weights, int64, shape
          (matchings,): rows that each rail of a pair carries at most, where NICs are equal. Empty
          for schedulers that make none.
        """
        flat, weights = self._made.core.matchings()
        targets = flat.reshape(len(weights), self.topology.servers)
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
            packed = self._made.core.transfers(transposed=self._transposed)
            self._transfers = packed.view(TRANSFER_DTYPE)
            self._transfers.flags.writeable = False
        return self._transfers

    def lower_bound(self) -> float:
        """Seconds that no schedule can beat (FAST, arXiv 2505.09764).

        The larger of: rows leaving or entering the busiest server over all its NICs; rows leaving
        or entering the busiest device over its scale-up and scale-out links together.
        """
        return self._made.core.lower_bound()

    def predicted_time(self) -> float:
        """Seconds from the counts to the last row, by the cost model (docs/design/cost_model.md).

        Planning is part of it; `planning_time` is that part.
        """
        return self._made.core.predicted_time()

    def planning_time(self) -> float:
        """Seconds that planning for one device takes in a program, about.

        Of a plan that "auto" chose, looking at the others is part of it.
        """
        return self._made.core.planning_time()

    def explain(self) -> str:
        """Why this schedule, in words and numbers."""
        return explanation.explain(self, self._made.asked, self._made.core.choices())

    def plot(self, panels: Sequence[str] | None = None, ax: Sequence[Axes] | None = None) -> Figure:
        """Draws the plan, with matplotlib (the extra `plot`); see `fastjax.plot.plot_panels`."""
        return plot.plot_panels(self, panels, ax)

    def transpose(self) -> Plan:
        """The plan of the way back, of the transposed traffic: this one, read backwards."""
        return Plan(self._made, transposed=not self._transposed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan to a file that `Plan.load` reads: a numpy archive (.npz)."""
        plan_file.write(path, self._stored())

    def _stored(self) -> plan_file.Stored:
        made = self._made
        flat, weights = made.core.matchings()
        targets = flat.reshape(len(weights), self.topology.servers)
        return plan_file.Stored(
            traffic=made.traffic,
            topology=made.topology,
            scheduler=made.asked,
            row_bytes=made.row_bytes,
            given=made.given,
            taken=made.taken,
            found=(targets, weights),
            stages=self.num_stages,
            transposed=self._transposed,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies are planned anew, as files are."""
        return _restored, (self._stored(), "the pickle")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan that `save` wrote: the same, bit for bit.

        Raises:
          ArgumentError: the file is no plan, or of a version that plans otherwise.
        """
        return _restored(plan_file.read(path), os.fspath(path))

    def stage_table(self, device: int) -> np.ndarray:
        """What `device` executes, as the int32 array that goes into the compiled program.

        Raises:
          ArgumentError: there is no such device, or a block of 2**31 rows or more does not fit the
            table's integers; nor do as many rows that a device passes on, where NICs have failed.
        """
        if device not in range(self.topology.num_devices):
            raise ArgumentError(
                f"device must be from 0 to {self.topology.num_devices - 1}, got {device}."
            )
        try:
            return self._made.core.table(int(device), transposed=self._transposed)
        except ValueError as error:
            what = str(error)
            if self.traffic.max() < 2**31:
                what = (
                    "a device passes on 2^31 rows or more, which do not fit a stage table, and "
                    "NICs that have failed leave no straight way"
                )
            raise ArgumentError(f"{what}; split the exchange.") from None

    def __repr__(self) -> str:
        return (
            f"Plan(scheduler={self.scheduler!r}, devices={self.topology.num_devices}, "
            f"rows={int(self.traffic.sum())}, num_stages={self.num_stages})"
        )


@dataclasses.dataclass(frozen=True)
class Made:
    """What the planner made of what it was given.

    Attributes:
      traffic: the matrix.
      topology: the fabric.
      asked: the scheduler that was asked for.
      row_bytes: bytes of a row.
      core: the compiled plan.
      given: targets and weights of the matchings that it was given, if any.
      taken: whether to take those as they are, rather than to begin with them.
    """

    traffic: np.ndarray
    topology: Topology
    asked: str
    row_bytes: int
    core: _core.HostPlan
    given: plan_file.Matchings | None
    taken: bool


def make_plan(
    traffic: Any,
    topology: Topology,
    *,
    scheduler: str = "auto",
    row_bytes: int = 1,
    previous: Plan | None = None,
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
      previous: a plan of traffic much like this one: its matchings come first, as far as they are
        still good, which is faster than finding new ones. The plan then depends on it.
      time_limit: seconds that "optimal" may solve for; then the best plan so far is taken.

    Returns:
      The plan. The same arguments give the same plan, bit for bit, on every host; but "optimal"
      stops by the clock.

    Raises:
      ArgumentError: traffic is not such a matrix, row_bytes or time_limit is not positive, or
        previous is a plan of other servers.
      OptionError: there is no such scheduler, or it needs NICs that have failed.
      UnsupportedError: "optimal" without scipy.
    """
    config.check_scheduler(scheduler, "scheduler")
    check_topology(topology)
    check_row_bytes(row_bytes)
    check_scheduler_fits(scheduler, topology)
    if not time_limit > 0:
        raise ArgumentError(f"time_limit must be seconds above 0, got {time_limit!r}.")
    if previous is not None:
        _check_previous(previous, topology)
    matrix = _check_traffic(traffic, topology)
    begin = None if previous is None else previous.matchings
    with jax.profiler.TraceAnnotation("fastjax.make_plan", scheduler=scheduler):
        made = _make(
            matrix, topology, scheduler, int(row_bytes), begin=begin, time_limit=time_limit
        )
    return Plan(made)


def _make(
    traffic: np.ndarray,
    topology: Topology,
    asked: str,
    row_bytes: int,
    *,
    begin: plan_file.Matchings | None = None,
    taken: plan_file.Matchings | None = None,
    time_limit: float = 60.0,
) -> Made:
    name = "fast" if asked == "optimal" else asked
    core = _core.HostPlan(traffic, topology.words, scheduler_number(name), row_bytes)
    core.plan()
    if asked == "optimal" and taken is None:
        taken = _solve(core, topology.servers, time_limit)
    given = taken or begin
    if given is None or not len(given[1]):
        return Made(traffic, topology, asked, row_bytes, core, None, False)
    targets, weights = (np.ascontiguousarray(part) for part in given)
    core.plan_with(targets, weights, take=taken is not None)
    return Made(traffic, topology, asked, row_bytes, core, (targets, weights), taken is not None)


def _restored(stored: plan_file.Stored, where: str) -> Plan:
    """The plan again, out of `where`."""
    try:
        made = _remake(stored)
    except ValueError as error:
        raise ArgumentError(f"{where} is no plan of fastjax: {error}") from None
    targets, weights = made.core.matchings()
    same = np.array_equal(targets, stored.found[0].ravel())
    same = same and np.array_equal(weights, stored.found[1])
    if not same or made.core.num_stages != stored.stages:
        raise ArgumentError(
            f"{where} is a plan of a version of fastjax that plans otherwise; make it anew with "
            "fastjax.make_plan."
        )
    return Plan(made, transposed=stored.transposed)


def _remake(stored: plan_file.Stored) -> Made:
    """What was stored, planned again."""
    topology = stored.topology
    config.check_scheduler(stored.scheduler, "scheduler")
    check_row_bytes(stored.row_bytes)
    check_scheduler_fits(stored.scheduler, topology)
    traffic = _check_traffic(stored.traffic, topology)
    begin, taken = (None, stored.given) if stored.taken else (stored.given, None)
    name = stored.scheduler
    return _make(traffic, topology, name, stored.row_bytes, begin=begin, taken=taken)


def _solve(core: _core.HostPlan, servers: int, time_limit: float) -> plan_file.Matchings | None:
    units = core.units().reshape(servers, servers)
    if not units.any():
        return None
    solved = optimal.solve_stages(units, startup_rows=core.startup_units, time_limit=time_limit)
    return solved.targets.astype(np.int16), solved.lengths


def scheduler_number(name: str) -> int:
    """That of the compiled planner."""
    return _core.scheduler_names().index(name)


def check_scheduler_fits(name: str, topology: Topology) -> None:
    """Refuses schedulers that use every device's own NIC where one has failed."""
    failed = topology.failed_nics
    if failed and topology.servers > 1 and name in ("direct", "relay", "spreadout"):
        raise OptionError(
            f"scheduler {name!r} sends rows over their device's own NIC, and that of device "
            f"{failed[0]} has failed (nic_bandwidths[{failed[0]}] is 0); 'fast', 'balanced', "
            "'rails' and 'auto' go round it."
        )


def _check_previous(previous: Any, topology: Topology) -> None:
    if not isinstance(previous, Plan):
        raise ArgumentError(f"previous must be a fastjax.Plan, got {previous!r}.")
    if previous.topology.servers != topology.servers:
        raise ArgumentError(
            f"previous is a plan for {previous.topology.servers} servers, the topology has "
            f"{topology.servers}."
        )


def check_row_bytes(row_bytes: Any) -> None:
    """Refuses sizes that no row has."""
    if not isinstance(row_bytes, (int, np.integer)) or not 1 <= row_bytes < 2**40:
        raise ArgumentError(f"row_bytes must be an integer from 1 to 2**40 - 1, got {row_bytes!r}.")


def check_topology(topology: Any) -> None:
    """Refuses what is not a topology."""
    if not isinstance(topology, Topology):
        raise ArgumentError(f"topology must be a fastjax.Topology, got {topology!r}.")
    if topology.num_devices >= _TOO_MANY_DEVICES:
        raise TopologyError(
            f"{topology.servers} x {topology.devices_per_server} devices are more than the "
            f"{_TOO_MANY_DEVICES - 1} that can be planned for."
        )


def _check_traffic(traffic: Any, topology: Topology) -> np.ndarray:
    try:
        matrix = np.asarray(traffic)
    except ValueError as error:
        raise ArgumentError(f"traffic must be a matrix: {error}") from None
    size = topology.num_devices
    if matrix.shape != (size, size):
        raise ArgumentError(
            f"traffic must have shape ({size}, {size}) for a topology of {topology.servers} x "
            f"{topology.devices_per_server} devices, got {matrix.shape}."
        )
    if not np.issubdtype(matrix.dtype, np.integer):
        raise ArgumentError(f"traffic must be integers (rows), got {matrix.dtype}.")
    if matrix.size and int(matrix.min()) < 0:
        i, j = np.unravel_index(int(matrix.argmin()), matrix.shape)
        raise ArgumentError(f"traffic must be 0 or more, got traffic[{i}, {j}] = {matrix[i, j]}.")
    # The planner adds entries up in int64.
    if int(matrix.max(initial=0)) > 2**62 // max(1, matrix.size):
        raise ArgumentError("traffic has more rows than int64 can add up.")
    owned = np.array(matrix, dtype=np.int64, order="C")
    owned.flags.writeable = False
    return owned


__all__ = ["TRANSFER_DTYPE", "Made", "Plan", "make_plan"]
