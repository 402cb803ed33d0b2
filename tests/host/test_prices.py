"""What `auto` compares: prices beside simulated exchanges, and what is not looked at."""

import numpy as np
import pytest

import fastjax
from fastjax import Topology, make_plan, scheduling, simulate
from fastjax.schedule import SCALE_OUT


@pytest.mark.parametrize("shape", [(2, 8), (4, 8), (12, 2)])
@pytest.mark.parametrize("skewed", [True, False])
def test_predictions_are_near_what_is_simulated(shape, skewed):
    """`auto` compares the one, by sums over server pairs; the other has every message."""
    within = {"direct": 0.02, "fast": 0.05, "balanced": 0.03, "relay": 0.04, "rails": 0.14}
    short = {"direct": 0.06, "fast": 0.17, "balanced": 0.13, "relay": 0.12, "rails": 0.17}
    devices = shape[0] * shape[1]
    for rows in (500, 8192, 50_000):  # start-ups are most of the first, which is short
        traffic = fastjax.traffic.pair_zipf(devices, rows, exponent=0.8 * skewed, seed=1)
        for scheduler, tolerance in within.items():
            topology = Topology(*shape, incast_loss=0)
            plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=4096)
            predicted = plan.predicted_time() - plan.planning_time()
            near = pytest.approx(predicted, rel=short[scheduler] if rows == 500 else tolerance)
            assert simulate(plan).completion_time == near, scheduler


@pytest.mark.parametrize("shape", [(2, 8), (3, 4), (5, 1)])
def test_rounds_of_devices(shape):
    """What is posted at the same time meets at no receiver, be it of one server or of several."""
    topology = Topology(*shape)
    devices, peers = topology.num_devices, (shape[0] - 1) * shape[1]
    even = np.full((devices, devices), 100)
    moves = make_plan(even, topology, scheduler="direct").transfers
    crossing = moves[moves["phase"] == SCALE_OUT]
    rounds = np.array([crossing["dst"][crossing["src"] == device] for device in range(devices)])
    assert rounds.shape == (devices, peers)
    for receivers in rounds.T:
        assert sorted(receivers) == list(range(devices))


@pytest.mark.parametrize("block", [0.3e-6, 1e-6, 2e-6])
def test_what_is_posted_in_rounds(block):
    """By hand: NICs are idle while blocks take less time than posting them."""
    topology = Topology(2, 8, scale_out_latency=0, transfer_overhead=1e-6)
    even = np.full((16, 16), round(block * topology.scale_out_bandwidth))
    took = simulate(make_plan(even, topology, scheduler="direct", row_bytes=1)).completion_time
    assert took == pytest.approx(7 * max(block, 1e-6) + block, rel=1e-6)


def test_rounds_of_servers():
    """Nobody is posted to by all others first, or last."""
    topology = Topology(5, 2)
    plan = make_plan(np.full((10, 10), 100), topology, scheduler="balanced", row_bytes=4096)
    first = plan.transfers[(plan.transfers["phase"] == SCALE_OUT) & (plan.transfers["stage"] == 0)]
    for place in range(4):
        targets = [
            list(dict.fromkeys(first["dst"][first["src"] == device]))[place]
            for device in range(0, 10, 2)
        ]
        assert sorted(targets) == [0, 2, 4, 6, 8]


def test_direct_is_not_planned_where_one_device_receives_much():
    traffic = np.full((16, 16), 100)
    traffic[:, 3] = 5000
    plan = make_plan(traffic, Topology(2, 8), row_bytes=4096)
    names = scheduling.NAMES
    planned = {names[choice[0]]: choice[1] for choice in plan._core.choices()}
    assert planned["balanced"]
    assert not planned["direct"]
