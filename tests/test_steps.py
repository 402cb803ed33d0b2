"""Plans in lock step: when steps are, against a model written apart, and against predictions."""

import barrier
import hypothesis
import numpy as np
import pytest
from plan_problems import SCHEDULERS, problems, scheduled, topologies

from fastjax import Topology, make_plan, traffic
from fastjax.schedule.steps import shares_of, steps_of
from fastjax.schedule.transfers import BALANCE, PHASES, REDISTRIBUTE, SCALE_OUT

NO_OVERHEAD = {"scale_up_latency": 0, "scale_out_latency": 0, "transfer_overhead": 0}


def loads(plan, phase, stage):
    """Rows that each device sends and receives, counted one transfer after the other."""
    sent, received = {}, {}
    for t in plan.transfers:
        if (t["phase"], t["stage"]) == (phase, stage) and t["src"] != t["dst"]:
            sent.setdefault(int(t["src"]), []).append(int(t["rows"]))
            received.setdefault(int(t["dst"]), []).append(int(t["rows"]))
    return sent, received


@pytest.mark.parametrize("scheduler", ["fast", "spreadout"])
@hypothesis.settings(max_examples=60)
@hypothesis.given(problem=problems(topologies((1, 5), (1, 4))))
def test_steps_are_those_of_the_barrier_model(scheduler, problem):
    """That of the benchmarks, which shares no code with the package."""
    plan = scheduled(problem, scheduler)
    steps = steps_of(plan)
    assert len(steps.start) == plan.num_stages + 3
    assert (np.diff(steps.start) >= 0).all()
    lockstep, _ = barrier.completion_times(plan)
    assert steps.end == pytest.approx(lockstep, rel=1e-9, abs=0)
    crossing = barrier.cut_into_pieces(
        plan.transfers[plan.transfers["phase"] != 0], plan.topology, plan.row_bytes
    )
    assert steps.start[-1] == pytest.approx(barrier.lockstep_time(crossing), rel=1e-9, abs=0)


@hypothesis.settings(max_examples=60)
@hypothesis.given(problem=problems(topologies((1, 5), (1, 4))))
def test_steps_of_what_is_sent_at_once(problem):
    """Transfers are posted one by one, by each device, while others of its are sent."""
    plan = scheduled(problem, "direct")
    topology, steps = plan.topology, steps_of(plan)
    longest = 0.0
    sent, received = loads(plan, SCALE_OUT, 0)
    for rows in (*sent.values(), *received.values()):
        busy = sum(rows) * plan.row_bytes / topology.scale_out_bandwidth
        overhead = topology.transfer_overhead if rows else 0.0
        seconds = max(busy + overhead, len(rows) * overhead + busy / max(len(rows), 1))
        longest = max(longest, seconds + topology.scale_out_latency)
    if plan.num_stages:
        assert steps.seconds[SCALE_OUT][0] == pytest.approx(longest)
        assert steps.start.tolist() == pytest.approx([0, 0, longest, longest])
    assert steps.end >= longest * (1 - 1e-12)


def test_local_rows_of_an_exchange_that_is_sent_at_once():
    """By hand: 100 s of rows that cross, and 130 s that stay inside server 1."""
    topology = Topology(
        2, 2, scale_up_bandwidth=10, scale_out_bandwidth=1, **NO_OVERHEAD, incast_loss=1
    )
    matrix = np.zeros((4, 4), int)
    matrix[0, 2], matrix[2, 3] = 100, 1300
    steps = steps_of(make_plan(matrix, topology, scheduler="direct"))
    np.testing.assert_allclose(steps.start, [0, 0, 100, 100])
    assert steps.end == 130
    matrix[2, 3] = 900
    assert steps_of(make_plan(matrix, topology, scheduler="direct")).end == 100


def test_rails_by_hand():
    """Device 0 has 64 rows of 1 MiB for device 3, which leave over both rails in chunks of 9."""
    topology = Topology(
        2,
        2,
        scale_up_bandwidth=2**24,
        scale_out_bandwidth=2**20,
        scale_up_latency=0.25,
        scale_out_latency=3,
        transfer_overhead=0,
    )
    matrix = np.zeros((4, 4), int)
    matrix[0, 3] = 64
    plan = make_plan(matrix, topology, scheduler="rails", row_bytes=2**20)
    crossing = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    rails = np.bincount(crossing["src"], weights=crossing["rows"], minlength=2)[:2]
    np.testing.assert_array_equal(rails, [36, 28])
    # One piece: balance, a start-up and 36 to cross, redistribution.
    steps = steps_of(plan)
    np.testing.assert_allclose(steps.start, [0, 2, 41, 43.5])
    assert steps.seconds[BALANCE][0] == 0.25 + 28 / 16
    assert steps.seconds[REDISTRIBUTE][0] == 0.25 + 36 / 16


REALISTIC = {
    "pair-zipf": lambda devices, seed: traffic.pair_zipf(devices, 8192, seed=seed),
    "expert": lambda devices, seed: traffic.expert_popularity(
        devices, 8192, shuffle=True, tilt=50.0, seed=seed
    ),
    "uniform": lambda devices, seed: traffic.uniform(devices, 8192 + seed),
}


