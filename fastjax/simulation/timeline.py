"""The timeline of a simulated exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastjax import plot
from fastjax.errors import ArgumentError
from fastjax.schedule import SCALE_OUT, TRANSFER_DTYPE
from fastjax.simulation.fabric import Fabric
from fastjax.topology import Topology

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TIMED_DTYPE = np.dtype([*TRANSFER_DTYPE.descr, ("start", "f8"), ("end", "f8")])
"""Fields of `Timeline.transfers`: those of `Plan.transfers`, and seconds.

Transfers of a message have its start and end. Rows that stay on their device take no time.
"""

MESSAGE_DTYPE = np.dtype(
    [
        ("phase", "i1"),
        ("stage", "i4"),
        ("src", "i4"),
        ("dst", "i4"),
        ("rows", "i8"),
        ("ready", "f8"),
        ("start", "f8"),
        ("end", "f8"),
    ]
)
"""Fields of `Timeline.messages`: all that one device sends to another in one phase of one stage.

ready: seconds at which nothing has to be waited for any more; start: at which bytes flow, a
start-up later; end: at which the last one is there. What goes in pieces
(`simulate_transfers(..., pieces=)`) has a line for each.
"""

LINKS = ("scale_up_out", "scale_up_in", "scale_out_out", "scale_out_in")
"""The links of a device: into and out of the fabric of its server, and of its NIC."""


_WORDS = {
    "before": "before the NICs",
    "busy": "that the busiest NIC needs",
    "waiting": "of start-ups and idling",
    "after": "after the NICs",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """A simulated exchange, from `fastjax.simulate`.

    Times are seconds after planning: `planning_time` comes before, `total_time` includes it.

    Attributes:
      topology: the servers, devices and rates.
      row_bytes: bytes of a row.
      scheduler: the plan's scheduler.
      fabric: synchronization of stages, loss where senders meet, oversubscription.
      transfers: those of the plan, with their start and end (`TIMED_DTYPE`).
      messages: rows from one device to another in one phase of a stage (`MESSAGE_DTYPE`).
      completion_time: seconds until the last row is there.
      planning_time: seconds that planning takes before, by the cost model.
      lower_bound: seconds that no schedule can beat, planning left out (`Plan.lower_bound`).
    """

    topology: Topology
    row_bytes: int
    scheduler: str
    fabric: Fabric
    transfers: np.ndarray
    messages: np.ndarray
    completion_time: float
    planning_time: float
    lower_bound: float

    @property
    def total_time(self) -> float:
        """Seconds with planning."""
        return self.planning_time + self.completion_time

    def busy(self, link: str) -> np.ndarray:
        """Seconds that a link of each device would need at its full rate for its bytes.

        Args:
          link: one of `LINKS`.

        Returns:
          Shape (devices,).

        Raises:
          ArgumentError: there is no such link.
        """
        if link not in LINKS:
            known = ", ".join(map(repr, LINKS))
            raise ArgumentError(f"link must be one of {known}; got {link!r}.")
        end, out = ("src" if link.endswith("_out") else "dst"), link.startswith("scale_out")
        moved = self.messages[(self.messages["phase"] == SCALE_OUT) == out]
        rows = np.bincount(moved[end], weights=moved["rows"], minlength=self.topology.num_devices)
        return rows * self.row_bytes / self.rates(link)

    def rates(self, link: str) -> np.ndarray:
        """Bytes/s of one of `LINKS`, of each device; infinite for a NIC that has failed."""
        topology = self.topology
        if link.startswith("scale_up"):
            return np.full(topology.num_devices, topology.scale_up_bandwidth)
        nics = topology.nic_bandwidths or (topology.scale_out_bandwidth,) * topology.num_devices
        return np.where(np.array(nics) > 0, nics, np.inf)

    def limits(self) -> dict[str, float]:
        """Parts of `completion_time`, in seconds.

        Returns:
          "before": until the first byte leaves a NIC; "busy": the time that the busiest NIC, or,
          where nothing crosses servers, the busiest link needs for its bytes; "waiting": the rest
          until the last byte leaves a NIC, start-ups and idling; "after": from then to the end.
        """
        out = self.messages[self.messages["phase"] == SCALE_OUT]
        chosen = out if len(out) else self.messages
        links = LINKS[2:] if len(out) else LINKS[:2]
        if not len(chosen):
            return dict.fromkeys(("before", "busy", "waiting", "after"), 0.0)
        begin, end = float(chosen["start"].min()), float(chosen["end"].max())
        busy = max(float(self.busy(link).max()) for link in links)
        return {
            "before": begin,
            "busy": busy,
            "waiting": end - begin - busy,
            "after": self.completion_time - end,
        }

    def __str__(self) -> str:
        """A few lines for people, with all assumptions."""
        milli = 1e3
        text = f"{self.scheduler}: {self.completion_time * milli:.4g} ms"
        if self.lower_bound > 0:
            text += f", {self.completion_time / self.lower_bound:.3f} x the lower bound"
        text += f"; {self.planning_time * milli:.3g} ms of planning before\n"
        parts = (f"{seconds * milli:.3g} ms {_WORDS[n]}" for n, seconds in self.limits().items())
        return f"{text}{', '.join(parts)}\n{self.fabric}"

    def plot(self, devices: Sequence[int] | None = None) -> Figure:
        """Draws who sends when, with matplotlib (the extra `plot`).

        Each device has a track for each link, out and in; where messages share a link, they are
        drawn side by side. Bars have the colour of their phase, paler the less of their part of the
        link they use; those of NICs say which device is at the other end, where there is room. The
        line before a bar is its start-up. Spans in which no NIC sends are shaded: what moves inside
        servers then is exposed. The numbers beside the tracks are the share of the time that the
        link would need at its full rate. The title says what was assumed of the fabric.

        Args:
          devices: which to show; by default eight, the busiest of all servers in turn.

        Returns:
          The figure.

        Raises:
          ArgumentError: there is no such device, or none is given.
          UnsupportedError: matplotlib is not installed.
        """
        return plot.plot_timeline(self, devices)
