"""When the stages of a plan run, in lock step: its transfers played, for statistics and pictures.

All devices wait for each other between steps. Step u runs the balance of stage u, the scale-out of
stage u - 1 and the redistribution of stage u - 2. NICs and the fabric inside servers work side by
side, each server balances before it redistributes, and everything takes a start-up and as long as
its busiest device: its rows, sent or received, at its rate. Rows between devices of one server fill
the time in which its fabric has nothing else to do.

"direct" sends at once: nothing keeps devices in step. Each device posts its transfers one by one,
each after the topology's `transfer_overhead`, and goes on sending meanwhile. The pieces of
"balanced", "relay" and "rails" are stages like others here, although nobody waits for everybody
between them, and posting is left out.

`Plan.predicted_time` is not this. It is had without listing transfers, by sums over server pairs,
includes planning, and adds what senders that meet at a receiver lose where nothing is staged.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from fastjax import scheduler_traits
from fastjax.schedule.transfers import BALANCE, LOCAL, PHASES, REDISTRIBUTE, SCALE_OUT
from fastjax.schedule.views import Schedule


@dataclasses.dataclass(frozen=True)
class Steps:
    """When steps are.

    Attributes:
      start: seconds at which each begins, and at which the last ends; shape (stages + 3,).
      rows: by phase: rows of the busiest device in each stage; between servers, those that the
        fastest NIC moves in that time; shape (stages,).
      seconds: by phase: how long those take; shape (stages,).
      end: seconds at which rows that stay inside servers are done too.
    """

    start: np.ndarray
    rows: dict[int, np.ndarray]
    seconds: dict[int, np.ndarray]
    end: float

    def begin(self, phase: int, stage: ArrayLike) -> np.ndarray:
        """Seconds at which that phase of that stage begins."""
        return self.start[np.asarray(stage) + phase - BALANCE]


@dataclasses.dataclass(frozen=True)
class Shares:
    """What each server does in each stage of a phase, by the other server that it is about.

    The server is the one that sends, or inside which rows move. The other one is where they are
    going, or, for redistribution, where they come from. All arrays have one entry for each.

    Attributes:
      stage, server, other: which.
      share: of the rows that the server moves in this stage; those of one stage sum to 1.
      below: the shares of the other servers before this one, summed.
      seconds: how long the server's busiest device takes for the stage.
    """

    stage: np.ndarray
    server: np.ndarray
    other: np.ndarray
    share: np.ndarray
    below: np.ndarray
    seconds: np.ndarray


def steps_of(plan: Schedule) -> Steps:
    """The steps of a plan's stages."""
    rows, of_server = {}, {}
    for phase in (LOCAL, *PHASES):
        load = _load(plan, phase)
        rows[phase] = _in_rows(plan, phase, load.rows).max(axis=(0, 2), initial=0)
        of_server[phase] = _by_server(plan, _seconds(plan, phase, load))
    seconds = {phase: of_server[phase].max(axis=1, initial=0) for phase in PHASES}
    start, busy = (_at_once if _is_at_once(plan) else _in_step)(plan, of_server)
    inside = busy + of_server[LOCAL][0]
    return Steps(start, rows, seconds, float(max(start[-1], inside.max())))


