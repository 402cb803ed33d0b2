"""What a plan says, to the modules that draw, explain or simulate one.

`fastjax.Plan` draws and explains itself, so it imports the modules that do. Those name what they
read of it, and of a simulated exchange, here, and import neither it nor
`fastjax.simulation.Timeline`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastjax.topology import Topology

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)
PHASES = ("local", "balance", "scale-out", "redistribute")

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


class Schedule(Protocol):
    """A `fastjax.Plan`, which documents the members."""

    @property
    def traffic(self) -> np.ndarray: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def scheduler(self) -> str: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def matchings(self) -> tuple[np.ndarray, np.ndarray]: ...
    @property
    def transfers(self) -> np.ndarray: ...
    def lower_bound(self) -> float: ...
    def predicted_time(self) -> float: ...
    def planning_time(self) -> float: ...


class TimedExchange(Protocol):
    """A `fastjax.simulation.Timeline`, which documents the members."""

    @property
    def topology(self) -> Topology: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def scheduler(self) -> str: ...
    @property
    def fabric(self) -> object: ...
    @property
    def messages(self) -> np.ndarray: ...
    @property
    def completion_time(self) -> float: ...
    @property
    def planning_time(self) -> float: ...
    @property
    def lower_bound(self) -> float: ...
    def busy(self, link: str) -> np.ndarray: ...
    def rates(self, link: str) -> np.ndarray: ...
