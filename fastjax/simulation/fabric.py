"""How a simulated fabric behaves, beyond the rates and start-ups of a topology."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
import operator
from typing import Any

from fastjax.errors import ArgumentError, OptionError
from fastjax.topology import Topology

SYNCHRONIZATIONS = ("credit", "barrier", "free", "window")
"""How stages follow each other.

"credit": a device sends for a stage when it has sent for the one before, and the device that it
sends to has received for that; about so it is between GPUs. "window": when the same is true of the
stage four before, so that four are in flight and their start-ups overlap, while what one device
sends to another still goes in order; so it is between CPU hosts. "barrier": when the stage before
is over everywhere. "free": when it has sent for the stage before, whatever receivers do.
"""

COUNTS = ("shares", "senders")
"""How senders that meet at a NIC are counted.

"shares": by what they can send: one that sends to k others at once is one k-th of a sender at each.
"senders": every one that sends there is one, whomever else it sends to.
"""

_MOST_SENDERS = 2**20
_MOST_TIMES = 2**20


@dataclasses.dataclass(frozen=True)
class Incast:
    """The share of a NIC's rate that remains where several senders meet at it (incast).

    By shares, where everybody sends evenly to everybody, each receiver has one sender's worth, and
    nothing is lost. Literally, by senders, all of them meet at each receiver: that favours plans
    whose stages are one-to-one, as shares favour those that send everything at once.

    Args:
      name: its name in results.
      points: numbers of senders, rising, and the share of the rate that they get together, not
        rising; between those, it changes with the logarithm of their number, and beyond the last
        no more. One sender gets all of it.
      source: the source of the numbers.
      count: how senders are counted, one of `COUNTS`: "shares", or, literally, "senders".

    Raises:
      ArgumentError: the points are no such pairs, or senders cannot be counted like that.
    """

    name: str
    points: tuple[tuple[int, float], ...] = ()
    source: str = ""
    count: str = "shares"

    def __post_init__(self) -> None:
        if self.count not in COUNTS:
            known = " or ".join(map(repr, COUNTS))
            raise ArgumentError(f"incast {self.name!r}: count must be {known}, got {self.count!r}.")
        try:
            points = tuple((operator.index(count), float(share)) for count, share in self.points)
            fits = all(
                few < many <= _MOST_SENDERS and 0 < less <= more
                for (few, more), (many, less) in itertools.pairwise(((1, 1.0), *points))
            )
        except (TypeError, ValueError):
            points, fits = (), False
        if not fits:
            raise ArgumentError(
                f"incast {self.name!r}: points must be pairs of a number of senders, from 2 "
                f"to {_MOST_SENDERS} and rising, and the share of the rate that is left, "
                f"above 0 and not rising; got {self.points!r}."
            )
        object.__setattr__(self, "points", points)

    def efficiency(self, senders: int) -> float:
        """The share of the rate that this number of senders gets together."""
        points = ((1, 1.0), *self.points)
        for (few, more), (many, less) in itertools.pairwise(points):
            if senders <= many:
                part = math.log(max(senders, 1) / few) / math.log(many / few)
                return more + (less - more) * part
        return points[-1][1]

    def __str__(self) -> str:
        """Its name, and what it supposes."""
        if not self.points:
            return f"{self.name} (nothing lost)"
        shares = ", ".join(f"{share:.0%} with {count} senders" for count, share in self.points)
        counted = ", each counted as one" if self.count == "senders" else ""
        return f"{self.name} ({shares}{counted})"


def _literal(model: Incast) -> Incast:
    return dataclasses.replace(model, name=f"{model.name}-literal", count="senders")


_PUBLISHED = (
    Incast(
        "infiniband",
        ((8, 0.99), (32, 0.97)),
        "credits; FAST, arXiv 2505.09764: near-even traffic over 400 Gb/s InfiniBand is 1.01 to "
        "1.1 times as fast one-to-one as all at once, 4 x 8 GPUs",
    ),
    Incast(
        "roce",
        ((8, 0.97), (32, 0.6)),
        "DCQCN; SIGCOMM 2015, arXiv 2505.09764: little is lost up to 8 senders, and 1.3 to 2.6 "
        "times the time is taken all at once over 100 Gb/s, 4 x 8 GPUs, skewed",
    ),
)
INCAST = {model.name: model for model in (Incast("none"), *_PUBLISHED, *map(_literal, _PUBLISHED))}
"""Incast by name. The last point of "roce" is a guess inside the range of its source.

