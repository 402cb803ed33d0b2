"""Transformations that meet: batches of gradients, plans of batches, and JAX's strict modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import mesh_of, spmd

import fastjax
from fastjax import moe
from fastjax.errors import ArgumentError

GROUPS = [[0, 2, 5, 7], [1, 3, 4, 6]]
STAGED = fastjax.Topology(2, 4)


def exchange(*args, **options):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", **options)


@pytest.fixture
def problem(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    return meta, *reference.data(rng, meta)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("data_only", [True, False])
def test_vmap_of_gradients_with_groups(rng, data_only, check_vma):
    """JAX has no vmap of an all_to_all with groups, which the output's gradient would need."""
    meta = reference.packed(reference.random_sizes(rng, 8, 4), GROUPS)
    operand, output = reference.data(rng, meta)

    def gradients(operand, output, *arrays):
        loss = lambda a, b: (exchange(a, b, *arrays, axis_index_groups=GROUPS) ** 2).sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(operand, output)

    def local(operand, output, *arrays):
        data = [jnp.stack([x, 2 * x]) for x in (operand, output)]
        if data_only:
            return jax.vmap(lambda a, b: gradients(a, b, *arrays))(*data)
        return jax.vmap(gradients)(*data, *(jnp.stack([x, x]) for x in arrays))

    found = spmd(local, check_vma=check_vma)(operand, output, *meta.arrays())
    loss = lambda a, b: (reference.exchange_in_jax(a, b, meta, GROUPS) ** 2).sum()  # noqa: E731
    for k, times in enumerate((1, 2)):
        wanted = jax.grad(loss, (0, 1))(jnp.array(times * operand), jnp.array(times * output))
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours[:, k], theirs, rtol=1e-5)


def test_vmap_of_receive_sizes_alone(problem):
    """The plan is that of the send sizes, which are not batched."""
    meta, operand, output = problem
    *rest, recv = meta.arrays()

    def gradient(operand, output, *arrays):
        return jax.grad(lambda a: (exchange(a, output, *arrays) ** 2).sum())(operand)

    def local(operand, output, i, s, o, r):
        plan = fastjax.plan_ragged_all_to_all(s, axis_name="x", topology=STAGED)
        twice = jnp.stack([r, r])
        return (
            jax.vmap(lambda r: gradient(operand, output, i, s, o, r))(twice),
            jax.vmap(lambda r: exchange(operand, output, i, s, o, r, plan=plan))(twice),
        )

    gradients, values = spmd(local)(operand, output, *rest, recv)
    loss = lambda a: (reference.exchange_in_jax(a, jnp.array(output), meta) ** 2).sum()  # noqa: E731
    wanted = jax.grad(loss)(jnp.array(operand))
    for k in range(2):
        np.testing.assert_allclose(gradients[:, k], wanted, rtol=1e-5)
        np.testing.assert_array_equal(values[:, k], reference.exchange(operand, output, meta))


def test_vmap_of_send_sizes_on_the_way_back(problem):
    """A transposed plan was made from what are receive sizes now."""
    meta, operand, output = problem
    there = meta.arrays()
    i, s, o, r = there
    back = (np.ascontiguousarray(o.T), r, np.ascontiguousarray(i.T), s)

    def local(rows, base, sizes, i, s, o, r):
        plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x", topology=STAGED).transpose()
        return jax.vmap(lambda s: exchange(rows, base, i, s, o, r, plan=plan))(jnp.stack([s, s]))

    found = spmd(local)(output, operand, there[1], *back)
    wanted = reference.exchange(output, operand, reference.Metadata(*back))
    for k in range(2):
        np.testing.assert_array_equal(found[:, k], wanted)


def test_plans_of_sizes_from_a_custom_gradient(problem):
    """JAX hands on a tangent for such integers, in name only."""
    meta, operand, output = problem

    @jax.custom_vjp
    def routed(sizes, rows):
        return sizes, 2 * rows

    routed.defvjp(lambda s, x: (routed(s, x), None), lambda _, ct: (None, 2 * ct[1]))

    def local(operand, output, i, s, o, r):
        def loss(operand):
            sizes, rows = routed(s, operand)
            plan = fastjax.plan_ragged_all_to_all(sizes, axis_name="x")
            return (exchange(rows, output, i, s, o, r, plan=plan) ** 2).sum()

        return jax.grad(loss)(operand)

    found = spmd(local, check_vma=False)(operand, output, *meta.arrays())
    loss = lambda a: (reference.exchange_in_jax(2 * a, jnp.array(output), meta) ** 2).sum()  # noqa: E731
    np.testing.assert_allclose(found, jax.grad(loss)(jnp.array(operand)), rtol=1e-5)


def test_gradients_of_more_rows_than_int32_counts(problem):
    meta, *_ = problem
    rows = jax.ShapeDtypeStruct((8, 2**31), jnp.float8_e4m3fn)
    few = jax.ShapeDtypeStruct((8, 4), jnp.float8_e4m3fn)

    def local(operand, output, *arrays):
        loss = lambda b: exchange(operand, b, *arrays).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(loss)(output)

    with pytest.raises(ArgumentError, match="an output of 2147483648 rows need more than int32"):
        jax.eval_shape(spmd(local).mapped, few, rows, *meta.arrays())


X = np.random.default_rng(0).normal(size=(8, 6, 4)).astype(np.float32)
IDS = np.random.default_rng(1).integers(0, 16, (8, 6, 2))


def layer(x, ids, weights=None, dtype=None):
    x = x if dtype is None else x.astype(dtype)
    rows, sizes, handle = moe.dispatch(
        x, ids, num_experts=16, axis_name="x", buffer_factor=4.0, alignment=2
    )
    eyes = jnp.broadcast_to(jnp.eye(4, dtype=jnp.float32), (2, 4, 4))
    return moe.combine(moe.grouped_dot(rows, eyes, sizes).astype(x.dtype), handle, weights)


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_strict_modes_of_jax(problem, dtype):
    """Ranks and types are only promoted where we say so."""
    meta, operand, output = problem

    def batched(*args):
        return jax.vmap(exchange)(*(jnp.stack([a, a]) for a in args))

    def trained(x, ids, weights):
        loss = lambda x, w: (layer(x, ids, w, dtype).astype(jnp.float32) ** 2).sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(x, weights)

    weights = np.full((8, 6, 2), 0.5, np.float32)
    wanted = spmd(trained)(X, IDS, weights)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        found = spmd(batched)(operand, output, *meta.arrays())
        strict = spmd(trained)(X, IDS, weights)
    expected = reference.exchange(operand, output, meta)
    np.testing.assert_array_equal(found, np.stack([expected, expected], 1))
    for ours, theirs in zip(strict, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_weights_of_choices_that_go_nowhere_may_be_anything():
    ids = IDS.copy()
    ids[:, 0] = -1
    ids[:, 1, 1] = -1
    weights = np.where(ids < 0, np.nan, 0.5).astype(np.float32)
    found = spmd(layer)(X, ids, weights)
    np.testing.assert_allclose(found, X * (0.5 * (ids >= 0).sum(-1, keepdims=True)), rtol=1e-6)

    def gradient(x, ids, weights):
        return jax.grad(lambda x, w: layer(x, ids, w).sum(), (0, 1))(x, weights)

    for each in spmd(gradient)(X, ids, weights):
        assert np.isfinite(each).all()


def test_tokens_of_no_width():
    def local(x, ids):
        rows, _, handle = moe.dispatch(x, ids, num_experts=16, axis_name="x")
        return moe.combine(rows, handle)

    assert spmd(local, mesh_of())(X[..., :0], IDS).shape == (8, 6, 0)
