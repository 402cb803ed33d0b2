"""The scheduler "optimal", and how far the others are from it."""

import numpy as np
import pytest

from fastjax import Topology, make_plan, simulate, traffic


def cost(plan):
    """Start-ups and length of a plan's matchings, in rows."""
    topology = plan.topology
    startup = topology.scale_out_latency * topology.scale_out_bandwidth / plan.row_bytes
    _, weights = plan.matchings
    return len(weights) * startup + int(weights.sum())


def generated(servers, skew, seed):
    devices = 8 * servers
    if skew == "expert":
        return traffic.expert_popularity(devices, 4096, shuffle=True, seed=seed)
    return traffic.pair_zipf(devices, 4096, seed=seed)


@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize("skew", ["pair", "expert"])
@pytest.mark.parametrize("row_bytes", [4096, 2**18])
def test_optimal_plans_are_right_and_no_dearer(servers, skew, row_bytes):
    topology = Topology(servers, 8)
    for seed in range(3):
        rows = generated(servers, skew, seed)
        best = make_plan(rows, topology, scheduler="optimal", row_bytes=row_bytes)
        fast = make_plan(rows, topology, scheduler="fast", row_bytes=row_bytes)
        assert best.scheduler == "optimal"
        simulate(best)  # refuses transfers that do not deliver
        assert cost(best) <= cost(fast) * (1 + 1e-6)
        assert cost(fast) <= 1.05 * cost(best)


def test_optimal_without_rows_between_servers():
    rows = np.kron(np.eye(2, dtype=int), np.ones((4, 4), int))
    plan = make_plan(rows, Topology(2, 4), scheduler="optimal")
    assert plan.num_stages == 0
