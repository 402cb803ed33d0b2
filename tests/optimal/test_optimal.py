"""Solved stages against brute force."""

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import bounds, keywords, refusals, refused
from scipy.optimize import linprog

from fastjax import optimal
from fastjax.errors import ArgumentError, UnsupportedError


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


def stages(rows=((0, 1), (1, 0)), startup_rows=1, **options):
    return lambda: optimal.solve_stages(rows, startup_rows=startup_rows, **options)


TIMES = [-1, 0, math.nan, math.inf], [1e-9, 60]

STARTUP = [-1, math.nextafter(2**62, math.inf)], [0, 2**62]

test_bounds = bounds(
    ArgumentError,
    *keywords(
        lambda **options: stages(**options)(),
        startup_rows=STARTUP,
        time_limit=TIMES,
    ),
    ("rows must add", lambda v: stages([[0, v], [0, 0]])(), [2**51 + 1], [2**51]),
)

test_refused = refusals(
    ArgumentError,
    (stages(np.ones((2, 3), int)), "rows must be a square matrix, got shape (2, 3)."),
    (stages(np.zeros((2, 2))), "rows must be integers (rows), got float64."),
    (stages([[0, -1], [0, 0]]), "rows must be 0 or more, got rows[0, 1] = -1."),
    (stages([[1, 0], [0, 0]]), "rows must have a zero diagonal, got rows[0, 0] = 1"),
    (stages([[0, 1], [0]]), "rows must be a matrix"),
)


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    refused(UnsupportedError, stages(), "pip install 'fastjax[optimal]'")
