"""How long a plan takes if its stages are separated by barriers.

Written apart from the planner's own cost model, from a plan's transfers alone, to judge plans and
that model by. Every fabric moves one piece at a time, and a piece lasts as long as its busiest
device needs, and a start-up:

- each scale-out stage is one piece, on the NICs;
- in each server, the balance that feeds a stage, the redistribution that drains it and all rows
  that stay inside are pieces on its scale-up fabric.

Links are full duplex, and rows that stay on their device cost nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from fastjax import Plan, Topology

LOCAL, BALANCE, SCALE_OUT, REDISTRIBUTE = range(4)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Seconds of every piece; 0 where there is nothing to move."""

    scale_out: np.ndarray  # (stages,)
    balance: np.ndarray  # (stages, servers)
    redistribute: np.ndarray  # (stages, servers)
    local: np.ndarray  # (servers,)


def cut_into_pieces(transfers: np.ndarray, topology: Topology, row_bytes: int) -> Pieces:
    """The pieces of a plan.

    Args:
      transfers: those of one exchange, as `Plan.transfers` has them.
      topology: the fabric.
      row_bytes: bytes of a row.

    Returns:
      Their durations, by stage.
    """
    servers, per_server = topology.servers, topology.devices_per_server
    moves = transfers[transfers["src"] != transfers["dst"]]
    stages = int(transfers["stage"].max(initial=-1)) + 1
    nics = topology.nic_bandwidths or (topology.scale_out_bandwidth,) * topology.num_devices

    def seconds(phase: int, rates: np.ndarray | float) -> np.ndarray:
        """What each device needs for each stage's part of a phase: (stages, devices)."""
        part = moves[moves["phase"] == phase]
        stage = np.zeros_like(part["stage"]) if phase == LOCAL else part["stage"]
        count = 1 if phase == LOCAL else stages
        rows = _busier_direction(part, stage, count, topology.num_devices)
        # A NIC that has failed never gets done.
        needed = np.full(rows.shape, np.inf)
        np.divide(rows * row_bytes, rates, out=needed, where=np.asarray(rates) > 0)
        return np.where(rows > 0, needed, 0.0)

    def in_servers(phase: int) -> np.ndarray:
        each = seconds(phase, topology.scale_up_bandwidth).reshape(-1, servers, per_server)
        return _with_start_up(each.max(axis=2), topology.scale_up_latency)

    out = seconds(SCALE_OUT, np.array(nics)).max(axis=1)
    return Pieces(
        scale_out=_with_start_up(out, topology.scale_out_latency),
        balance=in_servers(BALANCE),
        redistribute=in_servers(REDISTRIBUTE),
        local=in_servers(LOCAL)[0],
    )


def _busier_direction(
    moves: np.ndarray, stage: np.ndarray, stages: int, devices: int
) -> np.ndarray:
    """Rows that each device sends or receives in each stage, whichever are more."""
    sent, received = (
        np.bincount(
            stage.astype(np.int64) * devices + moves[end],
            weights=moves["rows"],
            minlength=stages * devices,
        )
        for end in ("src", "dst")
    )
    return np.maximum(sent, received).reshape(stages, devices)


def _with_start_up(seconds: np.ndarray, latency: float) -> np.ndarray:
    return np.where(seconds > 0, seconds + latency, 0.0)


def lockstep_time(pieces: Pieces) -> float:
    """Seconds if all devices go from step to step together.

    Step u balances for stage u, has stage u - 1 cross and redistributes stage u - 2, and lasts as
    long as the slowest of its fabrics. Local rows use what is left of their server's scale-up time
    in all steps; those that do not fit come at the end.
    """
    stages, servers = pieces.balance.shape
    out = np.zeros(stages + 2)
    out[1 : stages + 1] = pieces.scale_out
    up = np.zeros((stages + 2, servers))
    up[:stages] += pieces.balance
    up[2:] += pieces.redistribute
    steps = np.maximum(out, up.max(axis=1))
    idle = (steps[:, None] - up).sum(axis=0)
    return float(steps.sum() + np.maximum(pieces.local - idle, 0).max())


def overlapped_time(pieces: Pieces) -> float:
    """Seconds if every piece starts as soon as what it waits for is done.

    A stage crosses when the one before it is over everywhere and every server has balanced for it.
    A server balances for all stages first, redistributes each as soon as it has crossed, and moves
    local rows whenever it has nothing else to do.
    """
    stages, servers = pieces.balance.shape
    balanced = np.cumsum(pieces.balance, axis=0)
    clock = balanced[-1] if stages else np.zeros(servers)
    idle = np.zeros(servers)
    crossed = 0.0
    for stage in range(stages):
        crossed = max(crossed, balanced[stage].max()) + pieces.scale_out[stage]
        busy = pieces.redistribute[stage] > 0
        start = np.where(busy, np.maximum(clock, crossed), clock)
        idle += start - clock
        clock = start + pieces.redistribute[stage]
    done = clock + np.maximum(pieces.local - idle, 0)
    return float(max(crossed, done.max()))


def completion_times(plan: Plan) -> tuple[float, float]:
    """Seconds that a plan takes, in lockstep and overlapped."""
    pieces = cut_into_pieces(plan.transfers, plan.topology, plan.row_bytes)
    return lockstep_time(pieces), overlapped_time(pieces)


def is_one_to_one(plan: Plan) -> bool:
    """Whether a device sends to one device at most in each stage, and receives from one at most.

    Barriers mean little otherwise: the model knows nothing of many senders at one receiver.
    """
    out = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    flows = np.unique(np.stack([out["stage"], out["src"], out["dst"]]), axis=1)
    senders, receivers = flows[[0, 1]], flows[[0, 2]]
    return all(np.unique(ends, axis=1).shape == ends.shape for ends in (senders, receivers))
