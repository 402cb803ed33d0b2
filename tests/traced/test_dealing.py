"""Rows of experts dealt to devices, by the call and in operations of JAX."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from levelling_problems import (
    SMALL,
    Shape,
    compiled,
    dealt,
    groups_of,
    levelled,
    problems,
    small_counts,
)
from refusals import refusals
from spmd import mesh_of, spmd

from fastjax.traced.contract import DEAL, LEVEL
from fastjax.traced.levelling import Levelled, deal, level
from fastjax.traced.levelling_in_jax import deal_in_jax


@st.composite
def cases(draw, means=(0.5, 10, 1000, 10**6)):
    """A shape, counts, and what they are dealt by: their own rows, more of them, or others."""
    shape, counts = draw(problems(means))
    slots, rows = map(np.asarray, levelled(shape, counts))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["all", "a third", "any part", "none", "some dropped"]))
    if kind == "a third":
        counts = counts // 3
    elif kind == "any part":
        counts = rng.integers(0, counts + 1, dtype=np.int32)
    elif kind == "none":
        counts = counts * 0
    elif kind == "some dropped":
        dropped = rng.integers(0, rows + 1, dtype=np.int32)
        rows = np.where(rng.random(rows.shape) < 0.7, rows - dropped, 0)
    return shape, counts, Levelled(slots, rows)


def dealt_by(shape, counts, made):
    return [np.asarray(a) for a in compiled(deal, **shape.group)(counts, made)]


def computed(shape, expert, made):
    """The devices that compute an expert, its place among their groups, and its rows there."""
    devices, places = np.nonzero(groups_of(shape, made.slots) == expert)
    return devices, places, made.rows[devices, places].astype(np.int64)


@pytest.mark.sanitize
@pytest.mark.parametrize("shared", [0, 2**30])
def test_as_many_rows_as_there_can_be(shared):
    """No product overflows; without shares, all rows stay at home."""
    shape = Shape(1, 2, 1, 1, 0)
    counts = np.array([[2**31 - 2, 0], [0, 0]], np.int32)
    rows = np.array([[max(shared - 1, 0), 0], [0, shared]], np.int32)
    made = Levelled(np.array([[-1], [0]], np.int32), rows)
    sizes, starts = dealt_by(shape, counts, made)
    in_jax = compiled(deal_in_jax, copies=1, **shape.group)(counts, *made)
    for got, want in zip((sizes, starts), in_jax, strict=True):
        np.testing.assert_array_equal(got, want)
    away = sizes[0, 1, 1]
    np.testing.assert_allclose(away, shared, rtol=1e-4)
    np.testing.assert_array_equal(sizes, [[[2**31 - 2 - away, 0], [0, away]], np.zeros((2, 2))])


@settings(deadline=None, max_examples=200)
@given(cases())
def test_each_row_goes_where_it_should(case):
    """One after the other: those that devices send themselves, then the others; and as in JAX."""
    shape, counts, made = case
    sizes, starts = dealt_by(shape, counts, made)
    in_jax = compiled(deal_in_jax, copies=shape.copies, **shape.group)(counts, *made)
    for got, want in zip((sizes, starts), in_jax, strict=True):
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, want)
    groups = groups_of(shape, made.slots)
    assert (sizes >= 0).all()
    assert (sizes[:, groups < 0] == 0).all()
    assert (starts[:, groups < 0] == 0).all()
    begin = np.cumsum(counts, 1) - counts
    want = np.zeros_like(sizes)
    for expert in range(shape.experts):
        devices, places, rows = computed(shape, expert, made)
        of_expert = sizes[:, devices, places]
        np.testing.assert_array_equal(of_expert.sum(1), counts[:, expert])
        upto = np.cumsum(of_expert, 1) - of_expert
        np.testing.assert_array_equal(starts[:, devices, places], begin[:, [expert]] + upto)
        count, whole = counts[:, expert].copy(), rows.sum()
        if whole >= 2**15 or count.sum() >= 2**20:  # one by one takes long
            continue
        if whole:
            cuts = (np.cumsum(rows) * count.sum() + whole // 2) // whole  # to the nearest
            shares = np.diff(cuts, prepend=0)
        else:
            shares = np.where(devices == expert // shape.here, count.sum(), 0)
        kept = np.minimum(shares, count[devices])
        want[devices, devices, places] += kept.astype(np.int32)
        count[devices] -= kept
        senders = np.repeat(np.arange(shape.ranks), count)
        takers = np.repeat(np.arange(len(devices)), shares - kept)
        np.add.at(want, (senders, devices[takers], places[takers]), 1)
        np.testing.assert_array_equal(of_expert, want[:, devices, places])


@settings(deadline=None, max_examples=100)
@given(problems(), st.integers(1, 5), st.integers(0, 2**32))
def test_chunks_are_shared_as_all_rows_are(problem, chunks, seed):
    shape, counts = problem
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, counts + 1, size=(chunks - 1, *counts.shape)), axis=0)
    parts = np.diff(cuts, axis=0, prepend=0 * counts[None], append=counts[None]).astype(np.int32)
    made = Levelled(*map(np.asarray, levelled(shape, counts)))
    sizes = np.array([dealt_by(shape, part, made)[0] for part in parts])
    by_device = sizes.sum(1, dtype=np.int64)
    for expert in range(shape.experts):
        devices, places, rows = computed(shape, expert, made)
        shares = by_device[:, devices, places]
        whole = max(rows.sum(), 1)
        part = parts[:, :, expert].sum(1, dtype=np.int64)
        np.testing.assert_array_equal(shares.sum(1), part)
        # Beyond 2**15 rows, 15 bits of a share count, or 14: each end of it may be that much off.
        allowed = np.where(rows.sum() < 2**15, 1, 1 + part[:, None] / 2**13)
        assert (abs(shares - part[:, None] * rows / whole) <= allowed).all()
    if chunks == 1:
        np.testing.assert_array_equal(by_device[0], made.rows)


@settings(deadline=None, max_examples=50)
@given(problems(), st.integers(0, 2**32))
def test_devices_compute_as_much_whoever_sends(problem, seed):
    shape, counts = problem
    _, sizes, _ = dealt(shape, counts)
    others = np.random.default_rng(seed).permuted(counts, axis=0)
    np.testing.assert_array_equal(sizes.sum(0), dealt(shape, others)[1].sum(0))


def small_problem(rng, *batch):
    """Counts of two chunks, and what has been levelled for both."""
    counts = small_counts(rng, *batch, 2)
    of_one = functools.partial(level, **SMALL.options)
    for _ in batch:
        of_one = jax.vmap(of_one)
    return counts, of_one(counts.sum((-3, -2), dtype=np.int32))


def of_chunk(counts, made, *place):
    """Of one problem of a batch, and of one of its chunks."""
    return dealt_by(SMALL, counts[place], jax.tree.map(lambda array: array[place[:-1]], made))


ONE = functools.partial(deal, **SMALL.group)


@pytest.mark.every_jax
def test_batches(rng):
    counts, made = small_problem(rng, 3)
    of_chunks = jax.vmap(ONE, (0, None))
    for got in (
        jax.vmap(of_chunks)(counts, made),
        jax.jit(jax.vmap(of_chunks, (1, 0)))(counts.swapaxes(0, 1), made),
    ):
        for i, j in itertools.product(range(3), range(2)):
            for array, want in zip(got, of_chunk(counts, made, i, j), strict=True):
                np.testing.assert_array_equal(array[i, j], want)


@pytest.mark.every_jax
@pytest.mark.parametrize("check_vma", [True, False])
def test_in_shard_map(rng, check_vma):
    """Also where counts are each device's own, and what has been levelled is the same on all."""
    counts, made = small_problem(rng)
    counts = small_counts(rng, 8)
    got = spmd(lambda counts: ONE(counts, made), check_vma=check_vma)(counts)
    for device in range(8):
        for array, want in zip(got, dealt_by(SMALL, counts[device], made), strict=True):
            np.testing.assert_array_equal(array[device], want)


