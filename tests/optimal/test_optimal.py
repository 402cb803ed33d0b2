"""Solved stages and fluid bounds against brute force and each other."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import bounds, keywords, refusals, refused
from scipy.optimize import linprog

from fastjax import Topology, make_plan, optimal, traffic
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.optimal import fluid as fluid_solver
from fastjax.optimal import stages as stage_solver


def covered(rows, targets, lengths):
    """Whether stages carry all rows, one to one."""
    left = np.array(rows, dtype=object)
    for to, length in zip(targets, lengths, strict=True):
        busy = to[to >= 0]
        assert len(set(busy.tolist())) == len(busy)
        for s in np.flatnonzero(to >= 0):
            left[s, to[s]] -= int(length)
    return max(left.max(), 0) == 0


def cheapest(rows, startup):
    """Least cost, by trying every set of permutations: the shortest weights for each are an LP."""
    n = len(rows)
    pairs = [(s, d) for s in range(n) for d in range(n) if rows[s, d]]
    if not pairs:
        return 0.0
    permutations = list(itertools.permutations(range(n)))
    best = np.inf
    for count in range(1, len(permutations) + 1):
        if startup * count >= best:
            break
        for chosen in itertools.combinations(permutations, count):
            carries = np.array([[-float(p[s] == d) for p in chosen] for s, d in pairs])
            answer = linprog(np.ones(count), carries, [-float(rows[s, d]) for s, d in pairs])
            if answer.success:
                best = min(best, startup * count + answer.fun)
    return best


@st.composite
def matrices(draw, servers=(1, 5), largest=40):
    n = draw(st.integers(*servers))
    entries = st.integers(0, draw(st.sampled_from([1, largest, 2**40])))
    rows = np.array(draw(st.lists(entries, min_size=n * n, max_size=n * n))).reshape(n, n)
    np.fill_diagonal(rows, 0)
    return rows


@settings(deadline=None, max_examples=25)
@given(matrices(servers=(2, 3), largest=9), st.sampled_from([0, 1, 5, 100]))
def test_small_problems_are_solved(rows, startup):
    stages = optimal.solve_stages(rows, startup_rows=startup)
    best = cheapest(rows, startup)
    assert stages.optimal
    assert covered(rows, stages.targets, stages.lengths)
    cost = startup * stages.num_stages + int(stages.lengths.sum())
    assert cost == pytest.approx(stages.objective)
    # Lengths are whole rows; the permutations' are not.
    assert best * (1 - 1e-6) <= cost <= best * (1 + 1e-6) + stages.num_stages


@settings(deadline=None, max_examples=25)
@given(matrices(), st.sampled_from([0, 3, 10**6]), st.sampled_from([1e-9, 0.2]))
def test_whatever_the_time_there_are_stages(rows, startup, seconds):
    stages = optimal.solve_stages(rows, startup_rows=startup, time_limit=seconds)
    assert covered(rows, stages.targets, stages.lengths)
    assert stages.bound <= stages.objective * (1 + 1e-9)
    busiest = max(rows.sum(axis=0).max(), rows.sum(axis=1).max())
    assert int(stages.lengths.sum()) >= busiest


def test_fewest_stages_within_a_length():
    rows = np.array([[0, 5, 1], [1, 0, 5], [5, 1, 0]])
    assert optimal.min_stages(rows, 6).num_stages == 2
    rows[0, 1] = 4
    assert optimal.min_stages(rows, 6).num_stages == 2
    assert optimal.frontier(rows) == [(2, 6)]


def test_frontier_falls():
    rows = np.array([[0, 9, 2, 1], [3, 0, 7, 1], [1, 1, 0, 8], [6, 2, 4, 0]])
    points = optimal.frontier(rows)
    counts, lengths = zip(*points, strict=True)
    assert list(counts) == sorted(set(counts))
    assert list(lengths) == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 13
    for count, length in points:
        assert optimal.min_stages(rows, length).num_stages == count


def stages(rows=((0, 1), (1, 0)), startup_rows=1, **options):
    return lambda: optimal.solve_stages(rows, startup_rows=startup_rows, **options)


def fluid(devices=4, **options):
    rows = np.ones((devices, devices), int)
    return lambda: optimal.fluid_lower_bound(rows, Topology(2, 2), **options)


TIMES = [0, -1, math.nan, math.inf], [60]

STARTUP = [-1, math.nextafter(2**62, math.inf)], [0, 2**62]

test_bounds = bounds(
    ArgumentError,
    *keywords(
        lambda **options: stages(**options)(),
        startup_rows=STARTUP,
        time_limit=TIMES,
        max_stages=([0], [1]),
    ),
    *keywords(lambda **options: fluid(**options)(), row_bytes=([0, 1.5], [1]), time_limit=TIMES),
    ("max_length", lambda v: optimal.min_stages([[0, 3], [1, 0]], v), [2, 2**62 + 1], [3, 2**62]),
    ("rows must add", lambda v: stages([[0, v], [0, 0]])(), [2**51 + 1], [2**51]),
)

test_refused = refusals(
    ArgumentError,
    (stages(np.ones((2, 3), int)), "rows must be a square matrix, got shape (2, 3)."),
    (stages(np.zeros((2, 2))), "rows must be integers (rows), got float64."),
    (stages([[0, -1], [0, 0]]), "rows must be 0 or more, got rows[0, 1] = -1."),
    (stages([[1, 0], [0, 0]]), "rows must have a zero diagonal, got rows[0, 0] = 1"),
    (stages([[0, 1], [0]]), "rows must be a matrix"),
    (fluid(3), "traffic must have shape (4, 4) for a topology of 2 x 2"),
)


@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_fluid_bound_is_the_closed_form_where_servers_are_fast(servers, seed):
    topology = Topology(servers, 8)
    rows = traffic.pair_zipf(8 * servers, 4096, seed=seed)
    plan = make_plan(rows, topology, scheduler="fast", row_bytes=512)
    fluid = optimal.fluid_lower_bound(rows, topology, row_bytes=512)
    assert fluid == pytest.approx(plan.lower_bound(), rel=1e-5)
    assert fluid <= plan.predicted_time()


def test_fluid_bound_knows_slow_servers():
    """One flow must pass through its server's other devices, which here takes longest."""
    slow = Topology(2, 4, scale_up_bandwidth=10e9, scale_out_bandwidth=50e9)
    rows = traffic.single_flow(8, 3000)
    fluid = optimal.fluid_lower_bound(rows, slow, row_bytes=4096)
    assert fluid > 1.5 * 3000 * 4096 / (4 * 50e9)
    # Out of the device by its own NIC and its scale-up link at most.
    assert fluid == pytest.approx(3000 * 4096 / 60e9, rel=1e-5)


class NotDone:
    """What a solver answers whose time is up."""

    status, message = 1, "Time limit reached"
    cover, lower = None, 0


def test_time_that_does_not_suffice(monkeypatch):
    monkeypatch.setattr(fluid_solver, "_solve", lambda *_: NotDone)
    refused(UnsupportedError, fluid(), "within the time limit of 60.0 s", "Time limit reached")
    monkeypatch.setattr(stage_solver, "shortest_cover", lambda *_: NotDone)
    rows = [[0, 5, 1], [1, 0, 5], [5, 1, 0]]
    refused(UnsupportedError, lambda: optimal.frontier(rows, time_limit=3), "not proved in 3 s")


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    refused(UnsupportedError, fluid(), "pip install 'fastjax[optimal]'")
