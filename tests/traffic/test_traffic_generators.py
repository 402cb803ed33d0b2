"""Traffic that is made up: its shape, its totals and its skew."""

import math
from functools import partial

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from refusals import bounds, keywords, refusals

from fastjax import traffic as ft
from fastjax.cli.shared import workloads
from fastjax.errors import ArgumentError

counts = {"devices": st.integers(1, 9), "rows": st.integers(0, 300)}


def check(traffic, devices):
    assert traffic.shape == (devices, devices)
    assert traffic.dtype == np.int64
    assert traffic.flags.c_contiguous
    assert traffic.min() >= 0


def test_the_benchmark_has_the_traffic_of_its_records():
    """The first record of benchmarks/results: 8 devices, Zipf 0.8 over experts, seed 0."""
    traffic = workloads.make_traffic("expert-popularity", 8, 4096, seed=0)
    assert traffic.sum(axis=0).max() == 10255
    assert traffic.max() == 1327
    pairs = workloads.make_traffic("pair-zipf", 8, 4096, seed=0)
    assert pairs[0].tolist() == [481, 258, 322, 800, 220, 365, 191, 1279]
    assert pairs.argmax() == 32


@hypothesis.given(count=st.integers(1, 50), exponent=st.floats(0, 20))
def test_zipf(count, exponent):
    shares = ft.zipf(count, exponent)
    ranks = np.arange(1, count + 1)
    assert math.isclose(shares.sum(), 1)
    np.testing.assert_allclose(shares, shares[0] * ranks ** (-exponent), rtol=1e-12)


@hypothesis.given(**counts)
def test_uniform(devices, rows):
    traffic = ft.uniform(devices, rows)
    check(traffic, devices)
    assert set(traffic.sum(axis=1)) == {rows}
    assert np.ptp(traffic) <= 1


@hypothesis.given(**counts, exponent=st.floats(0, 3), seed=st.integers(0, 9))
def test_pair_zipf(devices, rows, exponent, seed):
    traffic = ft.pair_zipf(devices, rows, exponent=exponent, seed=seed)
    check(traffic, devices)
    assert traffic.sum() == devices * rows
    wanted = devices * rows * ft.zipf(devices**2, exponent)
    # Each pair has its share within one, whatever the order.
    assert np.abs(np.sort(traffic, axis=None)[::-1] - wanted).max() <= 1


@hypothesis.given(
    **counts,
    experts_per_device=st.integers(1, 3),
    popularity=st.sampled_from(["zipf", "lognormal"]),
    tilt=st.none() | st.floats(1e-6, 1e12),
    top_k=st.integers(1, 3),
    shuffle=st.booleans(),
    seed=st.integers(0, 9),
)
def test_expert_popularity(devices, rows, top_k, seed, **options):
    traffic = ft.expert_popularity(devices, rows, top_k=top_k, seed=seed, **options)
    check(traffic, devices)
    assert set(traffic.sum(axis=1)) == {rows * top_k}
    again = ft.expert_popularity(
        devices, rows, top_k=top_k, seed=np.random.default_rng(seed), **options
    )
    np.testing.assert_array_equal(traffic, again)


def test_expert_popularity_is_that_of_the_experts_on_each_device():
    traffic = ft.expert_popularity(4, 10**6, experts_per_device=2, exponent=1.1, seed=1)
    shares = ft.zipf(8, 1.1).reshape(4, 2).sum(axis=1)
    # Five standard deviations of a binomial count.
    bound = 5 * np.sqrt(10**6 * shares * (1 - shares))
    assert (np.abs(traffic - 10**6 * shares) < bound).all()


def test_shuffled_experts_have_the_same_shares_elsewhere():
    options = {"exponent": 1.0, "seed": 4}
    plain = ft.expert_popularity(16, 10**6, **options)
    mixed = ft.expert_popularity(16, 10**6, shuffle=True, **options)
    assert (np.argsort(plain[0]) != np.argsort(mixed[0])).any()
    np.testing.assert_allclose(np.sort(plain.sum(0)), np.sort(mixed.sum(0)), rtol=0.02)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_gini_of_lognormal_experts(sigma):
    """That of the log-normal law is erf(sigma / 2)."""
    traffic = ft.expert_popularity(2000, 2000, popularity="lognormal", sigma=sigma, seed=2)
    assert math.isclose(ft.gini(traffic.sum(axis=0)), math.erf(sigma / 2), abs_tol=0.03)