def _in_step(plan: Schedule, of_server: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """When steps start, and how long the fabric inside each server is busy."""
    stages = plan.num_stages
    inside = np.zeros((stages + 2, plan.topology.servers))
    inside[:stages] += of_server[BALANCE]
    inside[2:] += of_server[REDISTRIBUTE]
    lasting = inside.max(axis=1)
    between = slice(1, stages + 1)
    lasting[between] = np.maximum(lasting[between], of_server[SCALE_OUT].max(axis=1, initial=0))
    return np.concatenate([[0.0], np.cumsum(lasting)]), inside.sum(axis=0)


def _at_once(plan: Schedule, of_server: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The same, for plans that send everything at once."""
    out = float(of_server[SCALE_OUT].max(initial=0))
    return np.array([0.0, 0.0, out, out]), np.zeros(plan.topology.servers)


def shares_of(plan: Schedule, phase: int) -> Shares:
    """What each server does in the stages of one phase."""
    local, servers = plan.topology.devices_per_server, plan.topology.servers
    moved = _moved(plan, phase)
    stage = moved["stage"].astype(np.int64)
    server = moved["src"] // local
    other = moved["origin" if phase == REDISTRIBUTE else "target"] // local
    key = (stage * servers + server) * servers + other
    groups, index = np.unique(key, return_inverse=True)
    rows = np.bincount(index, weights=moved["rows"], minlength=len(groups))
    pairs, pair = np.unique(groups // servers, return_inverse=True)
    share = rows / np.bincount(pair, weights=rows, minlength=len(pairs))[pair]
    before = np.cumsum(share) - share
    first = np.searchsorted(groups // servers, pairs)
    ends = ("src",) if phase == SCALE_OUT else ("src", "dst")
    seconds = _by_server(plan, _seconds(plan, phase, _load(plan, phase, ends)))
    which = pairs[pair]
    return Shares(
        which // servers,
        which % servers,
        groups % servers,
        share,
        before - before[first][pair],
        seconds[which // servers, which % servers],
    )


@dataclasses.dataclass(frozen=True)
class _Load:
    """What each device sends or receives in each stage; shape (ends, stages, devices)."""

    rows: np.ndarray
    transfers: np.ndarray


def _is_at_once(plan: Schedule) -> bool:
    return plan.num_stages == 1 and scheduler_traits.ALL[plan.scheduler].single_stage


def _moved(plan: Schedule, phase: int) -> np.ndarray:
    transfers = plan.transfers
    return transfers[(transfers["phase"] == phase) & (transfers["src"] != transfers["dst"])]


def _load(plan: Schedule, phase: int, ends: tuple[str, ...] = ("src", "dst")) -> _Load:
    """The load of a phase; rows that stay inside servers are of no stage, so all of one."""
    moved = _moved(plan, phase)
    staged = phase != LOCAL
    shape = (len(ends), plan.num_stages if staged else 1, plan.topology.num_devices)
    rows, transfers = np.zeros((2, *shape), np.int64)
    stage = moved["stage"] if staged else np.zeros(len(moved), np.int64)
    for i, end in enumerate(ends):
        np.add.at(rows[i], (stage, moved[end]), moved["rows"])
        np.add.at(transfers[i], (stage, moved[end]), 1)
    return _Load(rows, transfers)


def _in_rows(plan: Schedule, phase: int, rows: np.ndarray) -> np.ndarray:
    """Those rows; between servers, the rows of the fastest NIC that take as long."""
    nics = plan.topology.nic_bandwidths
    if phase != SCALE_OUT or nics is None:
        return rows
    never = np.where(rows > 0, np.inf, 0.0)
    return np.divide(rows * max(nics), nics, out=never, where=np.array(nics) > 0)


def _seconds(plan: Schedule, phase: int, load: _Load) -> np.ndarray:
    """How long each device takes, in its busier direction; shape (stages, devices)."""
    topology = plan.topology
    starts = np.minimum(load.transfers, 1)
    if phase != SCALE_OUT:
        seconds = load.rows * (plan.row_bytes / topology.scale_up_bandwidth)
        return (seconds + starts * topology.scale_up_latency).max(axis=0)
    fastest = max(topology.nic_bandwidths or (topology.scale_out_bandwidth,))
    seconds = _in_rows(plan, phase, load.rows) * (plan.row_bytes / fastest)
    if _is_at_once(plan):
        posting = load.transfers * topology.transfer_overhead
        first = starts * topology.transfer_overhead
        of_one = seconds / np.maximum(load.transfers, 1)
        seconds = np.maximum(seconds + first, posting + of_one)
    return (seconds + starts * topology.scale_out_latency).max(axis=0)


def _by_server(plan: Schedule, seconds: np.ndarray) -> np.ndarray:
    """How long the busiest device of each server takes; shape (stages, servers)."""
    topology = plan.topology
    return seconds.reshape(-1, topology.servers, topology.devices_per_server).max(axis=2)


__all__ = ["Shares", "Steps", "shares_of", "steps_of"]
