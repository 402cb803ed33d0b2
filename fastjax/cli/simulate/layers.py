"""What a layer's dispatch and combine cost with a scheduler, deduplicated and not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

import fastjax
from fastjax import chunking, scheduler_traits
from fastjax.chunking import prices
from fastjax.schedule.transfers import SCALE_OUT
from fastjax.simulation import Fabric, simulate_transfers
from fastjax.traffic import LayerTraffic


@dataclasses.dataclass(frozen=True)
class RowBytes:
    """Bytes of rows.

    Attributes:
      row: of one that goes to an expert, or comes back.
      crossing: of one that crosses once, with the numbers of its experts and their weights.
    """

    row: int
    crossing: int


def row_bytes(row: int, top_k: int, experts_of_server: int) -> RowBytes:
    """Bytes of rows whose weights are of 4 bytes, as `fastjax.moe` packs them."""
    return RowBytes(row, prices.crossing_row_bytes(row, top_k, experts_of_server))


@dataclasses.dataclass(frozen=True)
class Way:
    """A dispatch or a combine.

    Attributes:
      seconds: that it takes, without planning.
      over_nics: bytes that cross from server to server.
      inside: bytes that move between devices of a server, staging included.
    """

    seconds: float
    over_nics: int
    inside: int

    def __add__(self, other: Way) -> Way:
        return Way(
            self.seconds + other.seconds,
            self.over_nics + other.over_nics,
            self.inside + other.inside,
        )


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer simulated.

    Attributes:
      asked: the scheduler that was asked for.
      taken: the one that planned what crosses.
      deduplicated: whether a token crosses once to each server.
      planning: seconds of planning, by the cost model; the way back uses the same plan.
      dispatch: the way to the experts.
      combine: the way back.
    """

    asked: str
    taken: str
    deduplicated: bool
    planning: float
    dispatch: Way
    combine: Way

    @property
    def seconds(self) -> float:
        """Planning, dispatch and combine."""
        return self.planning + self.dispatch.seconds + self.combine.seconds


def each_choice(
    scheduler: str, layer: LayerTraffic, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Layer:
    """A row for each choice, straight to the device of its expert."""
    plan = fastjax.make_plan(layer.each, topology, scheduler=scheduler, row_bytes=size.row)
    there, back = (_way(p, size.row, fabric) for p in (plan, plan.transpose()))
    return Layer(scheduler, plan.scheduler, False, plan.planning_time(), there, back)


def once(
    scheduler: str, layer: LayerTraffic, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Layer:
    """A row for each server that a token goes to, and then one for each choice inside servers.

    One follows the other: the exchange inside a server begins when all that crosses has landed.
    """
    parts = parts_of_once(scheduler, layer, topology, fabric, size)
    there, back = (crossing + inside for crossing, inside in (parts.dispatch, parts.combine))
    return Layer(scheduler, parts.taken, True, parts.planning, there, back)


@dataclasses.dataclass(frozen=True)
class Parts:
    """What crosses and what happens inside servers, by itself.

    Attributes:
      taken: the scheduler that planned what crosses.
      planning: seconds of planning both.
      dispatch: crossing, and inside servers.
      combine: crossing, and inside servers, which comes first here.
    """

    taken: str
    planning: float
    dispatch: tuple[Way, Way]
    combine: tuple[Way, Way]


def parts_of_once(
    scheduler: str, layer: LayerTraffic, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Parts:
    """The same, each part by itself."""
    plan = fastjax.make_plan(layer.crossing, topology, scheduler=scheduler, row_bytes=size.crossing)
    inside = _inside(layer, topology, size.row)
    back = [p.transpose() for p in inside]
    return Parts(
        plan.scheduler,
        plan.planning_time() + max(p.planning_time() for p in inside),
        (_way(plan, size.crossing, fabric), _together(inside, size.row, fabric)),
        (_way(plan.transpose(), size.row, fabric), _together(back, size.row, fabric)),
    )


def in_lanes(
    scheduler: str,
    layer: LayerTraffic,
    topology: fastjax.Topology,
    fabric: Fabric,
    size: RowBytes,
    *,
    experts: float,
    deduplicate: bool,
) -> chunking.Parts:
    """What a chunk takes, with seconds that its experts take."""
    if deduplicate:
        parts = parts_of_once(scheduler, layer, topology, fabric, size)
        (out, copies), (back, sums) = parts.dispatch, parts.combine
        moves = out.seconds, copies.seconds, experts, sums.seconds, back.seconds
        return chunking.Parts(parts.planning, *moves)
    found = each_choice(scheduler, layer, topology, fabric, size)
    there, back = found.dispatch.seconds, found.combine.seconds
    if topology.servers == 1:
        return chunking.Parts(found.planning, copies=there, experts=experts, sums=back)
    return chunking.Parts(found.planning, out=there, experts=experts, back=back)


def _inside(layer: LayerTraffic, topology: fastjax.Topology, bytes_: int) -> list[fastjax.Plan]:
    """The plan of each server's own exchange, which `fastjax.moe` does all at once."""
    m = topology.devices_per_server
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None)
    blocks = (
        layer.inside[first : first + m, first : first + m]
        for first in range(0, m * topology.servers, m)
    )
    return [
        fastjax.make_plan(block, one, scheduler=scheduler_traits.FALLBACK, row_bytes=bytes_)
        for block in blocks
    ]


def _together(plans: Sequence[fastjax.Plan], bytes_: int, fabric: Fabric) -> Way:
    """Of exchanges that begin together and do not touch."""
    ways = [_way(plan, bytes_, fabric) for plan in plans]
    return Way(max(way.seconds for way in ways), 0, sum(way.inside for way in ways))


def _way(plan: fastjax.Plan, bytes_: int, fabric: Fabric) -> Way:
    moves = plan.transfers
    seconds = simulate_transfers(
        moves, plan.topology, row_bytes=bytes_, fabric=fabric, name=plan.scheduler
    ).completion_time
    rows = np.where(moves["src"] != moves["dst"], moves["rows"], 0)
    out = moves["phase"] == SCALE_OUT
    return Way(seconds, int(rows[out].sum()) * bytes_, int(rows[~out].sum()) * bytes_)


__all__ = [
    "Layer",
    "Parts",
    "RowBytes",
    "Way",
    "each_choice",
    "in_lanes",
    "once",
    "parts_of_once",
    "row_bytes",
]
