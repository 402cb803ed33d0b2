"""Solved stages against brute force."""

import itertools
import math
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.optimize import linprog

from fastjax import optimal
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.optimal import cover


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


def solved(rows, startup, seconds=60.0):
    """Stages, and what they cost."""
    stages = optimal.solve_stages(rows, startup_rows=startup, time_limit=seconds)
    assert covered(rows, *stages)
    return stages, startup * len(stages.lengths) + int(stages.lengths.sum())


@settings(deadline=None, max_examples=25)
@given(
    matrices(servers=(2, 3), largest=9),
    st.sampled_from([0, 1, 5, 100]),
    st.sampled_from([60.0, math.inf]),
)
def test_small_problems_are_solved(rows, startup, seconds):
    stages, cost = solved(rows, startup, seconds)
    best = cheapest(rows, startup)
    # Lengths are whole rows; the permutations' are not.
    assert best * (1 - 1e-6) <= cost <= best * (1 + 1e-6) + len(stages.lengths)


@settings(deadline=None, max_examples=25)
@given(matrices(), st.sampled_from([0, 3, 10**6]), st.sampled_from([1e-9, 0.2]))
def test_whatever_the_time_there_are_stages(rows, startup, seconds):
    stages, _ = solved(rows, startup, seconds)
    busiest = max(rows.sum(axis=0).max(), rows.sum(axis=1).max())
    assert int(stages.lengths.sum()) >= busiest


def test_parts_of_a_simple_cover_are_solved_again():
    """Until it costs what no cover can cost less than, which neither simple one does."""
    rows = np.random.default_rng(1).integers(0, 4, (6, 6))
    np.fill_diagonal(rows, 0)
    least = max(map(np.count_nonzero, [*rows, *rows.T])) + max(map(np.sum, [*rows, *rows.T]))
    for simple in (cover.fewest_stages(rows), cover.least_length(rows, cover.Clock(60))):
        assert len(simple.lengths) + simple.length > least
    assert solved(rows, 1)[1] == least


def test_more_rows_than_can_be_added_up():
    rows = np.array([[0, 2**51], [0, 0]])
    assert solved(rows, 1)[1] == 1 + 2**51
    refused(ArgumentError, lambda: solved(rows + rows // 2**51, 1), "must be at most 2**52 // 2 ")


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    rows = np.array([[0, 1], [1, 0]])
    refused(UnsupportedError, lambda: solved(rows, 1), "pip install 'fastjax[optimal]'")
