"""Devices chosen for rows of experts, by the call and in operations of JAX."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from levelling_problems import SMALL, Shape, compiled, dealt, levelled, problems, small_counts
from refusals import refusals
from scipy.optimize import Bounds, LinearConstraint, milp

from fastjax import _core
from fastjax.traced.contract import LEVEL
from fastjax.traced.levelling import level
from fastjax.traced.levelling_in_jax import level_in_jax


def slowest(shape, sizes):
    """Rows of each server's slowest device."""
    return sizes.sum((0, 2)).reshape(shape.servers, shape.devices).max(1)


def slots_used(shape, slots):
    return (slots >= 0).sum(1).reshape(shape.servers, shape.devices).max(1)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_all_implementations_agree(problem):
    shape, counts = problem
    rows = counts.sum(0, dtype=np.int32)
    in_jax = compiled(level_in_jax, **shape.options)(rows)
    on_host = _core.level_experts(rows, **shape.options)
    for got, want, again in zip(levelled(shape, counts), in_jax, on_host, strict=True):
        assert got.dtype == again.dtype == np.int32
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got.ravel(), again)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_slots_are_of_other_devices_of_the_server_and_worth_their_cost(problem):
    shape, counts = problem
    slots, sizes, _ = dealt(shape, counts)
    np.testing.assert_array_equal(levelled(shape, counts).rows, sizes.sum(0))
    for rank, experts in enumerate(slots):
        used = experts[experts >= 0]
        assert (experts[: len(used)] == used).all()
        assert len(set(used.tolist())) == len(used)
        homes = used // shape.here
        assert (homes // shape.devices == rank // shape.devices).all()
        assert (homes != rank).all()
        assert (sizes[:, rank, shape.here : shape.here + len(used)].sum(0) > 0).all()
    at_home = counts.sum(0).reshape(shape.ranks, shape.here).sum(1)
    before = at_home.reshape(shape.servers, shape.devices).max(1)
    used = slots_used(shape, slots)
    gain = before - slowest(shape, sizes) - used * shape.cost_rows
    assert ((gain > 0) | (used == 0)).all()


LAWS = ["gini 0.15", "gini 0.25", "gini 0.35", "zipf 0.8", "zipf 1.2", "one device"]
# Of the logarithm: a lognormal distribution has a Gini coefficient of erf(sigma / 2).
SIGMA = {0.15: 0.2674, 0.25: 0.4506, 0.35: 0.6417}


def popularity(law, experts, rng):
    kind, number = law.split()
    if kind == "gini":
        return rng.lognormal(0, SIGMA[float(number)], experts)
    if kind == "zipf":
        return rng.permutation(np.arange(1, experts + 1) ** -float(number))
    return (np.arange(experts) < experts // 8).astype(float)


def choices(law, experts, rng, tokens=2048):
    """All experts of each token, in the order in which it chooses them."""
    with np.errstate(divide="ignore"):
        wanted = np.log(popularity(law, experts, rng))
    return np.argsort(-wanted - rng.gumbel(size=(tokens, experts)), axis=1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("experts", [64, 256])
def test_the_slowest_device_is_near_the_mean(rng, law, experts):
    """With four copies, or as near as four copies can bring it, for all tokens to one device."""
    everything = choices(law, experts, rng)
    for top_k, (servers, devices) in itertools.product((1, 4, 8), ((1, 8), (2, 4), (4, 2))):
        shape = Shape(servers, devices, experts // 8, 4, 0)
        sender = np.arange(len(everything))[:, None] % 8
        counts = np.zeros((8, experts), np.int32)
        np.add.at(counts, (sender, everything[:, :top_k]), 1)
        _, sizes, _ = dealt(shape, counts)
        rows = counts.sum(0).reshape(servers, devices, shape.here)
        mean = -(-rows.sum((1, 2)) // devices)
        # Copies hold no more than the most popular experts of the device that has most.
        taken = np.sort(rows, axis=2)[..., ::-1][..., : shape.copies * (devices - 1)]
        least = (rows.sum(2) - taken.sum(2)).max(1)
        wanted = np.maximum(np.maximum(1.02 * mean, mean + 1), least + 1)
        assert (slowest(shape, sizes) <= wanted).all()
        assert law == "one device" or (least < mean).all()


def least_slowest(rows, copies):
    """Rows of the slowest device, by a solver, for rows of shape (devices, experts of each).

    Of what a device computes of other devices' experts, which it has a copy of or not.
    """
    devices, here = rows.shape
    pairs = [(e, d) for e in range(rows.size) for d in range(devices) if e // here != d]
    count = len(pairs)
    expert, device = np.array(pairs).T
    of_expert = expert == np.arange(rows.size)[:, None]
    of_device = device == np.arange(devices)[:, None]
    from_device = expert // here == np.arange(devices)[:, None]
    zero = np.zeros((devices, count))
    one = np.ones((devices, 1))
    limits = [
        LinearConstraint(np.c_[of_expert, 0 * of_expert, np.zeros(rows.size)], 0, rows.ravel()),
        LinearConstraint(np.c_[of_device * 1.0 - from_device, zero, -one], -np.inf, -rows.sum(1)),
        LinearConstraint(np.c_[zero, of_device, 0 * one], 0, copies),
        LinearConstraint(
            np.c_[np.eye(count), -np.diag(rows.ravel()[expert]), np.zeros(count)], -np.inf, 0
        ),
    ]
    upper = np.r_[rows.ravel()[expert], np.ones(count), rows.sum()]
    cost = np.r_[np.zeros(2 * count), 1]
    solved = milp(cost, constraints=limits, bounds=Bounds(0, upper), integrality=np.ones(len(cost)))
    assert solved.success
    return round(solved.fun)


@pytest.mark.parametrize(("devices", "here"), [*itertools.product((2, 3, 4), (1, 2, 3))])
def test_as_few_rows_and_copies_as_a_solver(rng, devices, here):
    for spread in (0.3, 1, 3):
        mean = rng.integers(5, 40)
        rows = np.floor(rng.gamma(spread, size=(devices, here)) * mean).astype(np.int32)
        counts = np.zeros((devices, rows.size), np.int32)
        counts[0] = rows.ravel()
        most = [rows.sum(1).max(), *(least_slowest(rows, c) for c in (1, 2, 3))]
        for copies in (1, 2, 3):
            shape = Shape(1, devices, here, copies, 0)
            slots, sizes, _ = dealt(shape, counts)
            assert slowest(shape, sizes) <= most[copies] + 1
            assert slots_used(shape, slots) <= most.index(most[copies]) + 1


@pytest.mark.every_jax
def test_batches(rng):
    counts = small_counts(rng, 3, 2)
    one = functools.partial(level, **SMALL.options)
    rows = counts.sum(2, dtype=np.int32)
    for got in (jax.vmap(jax.vmap(one))(rows), jax.jit(jax.vmap(jax.vmap(one, 0), 1, 1))(rows)):
        for i, j in itertools.product(range(3), range(2)):
            for array, expected in zip(got, levelled(SMALL, counts[i, j]), strict=True):
                np.testing.assert_array_equal(array[i, j], expected)


ROWS = np.arange(8, dtype=np.int32)


def called(rows=ROWS, **options):
    return lambda: level(jnp.asarray(rows), **(SMALL.options | options))


test_wrong_rows = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        (called(ROWS - 10 * (ROWS == 3)), "in level, expert 3 has -7 rows"),
        (called(ROWS * 0 + 2**30), f"there are {2**33} rows"),
    )
)


def raw_call(shape=(8,), words=2 * 8 + 8, dtype=np.int32, **attributes):
    given = LEVEL.encoded(SMALL.options | {"operands": "rows"} | attributes)
    result = jax.ShapeDtypeStruct((words,), np.int32)
    return lambda: jax.jit(jax.ffi.ffi_call(LEVEL.target, result), static_argnames=[*given])(
        np.zeros(shape, dtype), **given
    )


UNEXPECTED = "unexpected operands"

test_wrong_calls = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        *((raw_call(**{name: 0}), "must be positive") for name in ("servers", "devices", "copies")),
        (raw_call(copies=2**31), "must be positive"),
        (raw_call(cost_rows=-1), "copies * cost_rows must be between 0 and 2^31 - 1"),
        (raw_call(cost_rows=2**30), "copies * cost_rows must be between 0 and 2^31 - 1"),
        (raw_call(words=23), UNEXPECTED),
        (raw_call(words=48), UNEXPECTED),
        (raw_call(shape=()), UNEXPECTED),
        (raw_call(shape=6), UNEXPECTED),
        (raw_call(shape=0), UNEXPECTED),
        (raw_call(shape=(2, 8)), UNEXPECTED),
        (raw_call(dtype=np.float32), UNEXPECTED),
    )
)