@pytest.mark.every_jax
@pytest.mark.parametrize("explicit", [False, True])
def test_where_axes_are_left_to_xla(rng, explicit):
    mesh = mesh_of((4, 2), ("x", "y"), explicit=explicit)
    local = lambda counts, *made: ONE(counts[0, 0], Levelled(*(m[0] for m in made))).sizes[None]  # noqa: E731
    mapped = jax.shard_map(local, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    counts, made = small_problem(rng, 4)
    with jax.set_mesh(mesh):
        spread = jax.NamedSharding(mesh, P("x"))
        operands = jax.device_put([counts, *map(np.asarray, made)], spread)
        got = np.asarray(jax.jit(mapped)(*operands))
    for device in range(4):
        np.testing.assert_array_equal(got[device], of_chunk(counts, made, device, 0)[0])


@pytest.mark.every_jax
@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_other_platforms_have_operations_of_jax(rng, platform):
    def local(counts):
        made = level(counts[0].sum(0, dtype=np.int32), **SMALL.options)
        return ONE(counts[0], made).sizes[None]

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        traced = jax.jit(mapped).trace(small_counts(rng, 8))
        here, there = traced.lower(), traced.lower(lowering_platforms=(platform,))
    for call in (LEVEL, DEAL):
        assert call.target in here.as_text()
        assert call.target not in there.as_text()


def test_it_has_no_derivative(rng):
    counts, made = small_problem(rng)
    operands = (counts[0], Levelled(*map(np.asarray, made)))
    zeros = jax.tree.map(lambda array: np.zeros(array.shape, jax.dtypes.float0), operands)
    values, tangents = jax.jvp(ONE, operands, zeros)
    np.testing.assert_array_equal(values.sizes, dealt_by(SMALL, *operands)[0])
    assert {t.dtype for t in tangents} == {jax.dtypes.float0}


COUNTS = np.ones((4, 8), np.int32)
SLOTS = np.array([[2, -1], [-1, 1], [7, 6], [-1, -1]], np.int32)
ROWS = np.full((4, 4), 2, np.int32)


def put(array, place, value):
    changed = array.copy()
    changed[place] = value
    return changed


def called(counts=COUNTS, slots=SLOTS, rows=ROWS, **options):
    made = Levelled(jnp.asarray(slots), jnp.asarray(rows))
    return lambda: deal(jnp.asarray(counts), made, **(SMALL.group | options))


def ran(*args, **kwargs):
    """In a program of its own: JAX has the second failure of one as another error."""
    return jax.jit(called(*args, **kwargs))


def test_what_is_not_refused():
    """Slots may be unused before others, whatever rows are said to be there."""
    sizes, _ = called()()
    assert sizes.sum() == COUNTS.sum()
    assert (np.asarray(sizes)[:, groups_of(SMALL, SLOTS) < 0] == 0).all()


test_wrong_values = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        (ran(put(COUNTS, (1, 3), -7)), "in deal, expert 3 of sender 1 has -7 rows"),
        (ran(COUNTS * 2**30), f"there are {2**35} rows"),
        (ran(rows=put(ROWS, (2, 1), -7)), "in deal, group 1 of device 2 has -7 rows"),
        (ran(rows=ROWS * 2**29), f"there are {2**34} rows"),
        *(
            (
                ran(slots=put(SLOTS, (2, 0), expert)),
                f"slot 0 of device 2 has expert {expert}.",
                "4 to 7",
            )
            for expert in (-2, 3, 4, 5, 8, 2**31 - 1, -(2**31))
        ),
        (
            ran(slots=put(SLOTS, (2, 1), 7)),
            "slot 1 of device 2 has expert 7",
            "another of its slots",
        ),
    )
)


