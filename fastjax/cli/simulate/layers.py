"""What a layer's dispatch and combine cost with a scheduler, deduplicated and not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.chunking import prices
from fastjax.chunking.resources import Parts
from fastjax.schedule.transfers import SCALE_OUT
from fastjax.simulation import Fabric, simulate_transfers
from fastjax.traffic import LayerTraffic


class RowBytes(NamedTuple):
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
    """A dispatch or a combine, or an exchange of them.

    Attributes:
      seconds: that it takes, without planning.
      over_nics: bytes that cross from server to server.
      inside: bytes that move between devices of a server, staging included.
    """

    seconds: float = 0.0
    over_nics: int = 0
    inside: int = 0

    def __add__(self, other: Way) -> Way:
        return Way(
            self.seconds + other.seconds,
            self.over_nics + other.over_nics,
            self.inside + other.inside,
        )


_NOTHING = Way()


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer simulated.

    Attributes:
      asked: the scheduler that was asked for.
      taken: the one that planned the crossing between servers.
      deduplicated: whether a token crosses once to each server.
      planning: seconds of planning, by the cost model; the way back uses the same plan.
      out: the crossing on the way to the experts.
      copies: the exchange inside servers that follows it.
      sums: the exchange inside servers on the way back.
      back: the crossing that follows it.
    """

    asked: str
    taken: str
    deduplicated: bool
    planning: float
    out: Way = _NOTHING
    copies: Way = _NOTHING
    sums: Way = _NOTHING
    back: Way = _NOTHING

    @property
    def dispatch(self) -> Way:
        """The way to the experts: its second exchange begins when the first is over."""
        return self.out + self.copies

    @property
    def combine(self) -> Way:
        """The way back, likewise."""
        return self.sums + self.back

    @property
    def seconds(self) -> float:
        """Planning, dispatch and combine."""
        return self.planning + self.dispatch.seconds + self.combine.seconds

    def parts(self, experts: float, *, planned: bool = True) -> Parts:
        """The same as a chunk of a layer, with the seconds that its experts take."""
        ways = (self.out, self.copies, self.sums, self.back)
        out, copies, sums, back = (way.seconds for way in ways)
        planning = self.planning if planned else 0.0
        return Parts(planning, out, copies, experts, sums, back)


def each_choice(
    scheduler: str, layer: LayerTraffic, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Layer:
    """A row for each choice, straight to the device of its expert."""
    plan = fastjax.make_plan(layer.each, topology, scheduler=scheduler, row_bytes=size.row)
    there, back = (_way(p, size.row, fabric) for p in (plan, plan.transpose()))
    ways = (
        {"copies": there, "sums": back} if topology.servers == 1 else {"out": there, "back": back}
    )
    return Layer(scheduler, plan.scheduler, False, plan.planning_time(), **ways)


def once(
    scheduler: str, layer: LayerTraffic, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Layer:
    """A row for each server that a token goes to, and then one for each choice inside servers."""
    plan = fastjax.make_plan(layer.crossing, topology, scheduler=scheduler, row_bytes=size.crossing)
    # Each server's own exchange, which `fastjax.moe` does all at once.
    m, own = topology.devices_per_server, scheduling.FALLBACK
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None)
    blocks = (layer.inside[i : i + m, i : i + m] for i in range(0, topology.num_devices, m))
    inside = [fastjax.make_plan(b, one, scheduler=own, row_bytes=size.row) for b in blocks]
    return Layer(
        scheduler,
        plan.scheduler,
        True,
        plan.planning_time() + max(p.planning_time() for p in inside),
        out=_way(plan, size.crossing, fabric),
        copies=_together(inside, size.row, fabric),
        sums=_together([p.transpose() for p in inside], size.row, fabric),
        back=_way(plan.transpose(), size.row, fabric),
    )


def forwarded(
    choices: np.ndarray, experts: int, topology: fastjax.Topology, fabric: Fabric, size: RowBytes
) -> Layer:
    """A row for each server that a token goes to, handed on there, as DeepEP does it.

    It crosses over its device's own NIC to the device of the same place, which hands it on, once to
    each device that wants it. Nothing is balanced or planned. Devices hand on as rows come, so that
    each way takes as long as the longer of its two exchanges: a lower bound of what it can take.
    """
    n, m = topology.servers, topology.devices_per_server
    crossing, inside = np.zeros((2, n * m, n * m), np.int64)
    for device, chosen in enumerate(choices):
        owner = np.where(chosen < 0, n * m, chosen // (experts // (n * m)))
        wants = np.zeros((len(chosen), n * m + 1), bool)  # the last: choices of none
        np.put_along_axis(wants, owner, True, 1)
        here = wants[:, :-1].reshape(len(chosen), n, m)
        at = np.arange(n) * m + device % m
        crossing[device, at] = here.any(2).sum(0)
        crossing[device, device] = 0
        inside.reshape(n * m, n, m)[at, np.arange(n)] += here.sum(0)
    traffic = LayerTraffic(crossing, crossing, inside, 0, n)
    found = once(scheduling.FALLBACK, traffic, topology, fabric, size)

    def together(across: Way, here: Way) -> Way:
        return dataclasses.replace(across + here, seconds=max(across.seconds, here.seconds))

    out, back = together(found.out, found.copies), together(found.back, found.sums)
    return dataclasses.replace(found, out=out, copies=_NOTHING, sums=_NOTHING, back=back)


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