@pytest.mark.parametrize("tilt", [3.0, 30.0, 300.0])
def test_tilt_is_the_concentration_of_the_senders_shares(tilt):
    """Moments of the Dirichlet law: mean p, variance p (1 - p) / (tilt + 1)."""
    rows = 10**7
    shares = ft.expert_popularity(1000, rows, exponent=0.5, tilt=tilt, seed=3) / rows
    p = ft.zipf(1000, 0.5)
    assert (np.abs(shares.mean(axis=0) - p) < 6 * np.sqrt(p * (1 - p) / (tilt + 1) / 1000)).all()
    wanted = (p * (1 - p)).sum() / (tilt + 1) + (p * (1 - p)).sum() / rows
    assert math.isclose(((shares - p) ** 2).sum(axis=1).mean(), wanted, rel_tol=0.05)


def test_the_smallest_tilt_gives_every_sender_one_expert():
    traffic = ft.expert_popularity(16, 100, tilt=1e-6, seed=5)
    assert set(traffic.max(axis=1)) == {100}
    assert len(set(traffic.argmax(axis=1))) > 1


@hypothesis.given(
    hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 1000))
    | hnp.arrays(float, (3, 2), elements=st.floats(0, 1e6, width=32))
)
def test_gini(values):
    flat = values.ravel().tolist()
    got = ft.gini(values)
    assert 0 <= got <= 1 - 1 / len(flat) + 1e-12
    if not sum(flat):
        assert got == 0
        return
    pairs = [abs(a - b) for a in flat for b in flat]
    wanted = math.fsum(pairs) / len(flat) ** 2 / 2 / (math.fsum(flat) / len(flat))
    assert math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-12)


def test_gini_of_known_counts():
    assert ft.gini([5, 5, 5]) == 0
    assert ft.gini([0, 0, 0, 7]) == 0.75
    assert ft.gini([[1, 3]]) == 0.25


NAN, INF = math.nan, math.inf
POSITIVE = [0, -1, 1.0, True], [1]
BELOW_0 = math.nextafter(0, -1)
EXPONENT = [BELOW_0, math.nextafter(20, INF), NAN, "1"], [0, 20]
SIGMA = [BELOW_0, math.nextafter(50, INF), NAN], [0, 50]
TILT = [math.nextafter(1e-6, 0), math.nextafter(1e12, INF), INF], [1e-6, 1e12]

test_bounds = bounds(
    ArgumentError,
    ("count", lambda v: ft.zipf(v, 1), *POSITIVE),
    ("exponent", lambda v: ft.zipf(3, v), *EXPONENT),
    ("devices", lambda v: ft.uniform(v, 1), *POSITIVE),
    ("rows", lambda v: ft.uniform(2, v), [-1, 1.5, True], [0, 2**52]),
    *keywords(partial(ft.pair_zipf, 2, 1), exponent=EXPONENT),
    *keywords(
        partial(ft.expert_popularity, 2, 1),
        experts_per_device=POSITIVE,
        top_k=POSITIVE,
        sigma=SIGMA,
        tilt=TILT,
        popularity=(["normal"], ["zipf", "lognormal"]),
    ),
)

test_refused = refusals(
    ArgumentError,
    (lambda: ft.uniform(2, 2**52 + 1), "2 devices", "rows each are more than 2**53"),
    (lambda: ft.expert_popularity(2, 1, top_k=2**53), "more than 2**53 rows"),
    (lambda: ft.gini([]), "counts must be one number or more"),
    (lambda: ft.gini([1, -1]), "counts must be", "each finite and 0 or more"),
    (lambda: ft.gini([1, math.nan]), "counts must be", "each finite and 0 or more"),
)


@pytest.mark.parametrize("make", [ft.uniform, ft.pair_zipf, ft.expert_popularity])
def test_as_many_rows_as_there_may_be(make):
    traffic = make(2, 2**52)
    assert traffic.min() >= 0
    assert traffic.sum() == 2**53