@pytest.mark.parametrize("make", REALISTIC.values(), ids=REALISTIC.keys())
@pytest.mark.parametrize("shape", [(2, 8), (4, 8), (8, 4), (12, 2)])
def test_predictions_are_near_what_the_transfers_take(shape, make):
    """By sums over server pairs, instead of every transfer; incast, which no replay sees, apart."""
    within = {
        "direct": 1e-6,
        "spreadout": 1e-6,
        "fast": 0.05,
        "rails": 0.15,
        "balanced": 0.06,
        "relay": 0.1,
    }
    for overheads in ({}, NO_OVERHEAD):
        topology = Topology(*shape, **overheads, incast_loss=0)
        for seed in range(2):
            matrix = make(topology.num_devices, seed)
            for scheduler, tolerance in within.items():
                plan = make_plan(matrix, topology, scheduler=scheduler, row_bytes=4096)
                exchange = plan.predicted_time() - plan.planning_time()
                assert steps_of(plan).end == pytest.approx(exchange, rel=tolerance), scheduler


def test_every_nic_has_its_own_rate():
    """By hand: a stage lasts as long as the slowest NIC in it; rows count at the fastest one's."""
    nics = (1.0, 4.0, 2.0, 4.0)
    topology = Topology(2, 2, nic_bandwidths=nics, scale_up_bandwidth=2.0**40, **NO_OVERHEAD)
    matrix = np.zeros((4, 4), int)
    matrix[0, 2], matrix[3, 1] = 8, 12  # over rails of 1 and 4
    plan = make_plan(matrix, topology, scheduler="fast")
    wanted = 0.0
    for stage in range(plan.num_stages):
        sent, received = loads(plan, SCALE_OUT, stage)
        wanted += max(sum(rows) / nics[d] for ways in (sent, received) for d, rows in ways.items())
    steps = steps_of(plan)
    assert steps.seconds[SCALE_OUT].sum() == pytest.approx(wanted)
    assert steps.rows[SCALE_OUT].sum() == pytest.approx(wanted * 4)
    assert steps.end == pytest.approx(barrier.completion_times(plan)[0])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@hypothesis.settings(max_examples=25)
@hypothesis.given(problem=problems(topologies((2, 4), (1, 3))))
def test_steps_and_shares_of_every_stage(scheduler, problem):
    plan = scheduled(problem, scheduler)
    m, steps = plan.topology.devices_per_server, steps_of(plan)
    for phase in PHASES:
        shares = shares_of(plan, phase)
        found = {}
        for entry in zip(*(getattr(shares, f) for f in ("stage", "server", "other")), strict=True):
            found[tuple(map(int, entry))] = len(found)
        wanted: dict[tuple[int, ...], int] = {}
        for t in plan.transfers[plan.transfers["phase"] == phase]:
            other = t["origin"] if phase == REDISTRIBUTE else t["target"]
            key = (int(t["stage"]), int(t["src"]) // m, int(other) // m)
            wanted[key] = wanted.get(key, 0) + int(t["rows"])
        assert set(found) == set(wanted)
        for stage in range(plan.num_stages):
            sent, received = loads(plan, phase, stage)
            busiest = max([*map(sum, sent.values()), *map(sum, received.values())], default=0)
            assert steps.rows[phase][stage] == busiest
            for server in {key[1] for key in wanted if key[0] == stage}:
                keys = sorted(key for key in wanted if key[:2] == (stage, server))
                total, below = sum(wanted[key] for key in keys), 0.0
                for key in keys:
                    at = found[key]
                    assert shares.share[at] == pytest.approx(wanted[key] / total)
                    assert shares.below[at] == pytest.approx(below, abs=1e-9)
                    below += shares.share[at]
                    assert 0 < shares.seconds[at] <= steps.seconds[phase][stage] * (1 + 1e-12)


def test_seconds_of_a_server_are_those_of_its_busiest_device():
    """One flow of 100 rows out of server 0, 4 times as long as one of 25 out of server 1."""
    matrix = np.zeros((4, 4), int)
    matrix[0, 2], matrix[3, 1] = 100, 25
    topology = Topology(
        2,
        2,
        scale_up_bandwidth=400,
        scale_out_bandwidth=50,
        scale_up_latency=0,
        scale_out_latency=1,
    )
    plan = make_plan(matrix, topology, scheduler="spreadout", row_bytes=10)
    steps, shares = steps_of(plan), shares_of(plan, SCALE_OUT)
    assert plan.num_stages == 1
    np.testing.assert_array_equal(shares.server, [0, 1])
    np.testing.assert_array_equal(shares.seconds, [100 * 10 / 50 + 1, 25 * 10 / 50 + 1])
    np.testing.assert_array_equal(steps.start, [0, 0, 21, 21])
    assert steps.begin(SCALE_OUT, 0) == 0
    assert steps.begin(REDISTRIBUTE, 0) == 21
