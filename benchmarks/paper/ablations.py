"""Plans of `fast` with one of its ideas left out, as transfers."""

from __future__ import annotations

import dataclasses

import numpy as np

from fastjax import Plan, make_plan
from paper.rails import (
    SCALE_OUT,
    balanced_rails,
    in_order,
    local_transfers,
    staged_transfers,
)


def balance_only(plan: Plan) -> np.ndarray:
    """Balanced as `fast` does, and then sent all at once."""
    moves = plan.transfers.copy()
    moves["stage"][moves["stage"] >= 0] = 0
    return in_order(moves, plan.topology.servers, plan.topology.devices_per_server)


def stages_only(plan: Plan) -> np.ndarray:
    """Stages as short as there are for pairs of devices; nothing is balanced."""
    topology = plan.topology
    server = np.arange(topology.num_devices) // topology.devices_per_server
    crossing = np.where(server[:, None] == server, 0, plan.traffic)
    alone = dataclasses.replace(topology, servers=topology.num_devices, devices_per_server=1)
    staged = make_plan(crossing, alone, scheduler="fast", row_bytes=plan.row_bytes).transfers
    local = local_transfers(plan.traffic, topology.devices_per_server)
    return np.concatenate([local, staged[staged["phase"] == SCALE_OUT]])


def uncut(plan: Plan) -> np.ndarray:
    """Every matching is one stage: neighbouring stages of the same server pairs are joined."""
    moves = plan.transfers.copy()
    joined = matching_of_stages(plan)
    staged = moves["stage"] >= 0
    moves["stage"][staged] = joined[moves["stage"][staged]]
    return in_order(moves, plan.topology.servers, plan.topology.devices_per_server)


def matching_of_stages(plan: Plan) -> np.ndarray:
    """Which matching each stage was cut from, counted as they are used.

    A stage begins another one where a server sends to another server than it last did, or receives
    from another one.
    """
    n, m = plan.topology.servers, plan.topology.devices_per_server
    out = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    peers = np.full((plan.num_stages, 2 * n), -1)
    src, dst = out["src"] // m, out["dst"] // m
    peers[out["stage"], src], peers[out["stage"], n + dst] = dst, src
    found, last = [], np.full(2 * n, -1)
    for now in peers:
        other = bool(((now >= 0) & (last >= 0) & (now != last)).any())
        found.append((found[-1] if found else 0) + other)
        last = now if other else np.where(now >= 0, now, last)
    return np.array(found, np.int64)


def any_rows(plan: Plan) -> np.ndarray:
    """The plan's own stages, but rails balanced without regard to which rows need move least."""
    topology, traffic = plan.topology, plan.traffic
    n, m = topology.servers, topology.devices_per_server
    rails = balanced_rails(traffic, n, m)
    out = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    carried = np.zeros((n, n, m, plan.num_stages), np.int64)
    ends = [out[end] // m for end in ("src", "dst")]
    np.add.at(carried, (*ends, out["src"] % m, out["stage"]), out["rows"])
    # A rail with fewer rows than there has less in its last stages, one with more has more in the
    # last one of its pair.
    lengths = rails.lengths()[..., None]
    used = np.asarray(carried.any(axis=2))
    behind = np.cumsum(used[..., ::-1], axis=2)[..., ::-1] - used
    ends = np.where(behind[:, :, None] > 0, np.minimum(carried.cumsum(axis=3), lengths), lengths)
    quotas = np.diff(ends, axis=3, prepend=0).reshape(n * n * m, plan.num_stages)
    return staged_transfers(traffic, rails, quotas)
