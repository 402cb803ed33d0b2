"""When the rows of a plan move: its transfers, run by the compiled simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastjax import _core
from fastjax.errors import ArgumentError
from fastjax.schedule.transfers import TRANSFER_DTYPE
from fastjax.schedule.views import Schedule
from fastjax.topology import Topology

SYNCHRONIZATIONS = ("credit", "barrier", "free", "window")
"""How stages follow each other.

"credit": a device sends for a stage when it has sent for the one before, and the device that it
sends to has received for that; about so it is between GPUs. "window": when the same is true of the
stage four before, so that four are in flight and their start-ups overlap, while what one device
sends to another still goes in order; so it is between CPU hosts. "barrier": when the stage before
is over everywhere. "free": when it has sent for the stage before, whatever receivers do.
"""

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

# Of the busiest link's time: what may lie between ends that are put together in exchanges of many
# flows (ffi/simulator/simulator.h).
_RESOLUTION = 1e-3
_PHASES = ("local", "balance", "scale-out", "redistribute")

Progress = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Flows:
    """What was simulated.

    Attributes:
      transfers: those of the plan, with their start and end (`TIMED_DTYPE`).
      messages: what devices send to others, in one piece each (`MESSAGE_DTYPE`).
    """

    transfers: np.ndarray
    messages: np.ndarray

    @property
    def end(self) -> float:
        """Seconds until the last row is there."""
        return float(self.messages["end"].max(initial=0.0))


def simulate_flows(
    transfers: np.ndarray,
    topology: Topology,
    row_bytes: int,
    *,
    synchronization: str,
    balance_first: bool = False,
    pieces: int = 1,
    oversubscription: float = 1.0,
    efficiencies: Sequence[float] = (),
    whole_senders: bool = False,
    progress: Progress | None = None,
) -> Flows:
    """Simulates transfers.

    Args:
      transfers: of `TRANSFER_DTYPE`, contiguous.
      topology: the servers, devices and rates.
      row_bytes: bytes of a row.
      synchronization: one of `SYNCHRONIZATIONS`.
      balance_first: nothing crosses before all balancing is done, everywhere.
      pieces: in how many pieces messages of transfers of one stage go.
      oversubscription: how narrow the core between servers is.
      efficiencies: what is left of a NIC's rate by the number of senders that meet, from one on.
      whole_senders: whether each that sends there counts as one.
      progress: called now and then with the share of messages that have come.

    Raises:
      ArgumentError: a row comes twice, or not at all; or transfers wait for each other.
    """
    found: Any = _core.simulate(
        transfers.view(np.uint8),
        topology.words,
        row_bytes,
        SYNCHRONIZATIONS.index(synchronization),
        balance_first,
        pieces,
        oversubscription,
        efficiencies,
        whole_senders,
        _RESOLUTION,
        progress,
    )
    if isinstance(found, str):
        raise ArgumentError(f"transfers: {found}.")
    records, first, last, number = found
    messages = records.view(MESSAGE_DTYPE)
    if number >= 0:
        stuck = messages[number]
        raise ArgumentError(
            f"transfers wait for each other: among others what device {stuck['src']} sends to "
            f"device {stuck['dst']} in phase {stuck['phase']} ({_PHASES[stuck['phase']]}) of stage "
            f"{stuck['stage']}."
        )
    if progress is not None:
        progress(1.0)
    for shared in (messages, timed := _timed(transfers, messages, first, last)):
        shared.flags.writeable = False
    return Flows(timed, messages)


def simulate_by_barrier(plan: Schedule) -> Flows:
    """A plan whose stages begin when the one before is over everywhere; barriers cost nothing."""
    given = plan.transfers, plan.topology, plan.row_bytes
    return simulate_flows(*given, synchronization="barrier")


def _timed(
    transfers: np.ndarray, messages: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    timed = np.zeros(len(transfers), TIMED_DTYPE)
    for name in TRANSFER_DTYPE.fields or ():
        timed[name] = transfers[name]
    moved = first >= 0
    timed["start"][moved] = messages["start"][first[moved]]
    timed["end"][moved] = messages["end"][last[moved]]
    return timed
