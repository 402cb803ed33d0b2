"""Simulated exchanges: against closed forms, and against a slow simulator of the tests' own."""

import functools
import signal
import threading
import time

import hypothesis.strategies as st
import numpy as np
import pytest
import reference_simulator
from hand_made import BALANCE, LOCAL, SCALE_OUT, fabric_of, moves, straight
from hypothesis import given, settings
from plan_problems import problems

import fastjax
from fastjax import Topology, simulate
from fastjax.errors import ArgumentError, OptionError
from fastjax.schedule import TRANSFER_DTYPE
from fastjax.simulation import (
    COUNTS,
    INCAST,
    PRESETS,
    SYNCHRONIZATIONS,
    TIMED_DTYPE,
    Fabric,
    Incast,
)

# Numbers are round where a row is a byte.
make_plan = functools.partial(fastjax.make_plan, row_bytes=1)
simulate_transfers = functools.partial(fastjax.simulation.simulate_transfers, row_bytes=1)

SCHEDULERS = ("direct", "spreadout", "rails", "balanced", "relay", "fast")


# ---- closed forms


def test_one_flow_takes_a_start_up_and_its_bytes():
    topology = fabric_of(2, 1, scale_out_latency=0.5)
    timeline = simulate_transfers(straight({(0, 1): 6}), topology, row_bytes=2)
    (message,) = timeline.messages
    assert (message["ready"], message["start"], message["end"]) == (0, 0.5, 12.5)
    assert timeline.completion_time == 12.5
    assert timeline.transfers["end"] == timeline.messages["end"]
    assert timeline.transfers["start"] == 0.5


def test_a_sender_is_counted_once():
    """However many messages it has, of stages that go side by side."""
    halves = Incast("half", ((2, 0.5),), "made up", count="senders")
    two = moves((SCALE_OUT, -1, 0, 1, 0, 1, 0, 4), (SCALE_OUT, 0, 0, 1, 0, 1, 4, 4))
    timeline = simulate_transfers(two, fabric_of(2, 1), fabric=Fabric(incast=halves))
    assert timeline.completion_time == pytest.approx(8)


def test_efficiency_changes_with_the_logarithm_of_senders():
    model = Incast("some", ((4, 0.9), (16, 0.5)), "made up")
    shares = [model.efficiency(n) for n in (0, 1, 2, 4, 8, 16, 100)]
    assert shares == pytest.approx([1, 1, 0.95, 0.9, 0.7, 0.5, 0.5])
    assert [INCAST["none"].efficiency(n) for n in (1, 1000)] == [1, 1]


# Two stages of two pairs. Device 0 needs 4 s for its first message, the other one 1 s.
STAGED = moves(
    (SCALE_OUT, 0, 0, 1, 0, 1, 0, 4),
    (SCALE_OUT, 0, 2, 3, 2, 3, 0, 1),
    (SCALE_OUT, 1, 2, 1, 2, 1, 0, 1),
    (SCALE_OUT, 2, 3, 2, 3, 2, 0, 1),
)


@pytest.mark.parametrize(
    ("synchronization", "starts", "completion"),
    [
        # Device 1 still receives when device 2 has sent: it waits for 4. Device 3 does not.
        ("credit", {(2, 1): 4, (3, 2): 0}, 5),
        ("barrier", {(2, 1): 4, (3, 2): 5}, 6),
        # It does not wait, and both get half: 1 + 2; 3 of 4 rows have come by then, minus one.
        ("free", {(2, 1): 1, (3, 2): 0}, 5),
    ],
)
def test_how_stages_follow_each_other(synchronization, starts, completion):
    fabric = Fabric(synchronization)
    timeline = simulate_transfers(STAGED, fabric_of(4, 1), fabric=fabric)
    start = {(int(m["src"]), int(m["dst"])): m["start"] for m in timeline.messages}
    assert {pair: start[pair] for pair in starts} == pytest.approx(starts)
    assert timeline.completion_time == pytest.approx(completion)


@pytest.mark.parametrize("senders", [1, 6])
def test_start_ups_of_four_stages_overlap(senders):
    # From one device to six others, or from six to one, in a stage each.
    ends = [(0, k + 1) if senders == 1 else (k + 1, 0) for k in range(6)]
    stages = moves(*((SCALE_OUT, k, a, b, a, b, 0, 2) for k, (a, b) in enumerate(ends)))
    topology = fabric_of(7, 1, scale_out_latency=10.0)
    timeline = simulate_transfers(stages, topology, fabric=Fabric("window"))
    # Four share a NIC from 10 to 18; the others begin when the first of them is over.
    assert timeline.messages["start"].tolist() == pytest.approx([10, 10, 10, 10, 28, 28])
    assert timeline.completion_time == pytest.approx(32)
    if senders == 1:
        assert simulate_transfers(stages, topology).completion_time == pytest.approx(6 * 12)


