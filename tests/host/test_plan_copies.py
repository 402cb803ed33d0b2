"""Copies and pickles of plans are the same, bit for bit."""

import copy
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
from plan_problems import SCHEDULERS, problems, scheduled

from fastjax import Topology, make_plan, optimal, traffic


def assert_same(plan, other):
    """Bit for bit, and in what they say of themselves."""
    assert other is not plan
    assert repr(other) == repr(plan)
    assert other.topology == plan.topology
    assert other.row_bytes == plan.row_bytes
    assert other.predicted_time() == plan.predicted_time()
    assert other.explain() == plan.explain()
    np.testing.assert_array_equal(other.traffic, plan.traffic)
    assert other.transfers.tobytes() == plan.transfers.tobytes()
    for mine, theirs in zip(plan.matchings, other.matchings, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for device in range(plan.topology.num_devices):
        assert other.stage_table(device).tobytes() == plan.stage_table(device).tobytes()


def assert_copies_are_the_same(plan):
    for each in (plan, plan.transpose()):
        assert_same(each, pickle.loads(pickle.dumps(each)))
        assert_same(each, copy.deepcopy(each))


@hypothesis.given(st.sampled_from(SCHEDULERS), problems(largest=10**4))
def test_copies_of_plans(scheduler, problem):
    assert_copies_are_the_same(scheduled(problem, scheduler))


def test_copies_of_plans_that_were_solved(monkeypatch):
    matrix = traffic.pair_zipf(8, 900)
    plan = make_plan(matrix, Topology(4, 2), scheduler="optimal", row_bytes=4096)
    monkeypatch.setattr(optimal, "solve_stages", None)  # nothing is solved again
    assert_copies_are_the_same(plan)


def test_copies_of_plans_of_unequal_nics():
    topology = Topology(2, 3, nic_bandwidths=(50e9, 0, 25e9, 50e9, 50e9, 1.5), incast_loss=0.75)
    assert_copies_are_the_same(make_plan(traffic.pair_zipf(6, 999), topology, row_bytes=512))