def raw_call(words=2 * 4 * 4 * 4, dtype=np.int32, shapes=((4, 8), (4, 2), (4, 4)), **attributes):
    options = SMALL.group | {"copies": SMALL.copies, "operands": "counts,slots,rows"}
    given = DEAL.encoded(options | attributes)
    result = jax.ShapeDtypeStruct((words,), np.int32)
    call = jax.jit(jax.ffi.ffi_call(DEAL.target, result), static_argnames=[*given])
    return lambda: call(*(np.zeros(shape, dtype) for shape in shapes), **given)


UNEXPECTED = "unexpected operands"

test_wrong_calls = pytest.mark.sanitize(
    refusals(
        jax.errors.JaxRuntimeError,
        *((raw_call(**{name: 0}), "must be positive") for name in ("servers", "devices", "copies")),
        (raw_call(copies=2**31), "must be positive"),
        (raw_call(words=127), UNEXPECTED),
        (raw_call(words=256), UNEXPECTED),
        (raw_call(shapes=((4, 8), (4, 2))), UNEXPECTED),
        (raw_call(shapes=((), (4, 2), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((8,), (4, 2), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((8, 8), (4, 2), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((4, 6), (4, 2), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((4, 0), (4, 2), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((4, 8), (4, 3), (4, 4))), UNEXPECTED),
        (raw_call(shapes=((4, 8), (4, 2), (4, 5))), UNEXPECTED),
        (raw_call(shapes=((4, 8), (2, 4, 2), (4, 4))), UNEXPECTED),
        (raw_call(dtype=np.float32), UNEXPECTED),
    )
)
