"""The bounds that docs/design/stages.md proves, on traffic made to come close to them.

Times are simulated, with a barrier after each stage.
"""

import dataclasses

import numpy as np
import plan_problems as pp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjax import Topology, make_plan, simulate
from fastjax.schedule import BALANCE, REDISTRIBUTE, SCALE_OUT

ROUNDING = 1 + 1e-9


@st.composite
def problems(draw):
    """Adversarial traffic on a fabric without start-ups, with all ratios of its two tiers."""
    topology, rows, row_bytes = draw(st.one_of(pp.adversarial_problems(), pp.problems()))
    out = draw(st.sampled_from([50e9, 12.5e9, 450e9]))
    instant = Topology(
        topology.servers,
        topology.devices_per_server,
        scale_up_bandwidth=draw(st.sampled_from([450e9, 100e9, 50e9])),
        scale_out_bandwidth=out,
        scale_up_latency=0.0,
        scale_out_latency=0.0,
    )
    return instant, rows, row_bytes


def busiest_rail(rows, topology):
    """Rows that the fullest rail of the busiest server carries, sent or received."""
    n, m = topology.servers, topology.devices_per_server
    tiles = rows.astype(object).reshape(n, m, n, m).sum(axis=(1, 3))
    rail = np.array([[0 if s == d else -(-tiles[s, d] // m) for d in range(n)] for s in range(n)])
    return int(max(rail.sum(axis=0).max(), rail.sum(axis=1).max()))


def busiest(plan, phase, rate):
    """Seconds that the busiest device of each server needs for each stage of a phase."""
    topology = plan.topology
    moves = plan.transfers[plan.transfers["phase"] == phase]
    rows = np.zeros((2, plan.num_stages, topology.num_devices))
    for way, end in enumerate(("src", "dst")):
        np.add.at(rows[way], (moves["stage"], moves[end]), moves["rows"])
    by_server = rows.reshape(2, -1, topology.servers, topology.devices_per_server)
    return by_server.max(axis=(0, 3)) * plan.row_bytes / rate


@settings(deadline=None, max_examples=150)
@given(problems())
def test_completion_is_bounded(problem):
    topology, rows, row_bytes = problem
    plan = make_plan(rows, topology, scheduler="fast", row_bytes=row_bytes)
    rho = topology.scale_out_bandwidth / topology.scale_up_bandwidth
    kappa = (topology.devices_per_server - 1) * rho
    stages = busiest(plan, SCALE_OUT, topology.scale_out_bandwidth).max(axis=1)

    # A stage takes kappa times its length inside a server at most, either way.
    for phase in (BALANCE, REDISTRIBUTE):
        inside = busiest(plan, phase, topology.scale_up_bandwidth)
        assert (inside <= kappa * stages[:, None] * ROUNDING).all()

    time = simulate(plan, synchronization="barrier").completion_time
    least = max(stages.sum(), plan.lower_bound())
    assert plan.lower_bound() <= time * ROUNDING
    assert time <= (1 + 2 * kappa + rho) * least * ROUNDING


@settings(deadline=None, max_examples=150)
@given(problems(), st.sampled_from([0.0, 1e-6, 1e-3]))
def test_length_and_start_ups_are_bounded(problem, startup):
    instant, rows, row_bytes = problem
    topology = dataclasses.replace(instant, scale_out_latency=startup)
    n = topology.servers
    plan = make_plan(rows, topology, scheduler="fast", row_bytes=row_bytes)
    _, weights = plan.matchings
    busiest = busiest_rail(rows, topology)
    row_seconds = row_bytes / topology.scale_out_bandwidth
    a = startup / row_seconds
    # Up to 16 servers; a start-up counts whole rows, and large numbers are rounded up.
    worth = 1 if a == 0 else 17 / 16
    most = worth * 128 / 127 * (a * (n * n + n) + busiest) + (1 + a * 1e-3) * len(weights)
    coarse = busiest / 2**28 * (n * n + 3 * n)
    assert a * len(weights) + float(weights.sum()) <= (most + coarse) * ROUNDING
    if startup == 0:
        assert float(weights.sum()) <= busiest * (1 + 1 / 127) + coarse + 1


def times(servers, rows):
    """By barrier and by credit, as multiples of the lower bound."""
    topology = Topology(servers, 8, scale_up_latency=0.0, scale_out_latency=0.0)
    plan = make_plan(rows, topology, scheduler="fast", row_bytes=512)
    found = (simulate(plan, synchronization=by).completion_time for by in ("barrier", "credit"))
    return [seconds / plan.lower_bound() for seconds in found]


@pytest.mark.parametrize("servers", [2, 4, 8])
def test_a_single_flow_is_cut_finely(servers):
    """The worst case of the serial schedule: 2.56 times the bound at 450 : 50 GB/s."""
    rows = np.zeros((8 * servers, 8 * servers), int)
    rows[0, -1] = 200_000
    assert max(times(servers, rows)) <= 1.02


@pytest.mark.parametrize(("servers", "most"), [(2, 1.07), (4, 1.03), (8, 1.03)])
def test_a_hot_receiver_stays_busy(servers, most):
    """Half of every device's rows are for device 0."""
    rows = np.full((8 * servers, 8 * servers), 100_000 // (8 * servers - 1))
    rows[:, 0] = 100_000
    assert max(times(servers, rows)) <= most
