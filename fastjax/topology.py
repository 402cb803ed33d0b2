"""The two-tier fabric that plans are made for."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from fastjax import devices
from fastjax.devices import AxisName
from fastjax.errors import TopologyError

_LEAST_USUAL = 1e6  # bytes/s; no network is as slow, so that another unit is meant
_BELOW_2_62 = math.nextafter(2.0**62, 0)


# The first of `Topology.words`, in order: fields, and what one unit of a field counts there.
# NICs' bandwidths follow, one for each device, where they differ.
_WORDS = {
    "servers": 1,
    "devices_per_server": 1,
    "scale_up_bandwidth": 1,
    "scale_out_bandwidth": 1,
    "scale_up_latency": 1e9,
    "scale_out_latency": 1e9,
    "transfer_overhead": 1e9,
    "incast_loss": 1e6,
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Servers of devices: a fast fabric inside each, one slower NIC per device between them.

    Args:
      servers: number of servers.
      devices_per_server: devices in each.
      scale_up_bandwidth: bytes/s of one device inside its server.
      scale_out_bandwidth: bytes/s of one device's NIC.
      scale_up_latency: seconds that starting one step inside a server takes.
      scale_out_latency: seconds that starting one scale-out stage takes.
      transfer_overhead: seconds that a device spends on posting each of the messages that it sends
        to other servers at once; nothing where stages are one-to-one.
      incast_loss: share of the time by which uneven blocks could make senders wait for each other
        that an exchange without stages loses when they meet at a receiver, from 0 to 1.
      nic_bandwidths: bytes/s of each device's NIC, server-major, where they differ from
        scale_out_bandwidth; 0 for one that has failed: rows go round it. A server must have one
        that works.
      placement: for each position of the mesh axis, the server-major number of the device there;
        None when the axis is server-major already. `from_mesh` fills it in.

    Raises:
      TopologyError: a count, bandwidth or latency is impossible.
    """

    servers: int
    devices_per_server: int
    _: dataclasses.KW_ONLY
    scale_up_bandwidth: float = 450e9
    scale_out_bandwidth: float = 50e9
    scale_up_latency: float = 2e-6
    scale_out_latency: float = 10e-6
    transfer_overhead: float = 1e-6
    incast_loss: float = 0.5
    nic_bandwidths: tuple[float, ...] | None = None
    placement: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("servers", "devices_per_server"):
            value = getattr(self, name)
            if not _is_integer(value) or not 1 <= value < 2**20:
                raise TopologyError(
                    f"{name} must be an integer from 1 to 2**20 - 1, got {value!r}."
                )
            object.__setattr__(self, name, int(value))
        for name, least, most, unit in (
            ("scale_up_bandwidth", 1, _BELOW_2_62, "bytes/s, at least 1 and below 2**62"),
            ("scale_out_bandwidth", 1, _BELOW_2_62, "bytes/s, at least 1 and below 2**62"),
            ("scale_up_latency", 0, 3600, "seconds, from 0 to 3600"),
            ("scale_out_latency", 0, 3600, "seconds, from 0 to 3600"),
            ("transfer_overhead", 0, 3600, "seconds, from 0 to 3600"),
            ("incast_loss", 0, 1, "from 0 to 1"),
        ):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not least <= value <= most:
                raise TopologyError(f"{name} must be {unit}, got {value!r}.")
            object.__setattr__(self, name, float(value))
        if self.nic_bandwidths is not None:
            self._check_nics()
        if self.placement is not None:
            placement = np.ravel(np.asarray(self.placement))
            if sorted(placement.tolist()) != list(range(self.num_devices)):
                raise TopologyError(
                    f"placement must name each of the {self.num_devices} devices once, "
                    f"got {tuple(placement.tolist())}."
                )
            object.__setattr__(self, "placement", tuple(int(r) for r in placement))

    def _check_nics(self) -> None:
        try:
            nics = tuple(float(b) for b in np.ravel(np.asarray(self.nic_bandwidths, dtype=float)))
        except (TypeError, ValueError):
            raise TopologyError(
                f"nic_bandwidths must be bytes/s, got {self.nic_bandwidths!r}."
            ) from None
        if len(nics) != self.num_devices:
            raise TopologyError(
                f"nic_bandwidths must have one entry for each of the {self.num_devices} devices, "
                f"got {len(nics)}."
            )
        for device, rate in enumerate(nics):
            if not (rate == 0 or 1 <= rate <= _BELOW_2_62):
                raise TopologyError(
                    "nic_bandwidths must be bytes/s, at least 1 and below 2**62, or 0 for a NIC "
                    f"that has failed; got {rate!r} for device {device}."
                )
        for server in range(self.servers if self.servers > 1 else 0):
            first = server * self.devices_per_server
            if not any(nics[first : first + self.devices_per_server]):
                raise TopologyError(
                    f"server {server} (devices {first} to {first + self.devices_per_server - 1}) "
                    "has no working NIC in nic_bandwidths: nothing can reach it."
                )
        object.__setattr__(self, "nic_bandwidths", nics)

    @property
    def num_devices(self) -> int:
        """Devices of all servers."""
        return self.servers * self.devices_per_server

    @property
    def failed_nics(self) -> tuple[int, ...]:
        """Devices whose NIC has failed."""
        return tuple(d for d, rate in enumerate(self.nic_bandwidths or ()) if rate == 0)

    @property
    def words(self) -> tuple[int, ...]:
        """The integers that decisions are made from: bytes/s, nanoseconds, millionths."""
        nics = self.nic_bandwidths or ()
        if all(rate == self.scale_out_bandwidth for rate in nics):
            nics = ()
        fields = (_word(getattr(self, name), per_unit) for name, per_unit in _WORDS.items())
        return (*fields, *(int(rate) for rate in nics))

    @classmethod
    def from_mesh(cls, mesh: Any, axis_name: AxisName, **rates: Any) -> Topology:
        """The topology of a mesh axis: its servers are the slices it spans, or else the processes.

        Args:
          mesh: a `jax.sharding.Mesh`.
          axis_name: an axis of it, or several in the order they are exchanged over.
          **rates: bandwidths and latencies, as the constructor takes them.

        Returns:
          A topology with as many devices as the axis has positions. Axes that are not server-major
          get a `placement`. Where servers hold unequal numbers of devices, or the axis meets
          servers in a different pattern from one row of the mesh to the next, every device counts
          as a server of its own: planned less well, but right.

        Raises:
          TopologyError: the mesh has no such axis, or no devices.
        """
        labels = devices.server_labels(mesh, axis_name)
        return _from_labels(lambda **found: cls(**rates, **found), labels)

    @staticmethod
    def measure(mesh: Any, axis_name: AxisName) -> Topology:
        """The topology of a mesh axis, with rates as they are between its devices now.

        Called by all processes that have devices in the mesh, at the same place; it exchanges rows
        between them for a few seconds, with nothing else running, and returns the same in each.

        Args:
          mesh: a `jax.sharding.Mesh`.
          axis_name: an axis of it, or several in the order they are exchanged over.

        Returns:
          That of `from_mesh`, with measured bandwidths and latencies: of a device while all of the
          mesh are at work, to three digits. Rates that cannot be measured have their default:
          those inside servers of one device, those between servers where there is one, a latency
          that does not rise above the noise, `transfer_overhead` and `incast_loss`.

        Raises:
          TopologyError: the mesh has no such axis, no devices or none of this process, or the axis
            has one device of several.
        """
        (measure,) = _measures
        return measure(mesh, axis_name)


