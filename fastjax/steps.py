"""When the stages of a plan run, by the model that `Plan.predicted_time` has.

All devices meet between steps. Step u runs the balance of stage u, the scale-out of stage u - 1 and
the redistribution of stage u - 2, and lasts as long as its busiest device: its rows, sent or
received, at the fabric's bandwidth, after one start-up; a device's rows of both phases that move
inside servers are added up. A plan of one stage that nothing is moved
for, inside servers, has a start-up for each transfer of a device instead: it sends all at once.
Rows that go straight to a device of the same server are no part of this.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fastjax.host_plan import Plan

BALANCE, SCALE_OUT, REDISTRIBUTE = 1, 2, 3
PHASES = {BALANCE: "balance", SCALE_OUT: "scale-out", REDISTRIBUTE: "redistribute"}


@dataclasses.dataclass(frozen=True)
class Steps:
    """When steps are.

    Attributes:
      start: seconds at which each begins, and at which the last ends; shape (stages + 3,).
      rows: by phase: rows of the busiest device in each stage; shape (stages,).
      seconds: by phase: how long those take; shape (stages,).
    """

    start: np.ndarray
    rows: dict[int, np.ndarray]
    seconds: dict[int, np.ndarray]

    def begin(self, phase: int, stage: Any) -> Any:
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


def steps_of(plan: Plan) -> Steps:
    """The steps of a plan's stages."""
    stages, devices = plan.num_stages, plan.topology.num_devices
    rows, seconds = {}, {}
    lasting = np.zeros(stages + 2)
    # What balances one stage and what redistributes another share a step's scale-up links.
    sent, received = np.zeros((2, stages + 2, devices), np.int64)
    for phase in PHASES:
        moved = _moved(plan, phase)
        out, into = _loads(plan, moved, "src"), _loads(plan, moved, "dst")
        load = np.maximum(out, into)
        rows[phase] = load.max(axis=1, initial=0)
        seconds[phase] = _seconds(plan, phase, load, _starts(plan, moved)).max(axis=1, initial=0)
        span = slice(phase - BALANCE, phase - BALANCE + stages)
        if phase == SCALE_OUT:
            lasting[span] = seconds[phase]
        else:
            sent[span] += out
            received[span] += into
    inside = np.maximum(sent, received)
    alone = _seconds(plan, BALANCE, inside, np.minimum(inside, 1)).max(axis=1, initial=0)
    return Steps(np.concatenate([[0.0], np.cumsum(np.maximum(lasting, alone))]), rows, seconds)


def shares_of(plan: Plan, phase: int) -> Shares:
    """What each server does in the stages of one phase."""
    local, servers = plan.topology.devices_per_server, plan.topology.servers
    moved = _moved(plan, phase)
    stage = moved["stage"].astype(np.int64)
    server = moved["src"] // local
    other = moved["origin" if phase == REDISTRIBUTE else "target"] // local
    key = (stage * servers + server) * servers + other
    groups, index = np.unique(key, return_inverse=True)
    rows = np.bincount(index, weights=moved["rows"], minlength=len(groups))
    lanes, lane = np.unique(groups // servers, return_inverse=True)
    share = rows / np.bincount(lane, weights=rows, minlength=len(lanes))[lane]
    before = np.cumsum(share) - share
    first = np.searchsorted(groups // servers, lanes)
    busiest = _loads(plan, moved, "src")
    if phase != SCALE_OUT:
        busiest = np.maximum(busiest, _loads(plan, moved, "dst"))
    load = busiest.reshape(plan.num_stages, servers, local).max(axis=2)
    starts = _starts(plan, moved).reshape((*load.shape, local)).max(axis=2)
    seconds = _seconds(plan, phase, load, starts)
    which = lanes[lane]
    return Shares(
        which // servers,
        which % servers,
        groups % servers,
        share,
        before - before[first][lane],
        seconds[which // servers, which % servers],
    )


def _starts(plan: Plan, moved: np.ndarray) -> np.ndarray:
    """Start-ups that each device waits for in each stage."""
    ones = np.ones(len(moved), np.int64)
    starts = np.maximum(_loads(plan, moved, "src", ones), _loads(plan, moved, "dst", ones))
    moves_inside = np.isin(plan.transfers["phase"], (BALANCE, REDISTRIBUTE)).any()
    return starts if plan.num_stages == 1 and not moves_inside else np.minimum(starts, 1)


def _moved(plan: Plan, phase: int) -> np.ndarray:
    transfers = plan.transfers
    return transfers[(transfers["phase"] == phase) & (transfers["src"] != transfers["dst"])]


def _loads(
    plan: Plan, moved: np.ndarray, end: str, weights: np.ndarray | None = None
) -> np.ndarray:
    """Rows, or other weights, that each device sends or receives in each stage."""
    devices = plan.topology.num_devices
    loads = np.zeros((plan.num_stages, devices), np.int64)
    np.add.at(loads, (moved["stage"], moved[end]), moved["rows"] if weights is None else weights)
    return loads


def _seconds(plan: Plan, phase: int, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    topology = plan.topology
    if phase == SCALE_OUT:
        bandwidth, latency = topology.scale_out_bandwidth, topology.scale_out_latency
    else:
        bandwidth, latency = topology.scale_up_bandwidth, topology.scale_up_latency
    return rows * (plan.row_bytes / bandwidth) + starts * latency


__all__ = [
    "BALANCE",
    "PHASES",
    "REDISTRIBUTE",
    "SCALE_OUT",
    "Shares",
    "Steps",
    "shares_of",
    "steps_of",
]