def test_balance_first_keeps_nics_waiting():
    transfers = moves(
        (BALANCE, 1, 0, 1, 0, 3, 0, 30),
        (SCALE_OUT, 0, 0, 2, 0, 2, 0, 5),
        (SCALE_OUT, 1, 1, 3, 0, 3, 0, 30),
    )
    for first, start in ((False, 0.0), (True, 3.0)):
        timeline = simulate_transfers(transfers, fabric_of(2, 2), balance_first=first)
        out = timeline.messages[timeline.messages["phase"] == SCALE_OUT]
        assert out["start"][0] == pytest.approx(start)


def test_nothing_to_move():
    topology = fabric_of(2, 2)
    for traffic in (np.zeros((4, 4), int), np.diag([1, 2, 3, 4])):
        timeline = simulate(make_plan(traffic, topology))
        assert timeline.completion_time == 0
        assert len(timeline.messages) == 0
        assert not timeline.transfers["end"].any()
        assert set(timeline.limits().values()) == {0.0}


# ---- against a simulator of the tests' own


def compare(plan, fabric, pieces=1):
    timeline = simulate_transfers(
        plan.transfers, plan.topology, row_bytes=plan.row_bytes, fabric=fabric, pieces=pieces
    )
    if pieces == 1:
        options = (fabric.synchronization, fabric.incast, fabric.oversubscription)
        names = ("synchronization", "incast", "oversubscription")
        same = simulate(plan, **dict(zip(names, options, strict=True)))
        np.testing.assert_array_equal(timeline.messages, same.messages)
        assert same.lower_bound == plan.lower_bound()
    expected = reference_simulator.simulate(plan, fabric, pieces)
    keys = sorted(expected, key=lambda k: (k[1], k[0], k[3], k[4], k[2]))
    assert len(timeline.messages) == len(keys)
    for name, place in (("start", 0), ("end", 1)):
        want = np.array([expected[key][place] for key in keys])
        np.testing.assert_allclose(timeline.messages[name], want, rtol=1e-7, atol=1e-12)
    got = timeline.messages[["stage", "phase", "src", "dst"]].tolist()
    assert got == [(k[1], k[0], k[3], k[4]) for k in keys]


@given(
    problem=problems(largest=12),
    scheduler=st.sampled_from(SCHEDULERS),
    synchronization=st.sampled_from(SYNCHRONIZATIONS),
    count=st.sampled_from([None, *COUNTS]),
    oversubscription=st.sampled_from([1.0, 1.5, 4.0]),
    pieces=st.sampled_from([1, 3, 16]),
)
@settings(max_examples=60, deadline=None)
def test_plans_as_the_slow_simulator_plays_them(
    problem, scheduler, synchronization, count, oversubscription, pieces
):
    topology, traffic, row_bytes = problem
    plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)
    points = ((3, 0.7), (9, 0.4))
    incast = Incast("some", points, "made up", count) if count else INCAST["none"]
    compare(plan, Fabric(synchronization, incast, oversubscription), pieces)


@pytest.mark.parametrize("scheduler", ["fast", "rails", "balanced"])
def test_unequal_and_failed_nics_as_the_slow_simulator_has_them(scheduler):
    topology = fabric_of(3, 3, nic_bandwidths=(1, 2, 0, 1, 1, 3, 2, 2, 1), scale_up_latency=0.5)
    traffic = np.random.default_rng(0).integers(0, 9, (9, 9))
    compare(make_plan(traffic, topology, scheduler=scheduler), Fabric())


# ---- what comes back


def example(**options):
    topology = Topology(4, 2)
    traffic = fastjax.traffic.pair_zipf(8, 4000, exponent=0.8, seed=1)
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=4096)
    return plan, simulate(plan, **options)


def test_timed_transfers_are_those_of_the_plan():
    plan, timeline = example()
    assert timeline.transfers.dtype == TIMED_DTYPE
    names = list(TRANSFER_DTYPE.names)
    np.testing.assert_array_equal(timeline.transfers[names], plan.transfers)
    moved = timeline.transfers[timeline.transfers["src"] != timeline.transfers["dst"]]
    assert np.all(moved["end"] > moved["start"])
    assert timeline.transfers["end"].max() == timeline.completion_time
    assert timeline.messages["rows"].sum() == moved["rows"].sum()
    assert timeline.planning_time == plan.planning_time() > 0
    assert timeline.total_time == timeline.planning_time + timeline.completion_time
    with pytest.raises(ValueError, match="read-only"):
        timeline.messages["end"] = 0


def test_limits_add_up():
    for scheduler in SCHEDULERS:
        plan, _ = example()
        plan = make_plan(plan.traffic, plan.topology, scheduler=scheduler, row_bytes=4096)
        timeline = simulate(plan, incast="roce")
        limits = timeline.limits()
        assert sum(limits.values()) == pytest.approx(timeline.completion_time)
        assert min(limits.values()) >= 0
        out = timeline.messages[timeline.messages["phase"] == SCALE_OUT]
        assert limits["before"] == out["start"].min()
        assert limits["after"] == pytest.approx(timeline.completion_time - out["end"].max())


