"""Exchanges in two parts: values, transformations, and the order in which they begin."""

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

DEVICES = 4


def in_two(operand, output, *way, **given):
    """The rows of an exchange in two parts, with work between them that is part of neither."""
    plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
    begun = start(operand, output, Metadata(*way), plan, **given)
    beside = jnp.sin(jnp.arange(8.0))
    return done(begun, after=[beside])


@pytest.fixture
def mesh():
    return mesh_of((DEVICES,))


def problem_of(rng, updates=1):
    meta = reference.packed(reference.random_sizes(rng, DEVICES, DEVICES * updates))
    return meta, *reference.data(rng, meta)


def test_rows_narrower_than_a_byte_come(rng, mesh):
    meta, operand, output = problem_of(rng, updates=2)
    operand, output = (a.astype(np.int8) % 7 for a in (operand, output))

    def narrow(operand, output, *way):
        rows = in_two(operand.astype(jnp.int4), output.astype(jnp.int4), *way)
        assert rows.dtype == jnp.int4
        return rows.astype(jnp.int8)

    got = jax.jit(spmd(narrow, mesh))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize(
    ("reverse", "names"),
    [(False, ["indices"]), (True, []), (True, ["indices"]), (True, ["indices", "factors"])],
    ids=str,
)
@pytest.mark.parametrize("batched", [False, True])
def test_rows_that_indices_name_and_sums(rng, mesh, reverse, names, batched):
    meta, copies, there = problem_of(rng)
    source = rng.integers(-9, 9, (DEVICES, 7, 3)).astype(np.float32)
    indices = rng.integers(0, 7, copies.shape[:2]).astype(np.int32)
    there = rng.integers(-9, 9, there.shape).astype(np.float32)
    factors = rng.integers(1, 4, there.shape[:2]).astype(np.float32)
    if "indices" not in names:
        source = np.zeros_like(copies)
    both = {"indices": indices, "factors": factors}
    given = {name: both[name] for name in names}
    if reverse:
        rows, expected = (there, source), reference.returned(there, source, meta, **given)
    else:
        copies = np.take_along_axis(source, indices[..., None], 1)
        rows, expected = (source, there), reference.exchange(copies, there, meta)

    def local(rows, given, way):
        return in_two(*rows, *way, reverse=reverse, **given)

    arguments = rows, given, meta.arrays()
    if batched:
        again = lambda a: np.stack([a, a], 1)  # noqa: E731
        arguments, expected = jax.tree.map(again, (arguments, expected))
    run = jax.jit(spmd(jax.vmap(local) if batched else local, mesh))
    np.testing.assert_array_equal(run(*arguments), expected)


def square(rng):
    """An exchange of operand and output of one shape."""
    meta, operand, output = problem_of(rng)
    shape = (DEVICES, max(operand.shape[1], output.shape[1]), 3)
    return meta, rng.normal(size=shape).astype(np.float32), np.zeros(shape, np.float32)


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
    for _ in range(3):
        operand = reference.exchange(operand, output, meta)
    np.testing.assert_array_equal(got, operand)


def test_functions_with_derivatives_of_their_own_are_made_of_both_parts(rng, mesh):
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
    derivative = 8 * np.sin(operand) * np.cos(operand)
    moved = reference.exchange(derivative, output, meta)
    expected = reference.returned(moved, np.zeros_like(operand), meta)
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


def test_work_between_the_parts_runs_beside_the_exchange(rng, mesh):
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


def test_an_error_between_the_two_leaves_the_next_run_right(rng, mesh):
    """One exchange is in flight when another of the same program fails."""
    meta, operand, output = problem_of(rng)

    def local(operand, output, received, *way):
        plan = fastjax.plan_ragged_all_to_all(way[1], axis_name="x")
        begun = start(operand, output, Metadata(*way), plan)
        after = [begun.token]
        other = start(operand, output, Metadata(*way[:3], received), plan, after=after)
        return done(begun, after=[other.token]) + done(other)

    program = jax.jit(spmd(local, mesh))
    arrays = meta.arrays()
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match="receive"):
            jax.block_until_ready(program(operand, output, arrays[3] + 1, *arrays))
        got = program(operand, output, arrays[3], *arrays)
        np.testing.assert_array_equal(got, 2 * reference.exchange(operand, output, meta))
