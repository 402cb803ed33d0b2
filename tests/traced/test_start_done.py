"""Exchanges in two parts: values, transformations, and the order in which they begin."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import mesh_of, spmd

import fastjax
import fastjax.errors
from fastjax.traced.after import after
from fastjax.traced.contract import Metadata
from fastjax.traced.start_done import done, start

DEVICES, BATCH = 4, 3


def in_two(operand, output, *way, plan=None, after=(), **given):
    """The rows of an exchange in two parts, with work between them that is part of neither."""
    if plan is None:
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
    begun = start(operand, output, Metadata(*way), plan, after=after, **given)
    beside = jnp.sin(jnp.arange(8.0))
    return done(begun, after=[beside])


def problem_of(rng, trailing=(3,), updates=1):
    meta = reference.packed(reference.random_sizes(rng, DEVICES, DEVICES * updates))
    operand, output = reference.data(rng, meta, trailing)
    return meta, operand, output


@pytest.fixture
def mesh():
    return mesh_of((DEVICES,))


def test_rows_come(rng, mesh):
    meta, operand, output = problem_of(rng, updates=2)
    got = jax.jit(spmd(in_two, mesh))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_rows_narrower_than_a_byte_come(rng, mesh):
    meta, operand, output = problem_of(rng)
    operand, output = (a.astype(np.int8) % 7 for a in (operand, output))

    def narrow(operand, output, *way):
        rows = in_two(operand.astype(jnp.int4), output.astype(jnp.int4), *way)
        assert rows.dtype == jnp.int4
        return rows.astype(jnp.int8)

    got = jax.jit(spmd(narrow, mesh))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_in_reverse_rows_are_summed(rng, mesh):
    """The sum of each row is that of one slice here: slices do not overlap."""
    meta, operand, output = problem_of(rng)
    there = reference.exchange(operand, output, meta)

    def back(there, zeros, *way):
        return in_two(there, zeros, *way, reverse=True)

    got = jax.jit(spmd(back, mesh))(there, np.zeros_like(operand), *meta.arrays())
    sent = np.zeros(operand.shape[:2], bool)
    for device, update in np.ndindex(meta.send_sizes.shape):
        first, count = meta.input_offsets[device, update], meta.send_sizes[device, update]
        sent[device, first : first + count] = True
    np.testing.assert_array_equal(got, np.where(sent[..., None], operand, 0))


def indexed_problem(rng, rows=7):
    meta = reference.packed(reference.random_sizes(rng, DEVICES, DEVICES))
    entries, room = (a.shape[1] for a in reference.data(rng, meta))
    indices = rng.integers(0, rows, (DEVICES, entries)).astype(np.int32)
    source = rng.integers(-9, 9, (DEVICES, rows, 3)).astype(np.float32)
    there = rng.integers(-9, 9, (DEVICES, room, 3)).astype(np.float32)
    return meta, indices, source, there


def test_indices_name_the_rows(rng, mesh):
    meta, indices, source, base = indexed_problem(rng)

    def indexed(source, base, indices, *way):
        return in_two(source, base, *way, indices=indices)

    got = jax.jit(spmd(indexed, mesh))(source, base, indices, *meta.arrays())
    copies = np.take_along_axis(source, indices[..., None], 1)
    np.testing.assert_array_equal(got, reference.exchange(copies, base, meta))


@pytest.mark.parametrize("scaled", [False, True])
def test_indexed_rows_return_summed(rng, mesh, scaled):
    meta, indices, source, there = indexed_problem(rng)
    factors = rng.integers(1, 4, there.shape[:2]).astype(np.float32)
    total = np.zeros_like(source)
    for device, update in np.ndindex(meta.send_sizes.shape):
        first, count = meta.input_offsets[device, update], meta.send_sizes[device, update]
        landed = meta.output_offsets[device, update]
        rows = there[update, landed : landed + count]
        if scaled:
            rows = rows * factors[update, landed : landed + count, None]
        np.add.at(total[device], indices[device, first : first + count], rows)

    def back(there, zeros, indices, factors, *way):
        scale = factors if scaled else None
        return in_two(there, zeros, *way, reverse=True, indices=indices, factors=scale)

    operands = (there, np.zeros_like(source), indices, factors, *meta.arrays())
    np.testing.assert_array_equal(jax.jit(spmd(back, mesh))(*operands), total)


@pytest.mark.parametrize("batched", ["rows", "offsets", "everything"])
def test_batches(rng, mesh, batched):
    meta, operand, output = problem_of(rng, (BATCH, 4))
    way, expected = meta.arrays(), reference.exchange(operand, output, meta)
    again = lambda a: np.stack([a] * BATCH, 1)  # noqa: E731
    if batched == "rows":
        mapped = jax.vmap(in_two, (1, 1, None, None, None, None), 1)
        got = jax.jit(spmd(mapped, mesh))(operand, output, *way)
        np.testing.assert_array_equal(got, expected)
        return
    if batched == "everything":
        arrays = map(again, (operand, output, *way))
        got = jax.jit(spmd(jax.vmap(in_two), mesh))(*arrays)
        np.testing.assert_array_equal(got, again(expected))
        return

    def of_one_plan(operand, output, starts, sizes, landings, received):
        plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
        of = functools.partial(in_two, plan=plan)
        return jax.vmap(of, (None, None, 0, None, None, None))(
            operand, output, starts, sizes, landings, received
        )

    starts, *others = way
    got = jax.jit(spmd(of_one_plan, mesh))(operand, output, again(starts), *others)
    np.testing.assert_array_equal(got, again(expected))


def test_batches_of_indexed_exchanges(rng, mesh):
    meta, indices, source, base = indexed_problem(rng)
    copies = np.take_along_axis(source, indices[..., None], 1)
    expected = reference.exchange(copies, base, meta)
    again = lambda a: np.stack([a] * BATCH, 1)  # noqa: E731

    def indexed(source, base, indices, *way):
        return in_two(source, base, *way, indices=indices)

    arrays = map(again, (source, base, indices, *meta.arrays()))
    got = jax.jit(spmd(jax.vmap(indexed), mesh))(*arrays)
    np.testing.assert_array_equal(got, again(expected))


def chain(rows, output, *way, length=3):
    """Each exchange sends what the one before it brought, and begins after that one."""
    plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
    token = ()
    for _ in range(length):
        begun = start(rows, output, Metadata(*way), plan, after=token)
        rows, token = done(begun), (begun.token,)
    return rows


def chained(operand, output, meta, length=3):
    for _ in range(length):
        operand = reference.exchange(operand, output, meta)
    return operand


def square(rng):
    """An exchange of operand and output of one shape."""
    meta, operand, output = problem_of(rng)
    rows = max(operand.shape[1], output.shape[1])
    shape = (DEVICES, rows, 3)
    return meta, rng.normal(size=shape).astype(np.float32), np.zeros(shape, np.float32)


def test_one_after_another(rng, mesh):
    meta, operand, output = square(rng)
    got = jax.jit(spmd(chain, mesh))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, chained(operand, output, meta))


def test_tokens_go_through_loops(rng, mesh):
    meta, operand, output = square(rng)

    def loop(rows, output, *way):
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")

        def step(carry, _):
            rows, token = carry
            begun = start(rows, output, Metadata(*way), plan, after=[token])
            return (done(begun), begun.token), None

        token = jax.lax.pcast(jnp.zeros(2, jnp.uint32), "x", to="varying")
        return jax.lax.scan(step, (rows, token), None, length=3)[0][0]

    got = jax.jit(spmd(loop, mesh))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, chained(operand, output, meta))


def test_what_has_derivatives_of_its_own_is_made_of_both_parts(rng, mesh):
    """In checkpoints too, which make the exchange again where its rows are needed."""
    meta, operand, output = square(rng)

    @jax.custom_vjp
    def twice(operand, output, *way):
        return in_two(operand, output, *way) * 2

    def forward(operand, output, *way):
        return twice(operand, output, *way), way

    def backward(way, ct):
        returned = in_two(2 * ct, jnp.zeros_like(ct), *way, reverse=True)
        return (returned, None, None, None, None, None)

    twice.defvjp(forward, backward)

    def gradient(operand, output, *way):
        loss = lambda rows: (jax.checkpoint(twice)(jnp.sin(rows), output, *way) ** 2).sum()  # noqa: E731
        return jax.grad(loss)(operand)

    got = jax.jit(spmd(gradient, mesh))(operand, output, *meta.arrays())
    sent = np.zeros(operand.shape[:2], bool)
    for device, update in np.ndindex(meta.send_sizes.shape):
        first, count = meta.input_offsets[device, update], meta.send_sizes[device, update]
        sent[device, first : first + count] = True
    expected = np.where(sent[..., None], 8 * np.sin(operand) * np.cos(operand), 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_derivatives_are_refused(rng, mesh):
    meta, operand, output = problem_of(rng)

    def loss(operand, output, *way):
        return jax.grad(lambda rows: in_two(rows, output, *way).sum())(operand)

    with pytest.raises(fastjax.errors.UnsupportedError, match="no derivatives"):
        jax.jit(spmd(loss, mesh)).lower(operand, output, *meta.arrays())


def test_no_exchange_of_rows_that_nobody_needs(rng, mesh):
    """But what begins after it still waits for what it would have waited for."""
    meta, operand, output = problem_of(rng)

    def token_only(operand, output, *way):
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
        begun = start(operand, output, Metadata(*way), plan)
        done(begun)
        return done(start(operand * 2, output, Metadata(*way), plan, after=[begun.token]))

    program = jax.jit(spmd(token_only, mesh))
    text = program.lower(operand, output, *meta.arrays()).as_text()
    assert text.count("custom_call @fastjax_exchange") == 1
    got = program(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(2 * operand, output, meta))


@pytest.mark.parametrize("platforms", [("tpu",), ("tpu", "cpu")])
def test_platforms_without_a_backend(rng, mesh, platforms):
    meta, operand, output = problem_of(rng)
    traced = jax.jit(spmd(in_two, mesh)).trace(operand, output, *meta.arrays())
    text = traced.lower(lowering_platforms=platforms).as_text()
    assert "ragged_all_to_all" in text
    assert ("fastjax_exchange" in text) == ("cpu" in platforms)


def test_what_is_between_runs_beside_the_exchange(rng, mesh):
    """One device brings its rows when the others have done what is between start and done."""
    meta, operand, output = problem_of(rng)
    reached = [threading.Event() for _ in range(DEVICES)]

    def bring(device, rows):
        assert device != 3 or all(event.wait(60) for event in reached[:3])
        return np.asarray(rows)

    def work(device, rows):
        reached[int(device)].set()
        return np.asarray(rows)

    def on_host(function, rows):
        shape = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
        return jax.pure_callback(function, shape, jax.lax.axis_index("x"), rows)

    def local(operand, output, *way):
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
        begun = start(on_host(bring, operand), output, Metadata(*way), plan)
        beside = after(jnp.ones((64, 64)), begun.token)
        for _ in range(12):  # XLA takes a program of few operations one after the other
            beside = jnp.sin(beside @ beside)
        return done(begun, after=[on_host(work, beside)])

    program = jax.jit(spmd(local, mesh, check_vma=False))
    got = program(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
    assert all(event.is_set() for event in reached)
