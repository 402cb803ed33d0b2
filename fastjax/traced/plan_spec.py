"""What is known of a plan when its program is traced."""

from __future__ import annotations

import collections
import dataclasses
import warnings

import jax
import numpy as np

from fastjax import _core, config, jax_compat, scheduling
from fastjax.checks import check_topology
from fastjax.errors import TopologyError, TopologyWarning, UnsupportedError
from fastjax.scheduling import (
    check_scheduler,
    check_scheduler_fits,
    schedulers_in_programs,
)
from fastjax.topology import Topology, doubt, fit_to_groups, usual_topology
from fastjax.traced.axes import Axes, Groups


@dataclasses.dataclass(frozen=True)
class PlanSpec:
    """What is known of a plan when the program is traced.

    Attributes:
      topology: that of one group, server-major.
      rank_of: server-major number of each position of the group.
      scheduler: a scheduler's name; "auto" where it is chosen anew for every traffic.
      row_bytes: bytes of a row, as far as the planner is told.
      tokens, top_k: of a layer of experts, for statistics: a device's tokens, and the experts that
        each chooses; 0 where the plan is of no layer.
      layer: of a layer, for messages: how its options, or defaults, have been decided.
      assumed: whether nobody gave the topology, and only the shape of the mesh was known.
    """

    topology: Topology
    rank_of: tuple[int, ...]
    scheduler: str
    row_bytes: int
    tokens: int = 0
    top_k: int = 0
    layer: str = ""
    assumed: bool = False

    @property
    def table_words(self) -> int:
        """Length of a device's stage table."""
        return _core.table_words(self.topology.words, scheduling.ALL[self.scheduler].number)

    def of_batch(self, size: int) -> PlanSpec:
        """The same for so many elements of a batch that travel as one."""
        return dataclasses.replace(self, tokens=size * self.tokens)

    def warn_of_false_servers(self, axes: Axes, servers: np.ndarray) -> None:
        """Warns if devices that were assumed to be of one server are not.

        Args:
          axes: that are exchanged over.
          servers: that of each position, by group, shape (groups, positions).
        """
        if not self.assumed:
            return
        by_rank = servers[:, np.argsort(self.rank_of)]
        assumed = by_rank.reshape(-1, self.topology.devices_per_server)
        if (assumed == assumed[:, :1]).all():
            return
        named = _named(axes)
        warnings.warn(
            f"exchanges over axis {named} are planned as if {self.topology.devices_per_server} "
            "devices in a row were of one server, but the mesh has devices of several processes "
            "there: rows that are taken for local cross the network. Give topology="
            f"fastjax.Topology.from_mesh(mesh, {named}), or trace the program inside "
            "jax.set_mesh(mesh).",
            TopologyWarning,
            stacklevel=2,
        )


def make_spec(
    axes: Axes,
    groups: Groups,
    topology: Topology | None,
    scheduler: str | None,
    row_bytes: int,
) -> PlanSpec:
    """What the planner of a call is told, arguments before options before defaults."""
    opts = config.current()
    name = opts.scheduler if scheduler is None else scheduler
    check_scheduler(name, "scheduler")
    axis_size = jax.lax.axis_size(axes)
    if topology is not None:
        check_topology(topology)
    given, assumed = topology or opts.topology, False
    if given is None:
        given, assumed = _default_topology(axes, axis_size)
    if given.num_devices != axis_size:
        raise _does_not_fit(given, axes, axis_size, "" if topology else " of fastjax.options")
    fitted, rank_of = fit_to_groups(given, axis_size, groups)
    if scheduling.ALL[name].solves:
        raise UnsupportedError(
            f"scheduler {name!r} solves for seconds, on the host: call fastjax.make_plan with it. "
            f"Inside programs there are {', '.join(schedulers_in_programs())}."
        )
    check_topology(fitted)
    if (doubted := doubt(fitted)) is not None:
        warnings.warn(doubted, TopologyWarning, stacklevel=2)
    check_scheduler_fits(name, fitted)
    # Inside one server there is nothing to choose, and a table of direct transfers is small.
    decided = scheduling.ALL[name].chooses and fitted.servers == 1
    chosen = scheduling.FALLBACK if decided else name
    return PlanSpec(fitted, rank_of, chosen, max(1, int(row_bytes)), assumed=assumed)


def _named(axes: Axes) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)


def _does_not_fit(topology: Topology, axes: Axes, axis_size: int, source: str) -> TopologyError:
    named = _named(axes)
    return TopologyError(
        f"the topology{source} has {topology.servers} x {topology.devices_per_server} = "
        f"{topology.num_devices} devices, axis {named} has {axis_size}. It must be that of the "
        "axis, neither of the whole mesh nor of one of axis_index_groups; "
        f"fastjax.Topology.from_mesh(mesh, {named}) makes it."
    )


def _default_topology(axes: Axes, axis_size: int) -> tuple[Topology, bool]:
    """Devices of one process are one server; and whether that is assumed of the mesh's shape.

    It is the same in all processes, also where they have different numbers of devices.
    """
    if jax.process_count() == 1:
        return Topology(1, axis_size), False
    known = jax_compat.concrete_mesh()
    if known is not None and set(axes) <= set(known.axis_names):
        return Topology.from_mesh(known, axes), False
    processes = sorted(device.process_index for device in jax.devices())
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size == len(processes) and set(axes) <= set(mesh.axis_names):
        return usual_topology(dict(mesh.shape), axes, processes), True
    # Some devices are left out, and which is not known here.
    counts = set(collections.Counter(processes).values())
    local = counts.pop()
    servers = axis_size if counts or axis_size % local else axis_size // local
    return Topology(servers, axis_size // servers), True
