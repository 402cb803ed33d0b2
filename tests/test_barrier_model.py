"""The barrier model that benchmarks judge plans by: examples by hand, and a clock that ticks."""

import types

import barrier
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from barrier import Pieces
from plan_problems import SCHEDULERS, problems, scheduled

from fastjax import Topology, make_plan
from fastjax.schedule.transfers import TRANSFER_DTYPE

# 10 bytes/s inside servers, 1 between them.
SLOW = Topology(
    2,
    2,
    scale_up_bandwidth=10,
    scale_out_bandwidth=1,
    scale_up_latency=0.25,
    scale_out_latency=3,
)


def transfers(*fields):
    """Transfers of phase, stage, src, dst and rows; what block they belong to does not matter."""
    made = np.zeros(len(fields), TRANSFER_DTYPE)
    for i, values in enumerate(fields):
        for name, value in zip(("phase", "stage", "src", "dst", "rows"), values, strict=True):
            made[i][name] = value
    return made


def both_times(moves, topology, row_bytes=1):
    pieces = barrier.cut_into_pieces(moves, topology, row_bytes)
    return barrier.lockstep_time(pieces), barrier.overlapped_time(pieces)


def test_one_stage_by_hand():
    """Device 0 has 100 rows for device 3: half of them change rail ahead, half behind."""
    moves = transfers((1, 0, 0, 1, 50), (2, 0, 0, 2, 50), (2, 0, 1, 3, 50), (3, 0, 2, 3, 50))
    pieces = barrier.cut_into_pieces(moves, SLOW, 1)
    np.testing.assert_allclose(pieces.balance, [[5.25, 0]])
    np.testing.assert_allclose(pieces.scale_out, [53])
    np.testing.assert_allclose(pieces.redistribute, [[0, 5.25]])
    np.testing.assert_allclose(pieces.local, [0, 0])
    assert both_times(moves, SLOW) == pytest.approx((63.5, 63.5))
    assert both_times(moves, SLOW, row_bytes=2) == pytest.approx((123.5, 123.5))


def test_two_chunks_by_hand():
    chunks = [
        [(1, t, 0, 1, 25), (2, t, 0, 2, 25), (2, t, 1, 3, 25), (3, t, 2, 3, 25)] for t in (0, 1)
    ]
    moves = transfers(*chunks[0], *chunks[1])
    # 2.75 to balance the first, 28 for each to cross, 2.75 to redistribute the second.
    assert both_times(moves, SLOW) == pytest.approx((61.5, 61.5))


def test_the_busiest_device_of_a_piece_counts():
    """Sent and received rows go at the same time; several transfers of one device do not."""
    moves = transfers(
        (2, 0, 0, 2, 10), (2, 0, 0, 3, 20), (2, 0, 3, 0, 29), (2, 0, 1, 2, 5), (0, -1, 2, 3, 40)
    )
    pieces = barrier.cut_into_pieces(moves, SLOW, 1)
    np.testing.assert_allclose(pieces.scale_out, [30 + 3])
    np.testing.assert_allclose(pieces.local, [0, 4.25])
    received = transfers((2, 0, 0, 2, 10), (2, 0, 1, 2, 25))
    np.testing.assert_allclose(barrier.cut_into_pieces(received, SLOW, 1).scale_out, [38])


def test_rows_that_stay_on_their_device_cost_nothing():
    moves = transfers((0, -1, 1, 1, 10**9))
    assert both_times(moves, SLOW) == (0, 0)
    assert both_times(transfers(), SLOW) == (0, 0)


def test_local_rows_alone():
    moves = transfers((0, -1, 0, 1, 100), (0, -1, 2, 3, 30))
    assert both_times(moves, SLOW) == pytest.approx((10.25, 10.25))


def test_local_rows_fill_what_is_idle():
    # Lockstep: steps of 5, 20 and 7; server 0 is idle for 20 + 7 of them, server 1 for 5 + 20.
    crossing = {
        "scale_out": np.array([20.0]),
        "balance": np.array([[5.0, 0.0]]),
        "redistribute": np.array([[0.0, 7.0]]),
    }
    fits = Pieces(**crossing, local=np.array([27.0, 25.0]))
    assert barrier.lockstep_time(fits) == 32
    assert barrier.overlapped_time(fits) == 32
    longer = Pieces(**crossing, local=np.array([27.0, 28.5]))
    assert barrier.lockstep_time(longer) == 35.5
    assert barrier.overlapped_time(longer) == 35.5


def test_without_lockstep_the_next_stage_need_not_wait_for_scale_up():
    """Balance for stage 1 takes longer than stage 0 takes to cross."""
    pieces = Pieces(
        scale_out=np.array([10.0, 2.0]),
        balance=np.array([[1.0, 0.0], [12.0, 0.0]]),
        redistribute=np.array([[0.0, 4.0], [0.0, 4.0]]),
        local=np.zeros(2),
    )
    # Steps of 1, 12, 4 and 4.
    assert barrier.lockstep_time(pieces) == 21
    # Stage 1 crosses from 13, when it is balanced, to 15, when the redistribution of stage 0, begun
    # at 11, is over too.
    assert barrier.overlapped_time(pieces) == 19


