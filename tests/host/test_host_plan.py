"""Plans on the host: read backwards, begun with another, explained, and of odd sizes."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from plan_problems import SCHEDULERS, decode_table, problems, scheduled, server_matrix

from fastjax import Topology, make_plan, traffic
from fastjax.schedule import BALANCE, LOCAL, REDISTRIBUTE, SCALE_OUT

ROW = 4096


def backwards(transfers, num_stages):
    """The same transfers read backwards: those of the transposed traffic."""
    back = transfers[::-1].copy()
    names = transfers.dtype.names
    for one, other in (("src", "dst"), ("origin", "target"), ("src_row", "dst_row")):
        if one in names:
            back[one], back[other] = back[other].copy(), back[one].copy()
    back["phase"] = np.array([LOCAL, REDISTRIBUTE, SCALE_OUT, BALANCE])[back["phase"]]
    back["stage"] = np.where(back["phase"] == LOCAL, -1, num_stages - 1 - back["stage"])
    return back


@hypothesis.given(st.sampled_from(SCHEDULERS), problems(largest=500))
def test_transposed_plans_are_the_plan_read_backwards(scheduler, problem):
    plan = scheduled(problem, scheduler)
    back = plan.transpose()
    np.testing.assert_array_equal(back.traffic, plan.traffic.T)
    np.testing.assert_array_equal(back.transfers, backwards(plan.transfers, plan.num_stages))
    assert (back.scheduler, back.num_stages) == (plan.scheduler, plan.num_stages)
    assert back.predicted_time() == plan.predicted_time()
    np.testing.assert_array_equal(back.transpose().transfers, plan.transfers)
    np.testing.assert_array_equal(back.transpose().traffic, plan.traffic)
    assert not back.transfers.flags.writeable
    assert not back.traffic.flags.writeable
    for device in range(plan.topology.num_devices):
        words = plan.stage_table(device)
        there, other = (decode_table(each)[3] for each in (words, back.stage_table(device)))
        np.testing.assert_array_equal(other, backwards(there, plan.num_stages))
        np.testing.assert_array_equal(back.transpose().stage_table(device), words)


@hypothesis.given(problem=problems(largest=10**5))
def test_matchings_cover_the_traffic(problem):
    """Each pair of servers gets, from all matchings together, as much as its fullest rail has."""
    plan = scheduled(problem, "fast")
    n, m = plan.topology.servers, plan.topology.devices_per_server
    for made in (plan, plan.transpose()):
        targets, weights = made.matchings
        assert targets.shape == (len(weights), n)
        assert (weights > 0).all()
        carried = np.zeros((n, n), np.int64)
        for matching, weight in zip(targets, weights, strict=True):
            (senders,) = np.nonzero(matching >= 0)
            receivers = matching[senders]
            assert len(set(receivers.tolist())) == len(receivers)
            carried[senders, receivers] += weight
        assert (carried >= -(-server_matrix(made.traffic, n, m) // m)).all()


@pytest.mark.parametrize("scheduler", ["direct", "spreadout", "rails"])
def test_schedulers_without_matchings(scheduler):
    plan = make_plan(traffic.uniform(6, 60), Topology(3, 2), scheduler=scheduler)
    for made in (plan, plan.transpose()):
        targets, weights = made.matchings
        assert (targets.shape, weights.shape) == ((0, 3), (0,))


KINDS = {
    "pair-zipf": lambda devices, rows, seed: traffic.pair_zipf(devices, rows, seed=seed),
    "uniform": lambda devices, rows, seed: traffic.uniform(devices, rows + seed),
    "expert": lambda devices, rows, seed: traffic.expert_popularity(
        devices, rows, shuffle=True, tilt=50.0, seed=seed
    ),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize(("servers", "most"), [(4, 8), (8, 20), (12, 36), (40, 140)])
def test_few_matchings_that_are_hardly_longer_than_the_bound(servers, most, make):
    """Without latency, or with a gibibyte a device, of which a start-up is next to nothing."""
    for seed in range(5 if servers < 40 else 2):
        for rows, latency in ((ROW, 0), (64 * ROW, 0), (64 * ROW, 1e-5)):
            matrix = make(8 * servers, rows, seed)
            topology = Topology(servers, 8, scale_out_latency=latency)
            plan = make_plan(matrix, topology, scheduler="fast", row_bytes=4096)
            rails = -(-server_matrix(matrix, servers, 8) // 8)
            bound = max(rails.sum(axis=0).max(), rails.sum(axis=1).max())
            _, weights = plan.matchings
            assert len(weights) <= most
            assert bound <= weights.sum() <= 1.01 * bound


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_explanations_have_the_figures(scheduler):
    matrix = traffic.pair_zipf(8, 4096)
    plan = make_plan(matrix, Topology(4, 2), scheduler=scheduler)
    first, second, *_ = text = plan.explain().splitlines()
    assert first.startswith(plan.scheduler)
    assert ("chosen by auto" in first) == (scheduler == "auto")
    assert f"{plan.predicted_time() / plan.lower_bound():.3f} x the lower bound" in second
    counted = f"{plan.num_stages} stages from {len(plan.matchings[1])} matchings"
    assert any(counted in line for line in text) == (len(plan.matchings[1]) > 0)
    if scheduler == "auto":
        (taken,) = [line for line in text if line.endswith("<- taken")]
        assert taken.split()[0] == plan.scheduler


def test_explanation_of_a_hot_nic():
    """Device 0 sends 90 of 120 rows that cross; its server's other NIC none."""
    matrix = np.zeros((4, 4), int)
    matrix[0, 2], matrix[2, 0] = 90, 30
    text = make_plan(matrix, Topology(2, 2), scheduler="direct").explain()
    assert "the busiest NIC has 3.00 x the mean device's rows" in text
    assert "balanced over its server's NICs, it would be 1.50 x." in text
    text = make_plan(np.eye(4, dtype=int), Topology(2, 2)).explain()
    assert "No rows cross between servers." in text
