"""Plans on the host: what is predicted of them, and what they are made of.

That they deliver, what schedulers promise beyond that, and that a plan depends on nothing but its
problem, is checked over random problems in C++ (tests/cpp/planner/schedulers/plan_checks.cc).
"""

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from plan_problems import (
    HEADER_WORDS,
    SCHEDULERS,
    decode_table,
    make_traffic,
    problems,
    scheduled,
    traced_tables,
)

import fastjax
from fastjax import Topology, make_plan


@hypothesis.given(problem=problems())
def test_number_of_stages(problem):
    topology, traffic, _ = problem
    n, size = topology.servers, topology.num_devices
    server = np.arange(size) // topology.devices_per_server
    origin, target = np.nonzero(np.where(server[:, None] == server, 0, traffic))
    assert scheduled(problem, "direct").num_stages == (len(origin) > 0)
    for scheduler in ("balanced", "relay", "rails"):  # in a few pieces
        assert (
            (len(origin) > 0) <= scheduled(problem, scheduler).num_stages <= 8 * (len(origin) > 0)
        )
    assert scheduled(problem, "spreadout").num_stages == len(np.unique((target - origin) % size))
    fast = scheduled(problem, "fast").num_stages
    assert (fast > 0) == (len(origin) > 0)
    # Birkhoff's bound, and 32 more for pipelining, which one device a server has no use for.
    chunks = 32 if topology.devices_per_server > 1 else 0
    assert fast <= n * n - 2 * n + 2 + chunks


def test_predicted_time_of_one_block():
    """By hand: 1000 rows of 8 bytes, 1 us to start and 1 B/ns between servers."""
    rates = {"scale_out_bandwidth": 1e9, "scale_out_latency": 1e-6, "transfer_overhead": 0}
    traffic = np.array([[5, 1000], [0, 7]])
    for scheduler in SCHEDULERS:
        plan = make_plan(traffic, Topology(2, 1, **rates), scheduler=scheduler, row_bytes=8)
        assert plan.predicted_time() - plan.planning_time() == pytest.approx(9e-6)
        assert plan.lower_bound() == pytest.approx(8e-6)
    rates["transfer_overhead"] = 3e-6
    plan = make_plan(traffic, Topology(2, 1, **rates), scheduler="direct", row_bytes=8)
    assert plan.predicted_time() - plan.planning_time() == pytest.approx(12e-6)


@pytest.mark.parametrize("loss", [0, 0.25, 1])
def test_predicted_time_of_senders_that_meet(loss):
    """By hand: device 0 sends 70; if senders took turns, in two stages of 40, that would be 80."""
    topology = Topology(
        3,
        1,
        scale_out_bandwidth=1e9,
        scale_out_latency=0,
        transfer_overhead=0,
        incast_loss=loss,
    )
    traffic = np.array([[0, 30, 40], [10, 0, 10], [40, 20, 0]])
    plan = make_plan(traffic, topology, scheduler="direct", row_bytes=10**6)
    wanted = 0.070 * (1 + loss * 10 / 80)
    assert plan.predicted_time() - plan.planning_time() == pytest.approx(wanted, rel=1e-4)


def test_predicted_time_of_a_pipeline():
    """By hand: device 0 sends 100 rows to device 3, so 50 change rail ahead and 50 behind."""
    topology = Topology(
        2,
        2,
        scale_up_bandwidth=10e9,
        scale_out_bandwidth=1e9,
        scale_up_latency=0.25,
        scale_out_latency=3600,
    )
    traffic = np.zeros((4, 4), int)
    traffic[0, 3] = 100
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=10**9)
    assert plan.num_stages == 1  # starting another stage would take longer than all else
    staged = (5 + 0.25) + (50 + 3600) + (5 + 0.25)
    assert plan.predicted_time() == pytest.approx(staged)
    # 4000 s of local rows in server 0, whose fabric has its balance to do besides.
    traffic[1, 0] = 40000
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=10**9)
    assert plan.predicted_time() == pytest.approx((5 + 0.25) + (4000 + 0.25))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_planner_that_planned_something_else_before(scheduler, shape, rng):
    topology = Topology(*shape)
    tables = traced_tables(topology, scheduler)
    for kind in ("uniform", "zeros", "skewed", "single flow", "sparse", "uniform", "only local"):
        traffic = make_traffic(kind, *shape, 300, rng)
        planned = fastjax.planning_count()
        got = np.asarray(tables(jnp.asarray(traffic.ravel(), jnp.int32)))
        assert fastjax.planning_count() == planned + 1
        # Inside one server, programs know beforehand what "auto" takes.
        same = "direct" if scheduler == "auto" and shape[0] == 1 else scheduler
        plan = make_plan(traffic, topology, scheduler=same, row_bytes=4096)
        for r in range(8):
            header, _, _, entries = decode_table(got[r])
            used = HEADER_WORDS + 16 + 10 * entries.size
            assert header[3] == entries.size
            np.testing.assert_array_equal(got[r][:used], plan.stage_table(r)[:used])


@pytest.mark.parametrize("dtype", ["i1", "u1", ">i4", "u8", "i8"])
def test_any_integer_type_and_layout_of_traffic(dtype):
    wanted = np.arange(16).reshape(4, 4)
    for given in (wanted.astype(dtype), np.asfortranarray(wanted.astype(dtype))):
        plan = make_plan(given, Topology(2, 2))
        assert plan.traffic.dtype == np.int64
        np.testing.assert_array_equal(plan.traffic, wanted)
        np.testing.assert_array_equal(
            plan.transfers, make_plan(wanted.tolist(), Topology(2, 2)).transfers
        )


def test_plan_is_not_changed_from_outside():
    traffic = np.ones((4, 4), int)
    plan = make_plan(traffic, Topology(2, 2))
    before = plan.transfers.copy()
    traffic[:] = 9
    assert plan.traffic.max() == 1
    for array in (plan.traffic, plan.transfers):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    np.testing.assert_array_equal(plan.transfers, before)
    assert plan.transfers is plan.transfers