Measure = Callable[[Any, AxisName], Topology]
_measures: list[Measure] = []


def measure_with(function: Measure) -> None:
    """Has `Topology.measure` call a function, which needs exchanges, and these need topologies."""
    _measures[:] = [function]


def _word(value: float, per_unit: float) -> int:
    return int(value) if per_unit == 1 else round(value * per_unit)


def topology_of_words(words: Sequence[int]) -> Topology:
    """The topology that has these `Topology.words`; its rates are as coarse as they are."""
    fields = zip(_WORDS.items(), words, strict=False)
    found: dict[str, Any] = {n: w if unit == 1 else w / unit for (n, unit), w in fields}
    nics = words[len(_WORDS) :]
    return Topology(**found, nic_bandwidths=tuple(map(float, nics)) or None)


def _is_integer(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return float(value).is_integer()
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def usual_topology(
    sizes: dict[Hashable, int], axes: Sequence[Hashable], processes: Sequence[int]
) -> Topology:
    """The topology of axes of a mesh over all devices of a job in their usual order.

    Args:
      sizes: of all axes of the mesh, in order.
      axes: those that are exchanged over, in order.
      processes: that of each device, in that order; the devices of a process are a server.
    """
    servers = np.array(processes).reshape(tuple(sizes.values()))
    labels = devices.lines(servers, [list(sizes).index(name) for name in axes])
    return _from_labels(Topology, labels)


def doubt(topology: Topology) -> str | None:
    """A doubt about a bandwidth that can hardly be in bytes/s, if there is one."""
    for name in ("scale_up_bandwidth", "scale_out_bandwidth"):
        rate = getattr(topology, name)
        if rate < _LEAST_USUAL:
            return (
                f"{name} is {rate:g} bytes/s, which no network is as slow as; a NIC of "
                "400 Gb/s has 50e9."
            )
    return None


def _from_labels(make: Callable[..., Topology], labels: np.ndarray) -> Topology:
    """The topology of an axis, given each position's server in every row of the mesh.

    Args:
      make: a topology of the fields that are found here.
      labels: shape (rows, positions).
    """
    pattern = _relabel(labels[0])
    counts = np.bincount(pattern)
    if _differ(labels) or (counts != counts[0]).any():
        return make(servers=labels.shape[1], devices_per_server=1, placement=None)
    ranks = np.argsort(np.argsort(pattern, kind="stable"))
    in_order = (np.diff(ranks) > 0).all()
    placement = None if in_order else tuple(ranks.tolist())
    return make(servers=len(counts), devices_per_server=int(counts[0]), placement=placement)


def _differ(labels: np.ndarray) -> bool:
    """Whether rows of the mesh meet servers in different patterns."""
    return len({_relabel(row) for row in labels}) > 1


def _relabel(row: np.ndarray) -> tuple[int, ...]:
    """Servers numbered in the order they are met."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(int(label), len(seen)) for label in row)


def _check_ways(slowest: np.ndarray, by_position: np.ndarray, *, differ: bool) -> None:
    """Whether rows can go round the NICs that have failed, in all groups, which have one plan."""
    if len(slowest) == 1 or slowest.any(axis=1).all():
        return
    failed = np.flatnonzero(by_position == 0).tolist()
    why = (
        "since groups lie differently in the servers, every device counts as a server of its own"
        if differ
        else "a NIC counts as failed where that of any group's device at its place has"
    )
    raise TopologyError(
        f"nothing can go round the NICs of axis positions {failed}, which have failed by "
        f"nic_bandwidths, with these axis_index_groups: {why}. Give the NICs a rate, or use groups "
        "of which each has a working NIC in every server, at the same place."
    )


def fit_to_groups(
    topology: Topology, axis_size: int, groups: tuple[tuple[int, ...], ...] | None
) -> tuple[Topology, tuple[int, ...]]:
    """The topology of one group of an axis, and the server-major number of each of its positions.

    All groups of a call are planned with one topology; where they lie differently in the servers,
    or unequally, every device counts as a server of its own. Where NICs differ, those at the same
    place of two groups count as the slower of the two.
    """
    rank_of = topology.placement or tuple(range(axis_size))
    if groups is None:
        return dataclasses.replace(topology, placement=None), rank_of
    labels = np.array(rank_of)[np.array(groups)] // topology.devices_per_server
    at_these_rates = functools.partial(dataclasses.replace, topology, nic_bandwidths=None)
    fitted = _from_labels(at_these_rates, labels)
    size = labels.shape[1]
    group_ranks = fitted.placement or tuple(range(size))
    nics = topology.nic_bandwidths
    if nics is not None:
        slowest = np.zeros(size)
        by_position = np.array(nics)[np.array(rank_of)]
        slowest[list(group_ranks)] = by_position[np.array(groups)].min(axis=0)
        _check_ways(slowest.reshape(fitted.servers, -1), by_position, differ=_differ(labels))
        fitted = dataclasses.replace(fitted, nic_bandwidths=tuple(slowest.tolist()))
    return dataclasses.replace(fitted, placement=None), group_ranks