def test_limits_of_one_server_are_those_of_its_fabric():
    plan = make_plan([[0, 30], [0, 0]], fabric_of(1, 2, scale_up_latency=1))
    assert simulate(plan).limits() == pytest.approx(
        {"before": 1, "busy": 3, "waiting": 0, "after": 0}
    )


def test_busy_is_bytes_by_rate():
    topology = fabric_of(2, 2, nic_bandwidths=(2, 1, 1, 0))
    transfers = moves((SCALE_OUT, 0, 0, 2, 0, 2, 0, 6), (LOCAL, -1, 1, 0, 1, 0, 0, 5))
    timeline = simulate_transfers(transfers, topology)
    assert timeline.busy("scale_out_out").tolist() == [3, 0, 0, 0]
    assert timeline.busy("scale_out_in").tolist() == [0, 0, 6, 0]
    assert timeline.busy("scale_up_out").tolist() == [0, 0.5, 0, 0]
    assert timeline.busy("scale_up_in").tolist() == [0.5, 0, 0, 0]


def test_a_signal_ends_it():
    # It would take a minute.
    plan = make_plan(fastjax.traffic.pair_zipf(768, 4096), Topology(96, 8), scheduler="direct")

    def interrupt(*_):
        raise ValueError("mine")

    def run():
        threading.Timer(0.05, signal.raise_signal, [signal.SIGUSR1]).start()
        simulate(plan)

    before, began = signal.signal(signal.SIGUSR1, interrupt), time.monotonic()
    try:
        with pytest.raises(ValueError, match=r"^mine$"):
            run()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - began < 30


def test_presets():
    topology = PRESETS["h200"].topology(4)
    assert (topology.servers, topology.devices_per_server) == (4, 8)
    assert (topology.scale_up_bandwidth, topology.scale_out_bandwidth) == (450e9, 50e9)
    assert PRESETS["mi300x"].topology(2, devices_per_server=4).num_devices == 8
    assert PRESETS["mi300x"].topology(2, scale_out_bandwidth=25e9).scale_out_bandwidth == 25e9
    assert PRESETS["gb200"].topology(2).num_devices == 144


@pytest.mark.parametrize("name", ["h200", "mi300x"])  # others lose as these, or so it is guessed
def test_what_presets_have_auto_expect_of_senders_that_meet(name):
    """About what "balanced" loses when simulated."""
    preset = PRESETS[name]
    traffic = fastjax.traffic.pair_zipf(128, 25000, exponent=0.8, seed=0)
    lost, expected = [], []
    for loss in (preset.rates["incast_loss"], 0.0):
        topology = preset.topology(16, incast_loss=loss)
        plan = make_plan(traffic, topology, scheduler="balanced", row_bytes=4000)
        expected.append(plan.predicted_time() - plan.planning_time())
        lost.append(simulate(plan, incast=preset.incast if loss else "none").completion_time)
    assert expected[0] / expected[1] == pytest.approx(lost[0] / lost[1], abs=0.02)
    assert lost[0] / lost[1] > 1.001


# ---- what is refused


def test_what_is_no_plan():
    with pytest.raises(ArgumentError, match=r"plan must be a fastjax.Plan, got 'fast'"):
        simulate("fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synchronization": "lockstep"}, "synchronization must be one of 'credit', 'barrier', "),
        ({"incast": "tcp"}, r"incast must be a fastjax.simulation.Incast or one of 'none', "),
        ({"incast": 0.5}, "'infiniband', 'roce', 'infiniband-literal', 'roce-literal', got 0.5"),
        ({"oversubscription": 0.5}, "oversubscription must be a number from 1 to 1048576, got 0.5"),
        ({"oversubscription": float("inf")}, "from 1 to 1048576, got inf"),
        ({"oversubscription": 10**400}, "from 1 to 1048576, got 1000"),
        ({"oversubscription": "2"}, "from 1 to 1048576, got '2'"),
        ({"oversubscription": True}, "from 1 to 1048576, got True"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(OptionError, match=message):
        example(**options)


@pytest.mark.parametrize(
    "points",
    [
        ((1, 0.9),),
        ((4, 0.9), (4, 0.8)),
        ((4, 0.5), (8, 0.6)),
        ((4, 0),),
        ((2**21, 0.5),),
        ((8, 0.9), (16,)),
        (8, 0.9),
        (("8", 0.9),),
        ((2.5, 0.9),),
    ],
)
def test_points_that_are_no_incast(points):
    with pytest.raises(ArgumentError, match="incast 'mine': points must be pairs of a number of"):
        Incast("mine", points, "made up")


@pytest.mark.parametrize("count", ["sender", "", None, 1])
def test_counts_that_are_none(count):
    message = f"incast 'mine': count must be 'shares' or 'senders', got {count!r}"
    with pytest.raises(ArgumentError, match=message):
        Incast("mine", ((8, 0.9),), "made up", count)


def test_links_that_there_are_not():
    with pytest.raises(
        ArgumentError, match=r"link must be one of 'scale_up_out', .*; got 'nonsens"
    ):
        example()[1].busy("nonsense")