"infiniband-literal" and "roce-literal" have the same points, with every sender counted as one.
"""


@dataclasses.dataclass(frozen=True)
class Fabric:
    """How a fabric is simulated.

    Args:
      synchronization: one of `SYNCHRONIZATIONS`. Plans of one stage have nothing to keep in step.
      incast: the loss where senders meet: a name of `INCAST`, or an `Incast`.
      oversubscription: what all NICs together could send, divided by what the core between
        servers carries; 1 for a core that is never short.

    Raises:
      OptionError: there is no such synchronization or incast, or oversubscription is below 1.
    """

    synchronization: str = "credit"
    incast: Incast | str = "none"
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if self.synchronization not in SYNCHRONIZATIONS:
            known = ", ".join(map(repr, SYNCHRONIZATIONS))
            raise OptionError(
                f"synchronization must be one of {known}, got {self.synchronization!r}."
            )
        object.__setattr__(self, "incast", _as_incast(self.incast))
        share = self.oversubscription
        is_number = isinstance(share, numbers.Real) and not isinstance(share, bool)
        if not is_number or not 1 <= share <= _MOST_TIMES:
            raise OptionError(
                f"oversubscription must be a number from 1 to {_MOST_TIMES}, got {share!r}."
            )
        object.__setattr__(self, "oversubscription", float(share))

    def __str__(self) -> str:
        text = f"stages by {self.synchronization}; incast {self.incast}"
        if self.oversubscription > 1:
            text += f"; core oversubscribed {self.oversubscription:g} times"
        return text


def _as_incast(given: Any) -> Incast:
    if isinstance(given, Incast):
        return given
    if not isinstance(given, str) or given not in INCAST:
        known = ", ".join(map(repr, INCAST))
        raise OptionError(
            f"incast must be a fastjax.simulation.Incast or one of {known}, got {given!r}."
        )
    return INCAST[given]


@dataclasses.dataclass(frozen=True)
class Preset:
    """Rates of a cluster, and how it behaves where senders meet.

    Attributes:
      devices_per_server: devices in a server.
      rates: those of `fastjax.Topology`, by name. `incast_loss` is set such that `auto` expects
        of "balanced" about what it loses to `incast` when pair-Zipf traffic between 12 servers and
        more is simulated: a fabric that shares fairly loses less than a real one may, for which
        the topology's own default stands.
      incast: a name of `INCAST`.
      source: the source of the numbers.
      guesses: the numbers that are guesses, and their reasons.
    """

    devices_per_server: int
    rates: dict[str, float]
    incast: str
    source: str
    guesses: str = ""

    def __str__(self) -> str:
        return f"{self.source}; guessed: {self.guesses}" if self.guesses else self.source

    def topology(self, servers: int, **rates: Any) -> Topology:
        """The topology of a cluster of this kind.

        Args:
          servers: their number.
          **rates: of `fastjax.Topology`, or devices_per_server, instead of the preset's own.
        """
        local = rates.pop("devices_per_server", self.devices_per_server)
        return Topology(servers, local, **{**self.rates, **rates})


_H200 = Preset(
    8,
    {"scale_up_bandwidth": 450e9, "scale_out_bandwidth": 50e9, "incast_loss": 0.015},
    "infiniband",
    "NVLink 4, 400 Gb/s InfiniBand for each GPU (arXiv 2505.09764)",
)
_MI300X = Preset(
    8,
    {"scale_up_bandwidth": 448e9, "scale_out_bandwidth": 12.5e9, "incast_loss": 0.07},
    "roce",
    "Infinity Fabric, 100 Gb/s RoCE for each GPU (arXiv 2505.09764)",
)


def _like(
    other: Preset, up: float, out: float, source: str, guesses: str, devices: int = 8
) -> Preset:
    """A cluster whose senders are guessed to meet as those of another."""
    rates = other.rates | {"scale_up_bandwidth": up, "scale_out_bandwidth": out}
    return Preset(devices, rates, other.incast, source, guesses)


PRESETS = {
    "a100": _like(
        _H200, 300e9, 25e9,
        "NVLink 3, 200 Gb/s InfiniBand for each GPU (NVIDIA DGX A100 data sheet)",
        "incast as of h200",
    ),
    "h100": _like(
        _H200, 450e9, 50e9,
        "NVLink 4, 400 Gb/s InfiniBand for each GPU (NVIDIA DGX H100 data sheet)",
        "incast as of h200",
    ),
    "h200": _H200,
    "b200": _like(
        _H200, 900e9, 50e9,
        "NVLink 5, 400 Gb/s InfiniBand for each GPU (NVIDIA DGX B200 data sheet)",
        "incast as of h200",
    ),
    "gb200": _like(
        _H200, 900e9, 50e9,
        "NVLink 5 between 72 GPUs (NVIDIA GB200 NVL72 data sheet)",
        "400 Gb/s InfiniBand for each GPU, and incast, as of h200",
        devices=72,
    ),
    "mi300x": _MI300X,
    "mi325x": _like(
        _MI300X, 448e9, 50e9,
        "Infinity Fabric, seven links of 64 GB/s each way (AMD Instinct MI325X data sheet)",
        "400 Gb/s RoCE for each GPU; incast as of mi300x",
    ),
}  # fmt: skip
"""Clusters by name."""