def test_every_nic_has_its_own_rate():
    # A stand-in: a Topology need not accept NICs that differ for the model to know of them.
    uneven = types.SimpleNamespace(
        servers=2,
        devices_per_server=2,
        num_devices=4,
        nic_bandwidths=(1.0, 4.0, 1.0, 0.0),
        scale_up_bandwidth=1.0,
        scale_up_latency=0.0,
        scale_out_latency=0.0,
    )
    moves = transfers((2, 0, 0, 2, 8), (2, 1, 1, 2, 8), (2, 2, 1, 0, 0), (2, 3, 1, 3, 1))
    pieces = barrier.cut_into_pieces(moves, uneven, 1)
    np.testing.assert_array_equal(pieces.scale_out, [8, 8, 0, np.inf])
    faster = transfers((2, 0, 1, 0, 8), (2, 0, 1, 0, 4))
    np.testing.assert_array_equal(barrier.cut_into_pieces(faster, uneven, 1).scale_out, [12])
    np.testing.assert_array_equal(barrier.cut_into_pieces(faster[:0], uneven, 1).scale_out, [])


durations = st.integers(0, 9).map(float)


@st.composite
def random_pieces(draw):
    stages, servers = draw(st.integers(0, 5)), draw(st.integers(1, 3))

    def array(*shape):
        return draw(hnp.arrays(float, shape, elements=durations))

    return Pieces(array(stages), array(stages, servers), array(stages, servers), array(servers))


def ticking_lockstep(pieces):
    """Counts whole seconds."""
    stages, servers = pieces.balance.shape
    left = pieces.local.copy()
    now = 0
    for step in range(stages + 2):
        out = pieces.scale_out[step - 1] if 0 < step <= stages else 0
        up = np.zeros(servers)
        if step < stages:
            up += pieces.balance[step]
        if step >= 2:
            up += pieces.redistribute[step - 2]
        while out > 0 or up.max() > 0:
            out -= 1
            left[up <= 0] -= 1
            up -= 1
            now += 1
    return now + max(left.max(), 0)


def ticking_overlapped(pieces):
    """Counts whole seconds; each fabric looks for something to do in each of them."""
    stages, servers = pieces.balance.shape
    to_balance, to_cross = pieces.balance.copy(), pieces.scale_out.copy()
    to_redistribute, local = pieces.redistribute.copy(), pieces.local.copy()
    now = 0

    def over(stage):
        return not to_cross[: stage + 1].any() and not to_balance[: stage + 1].any()

    while any(left.any() for left in (to_balance, to_cross, to_redistribute, local)):
        crossing = [t for t in range(stages) if to_cross[t] > 0][:1]
        crossing = [t for t in crossing if not to_balance[: t + 1].any()]
        crossed = [t for t in range(stages) if over(t)]
        for server in range(servers):
            for pieces_left, allowed in (
                (to_balance[:, server], range(stages)),
                (to_redistribute[:, server], crossed),
                (local[server : server + 1], [0]),
            ):
                chosen = [t for t in allowed if pieces_left[t] > 0][:1]
                if chosen:
                    pieces_left[chosen[0]] -= 1
                    break
        for t in crossing:
            to_cross[t] -= 1
        now += 1
    return now


@hypothesis.given(pieces=random_pieces())
def test_times_are_those_of_a_clock_that_ticks(pieces):
    assert barrier.lockstep_time(pieces) == ticking_lockstep(pieces)
    assert barrier.overlapped_time(pieces) == ticking_overlapped(pieces)


@hypothesis.given(pieces=random_pieces())
def test_barriers_between_all_fabrics_never_help(pieces):
    assert barrier.overlapped_time(pieces) <= barrier.lockstep_time(pieces)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@hypothesis.settings(max_examples=40)
@hypothesis.given(problem=problems(largest=10**6))
def test_no_plan_beats_the_lower_bound(scheduler, problem):
    plan = scheduled(problem, scheduler)
    lockstep, overlapped = barrier.completion_times(plan)
    assert plan.lower_bound() * (1 - 1e-9) <= overlapped <= lockstep * (1 + 1e-9)


def test_which_plans_are_one_to_one():
    topology, traffic = Topology(2, 2), np.ones((4, 4), int)
    plans = {s: make_plan(traffic, topology, scheduler=s) for s in SCHEDULERS}
    assert barrier.is_one_to_one(plans["fast"])
    assert barrier.is_one_to_one(plans["spreadout"])
    assert not barrier.is_one_to_one(plans["direct"])
    assert barrier.is_one_to_one(make_plan(np.eye(4, dtype=int), topology, scheduler="direct"))
