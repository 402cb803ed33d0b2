"""Rows of experts dealt to devices, by the call and in operations of JAX."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from refusals import refusals
from scipy.optimize import Bounds, LinearConstraint, milp
from spmd import mesh_of, spmd

from fastjax.errors import ArgumentError
from fastjax.traced.contract import LEVEL
from fastjax.traced.levelling import level
from fastjax.traced.levelling_in_jax import level_in_jax


class Shape(NamedTuple):
    servers: int
    devices: int
    here: int
    copies: int
    cost_rows: int

    @property
    def ranks(self):
        return self.servers * self.devices

    @property
    def experts(self):
        return self.ranks * self.here

    @property
    def options(self):
        return {k: v for k, v in self._asdict().items() if k != "here"}


SHAPES = [
    Shape(1, 1, 3, 1, 0),
    Shape(1, 2, 1, 3, 0),
    Shape(1, 5, 2, 2, 0),
    Shape(1, 4, 4, 3, 6),
    Shape(3, 1, 2, 2, 1),
    Shape(2, 3, 3, 4, 0),
    Shape(3, 2, 2, 1, 25),
]


@functools.cache
def compiled(function, **options):
    return jax.jit(functools.partial(function, **options))


def levelled(shape, counts):
    """By the call; as numpy arrays."""
    return [np.asarray(a) for a in compiled(level, **shape.options)(counts)]


@st.composite
def problems(draw):
    shape = draw(st.sampled_from(SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.2, 1, 5]))
    mean = draw(st.sampled_from([0.5, 10, 1000, 10**6]))
    rows = rng.gamma(spread, size=shape.experts) * rng.gamma(1, size=(shape.ranks, shape.experts))
    return shape, np.minimum(rows * mean, 2**31 // (2 * rows.size)).astype(np.int32)


def groups_of(shape, slots):
    """The expert of each group of each device, or -1."""
    home = np.arange(shape.experts).reshape(shape.ranks, shape.here)
    return np.concatenate([home, slots], axis=1)


def slowest(shape, sizes):
    """Rows of each server's slowest device."""
    return sizes.sum((0, 2)).reshape(shape.servers, shape.devices).max(1)


def slots_used(shape, slots):
    return (slots >= 0).sum(1).reshape(shape.servers, shape.devices).max(1)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_both_implementations_agree(problem):
    shape, counts = problem
    in_jax = compiled(level_in_jax, **shape.options)(counts)
    for got, want in zip(levelled(shape, counts), in_jax, strict=True):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_rows_are_cut_and_none_is_lost(problem):
    shape, counts = problem
    slots, sizes, starts = levelled(shape, counts)
    groups = groups_of(shape, slots)
    assert (sizes[:, groups < 0] == 0).all()
    assert (starts[:, groups < 0] == 0).all()
    begin = np.cumsum(counts, 1) - counts
    for expert in range(shape.experts):
        devices, places = np.nonzero(groups == expert)  # in order of devices, its home among them
        of_expert = sizes[:, devices, places]
        assert (of_expert >= 0).all()
        np.testing.assert_array_equal(of_expert.sum(1), counts[:, expert])
        upto = np.cumsum(of_expert, 1) - of_expert
        np.testing.assert_array_equal(starts[:, devices, places], begin[:, [expert]] + upto)
        computed = of_expert.sum(0)
        if len(devices) > 1:  # of what it sends, a device keeps all that it may
            own = np.minimum(counts[devices, expert], computed)
            np.testing.assert_array_equal(of_expert[devices, np.arange(len(devices))], own)


@settings(deadline=None, max_examples=150)
@given(problems())
def test_slots_are_of_other_devices_of_the_server_and_worth_their_cost(problem):
    shape, counts = problem
    slots, sizes, _ = levelled(shape, counts)
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


@settings(deadline=None, max_examples=50)
@given(problems(), st.integers(0, 2**32))
def test_what_is_copied_depends_on_sums_only(problem, seed):
    """And so is the same whoever sends the rows."""
    shape, counts = problem
    slots, sizes, _ = levelled(shape, counts)
    others = np.random.default_rng(seed).permuted(counts, axis=0)
    other_slots, other_sizes, _ = levelled(shape, others)
    np.testing.assert_array_equal(slots, other_slots)
    np.testing.assert_array_equal(sizes.sum(0), other_sizes.sum(0))


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
        _, sizes, _ = levelled(shape, counts)
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
            slots, sizes, _ = levelled(shape, counts)
            assert slowest(shape, sizes) <= most[copies] + 1
            assert slots_used(shape, slots) <= most.index(most[copies]) + 1


SMALL = Shape(2, 2, 2, 2, 1)


def small_counts(rng, *batch):
    return rng.poisson(rng.gamma(0.5, size=8) * 20, size=(*batch, 4, 8)).astype(np.int32)


@pytest.mark.every_jax
def test_batches(rng):
    counts = small_counts(rng, 3, 2)
    one = functools.partial(level, **SMALL.options)
    for got in (jax.vmap(jax.vmap(one))(counts), jax.jit(jax.vmap(jax.vmap(one, 0), 1, 1))(counts)):
        for i, j in itertools.product(range(3), range(2)):
            want = levelled(SMALL, counts[i, j])
            for array, expected in zip(got, want, strict=True):
                np.testing.assert_array_equal(array[i, j], expected)


@pytest.mark.every_jax
@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map(rng, check_vma):
    counts = small_counts(rng, 8)
    got = spmd(functools.partial(level, **SMALL.options), check_vma=check_vma)(counts)
    for device in range(8):
        for array, want in zip(got, levelled(SMALL, counts[device]), strict=True):
            np.testing.assert_array_equal(array[device], want)


@pytest.mark.every_jax
@pytest.mark.parametrize("explicit", [False, True])
def test_where_axes_are_left_to_xla(rng, explicit):
    mesh = mesh_of((4, 2), ("x", "y"), explicit=explicit)
    local = lambda c: level(c[0], **SMALL.options).sizes[None]  # noqa: E731
    mapped = jax.shard_map(local, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    counts = small_counts(rng, 4)
    with jax.set_mesh(mesh):
        got = np.asarray(jax.jit(mapped)(counts))
    for device in range(4):
        np.testing.assert_array_equal(got[device], levelled(SMALL, counts[device])[1])


@pytest.mark.every_jax
@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_other_platforms_have_operations_of_jax(rng, platform):
    local = lambda c: level(c[0], **SMALL.options).sizes[None]  # noqa: E731
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    traced = jax.jit(mapped).trace(small_counts(rng, 8))
    assert LEVEL.target in traced.lower().as_text()
    assert LEVEL.target not in traced.lower(lowering_platforms=(platform,)).as_text()


def test_it_has_no_derivative(rng):
    counts = small_counts(rng)
    one = functools.partial(level, **SMALL.options)
    zeros = np.zeros(counts.shape, jax.dtypes.float0)
    values, tangents = jax.jvp(one, (counts,), (zeros,))
    np.testing.assert_array_equal(values.sizes, levelled(SMALL, counts)[1])
    assert {t.dtype for t in tangents} == {jax.dtypes.float0}


def with_one(value):
    return np.zeros((4, 8), np.int32) + value * (np.arange(32) == 11).reshape(4, 8).astype(np.int32)


def called(counts=None, **options):
    counts = with_one(1) if counts is None else counts
    return lambda: level(jnp.asarray(counts), **(SMALL.options | options))


test_wrong_arguments = refusals(
    ArgumentError,
    *((called(**{name: 0}), f"{name} must be 1 or more, got 0") for name in ("servers", "copies")),
    (called(devices=-1), "devices must be 1 or more, got -1"),
    (called(cost_rows=-1), "cost_rows must be 0 or more, got -1"),
    (called(cost_rows=2**30), "copies=2 and cost_rows=1073741824"),
    (called(devices=4), "shape (8, experts)", "got int32[4, 8]"),
    (called(np.zeros((4, 8), np.float32)), "must be int32", "got float32[4, 8]"),
    (called(np.zeros((4, 6), np.int32)), "a multiple of 4 experts, got 6"),
    (called(np.zeros((4, 0), np.int32)), "a multiple of 4 experts, got 0"),
)

test_wrong_counts = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        (called(with_one(-7)), "sender 1 has -7 rows for expert 3"),
        (called(with_one(0) + 2**30), f"there are {2**35} rows"),
    )
)


def raw_call(counts=(4, 8), words=8 + 2 * 4 * 4 * 4, dtype=np.int32, **attributes):
    given = LEVEL.encoded(SMALL.options | {"operands": "counts"} | attributes)
    result = jax.ShapeDtypeStruct((words,), np.int32)
    return lambda: jax.jit(jax.ffi.ffi_call(LEVEL.target, result), static_argnames=[*given])(
        np.zeros(counts, dtype), **given
    )


UNEXPECTED = "unexpected operands"

test_wrong_calls = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        *((raw_call(**{name: 0}), "must be positive") for name in ("servers", "devices", "copies")),
        (raw_call(copies=2**31), "must be positive"),
        (raw_call(cost_rows=-1), "copies * cost_rows must be between 0 and 2^31 - 1"),
        (raw_call(cost_rows=2**30), "copies * cost_rows must be between 0 and 2^31 - 1"),
        (raw_call(words=135), UNEXPECTED),
        (raw_call(words=272), UNEXPECTED),
        (raw_call(counts=32), UNEXPECTED),
        (raw_call(counts=(8, 8)), UNEXPECTED),
        (raw_call(counts=(4, 6)), UNEXPECTED),
        (raw_call(counts=(4, 0)), UNEXPECTED),
        (raw_call(dtype=np.float32), UNEXPECTED),
    )
)
