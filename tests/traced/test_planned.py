"""Plans made early and used often: plan=, transpose(), and how often anything is planned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange
from spmd import mesh_of, spmd

import fastjax
from fastjax.errors import ArgumentError


def setting(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    n, m = reference.rows_needed(meta)
    x = rng.normal(size=(8, n, 3)).astype(np.float32)
    return meta, x, (m, 3)


def test_transpose_twice_is_the_plan_itself():
    plan = fastjax.TracedPlan(jnp.zeros(3, jnp.int32), None, ("x",), None)  # type: ignore[arg-type]
    assert plan.transpose().transposed
    assert not plan.transpose().transpose().transposed
    leaves, structure = jax.tree.flatten(plan.transpose())
    assert len(leaves) == 1
    assert jax.tree.unflatten(structure, leaves).transposed


def test_a_plan_crosses_jit_scan_and_shard_map(rng):
    meta, x, out_shape = setting(rng)
    mesh = mesh_of()
    plan_step = spmd(
        lambda sizes: fastjax.plan_ragged_all_to_all(
            sizes, axis_name="x", topology=fastjax.Topology(2, 4)
        ),
        mesh,
    )
    plan = jax.block_until_ready(plan_step(meta.arrays()[1]))
    assert plan.table.shape[0] == 8

    def local(plan, x, *arrays):
        def body(c, _):
            zeros = jnp.zeros(out_shape, x.dtype)
            rows = exchange(x, zeros, *arrays, plan=plan)
            return c + rows, None

        zeros = jax.lax.pcast(jnp.zeros(out_shape, x.dtype), ("x",), to="varying")
        return jax.lax.scan(body, zeros, None, length=3)[0]

    before = fastjax.planning_count()
    got = jax.block_until_ready(spmd(local, mesh)(plan, x, *meta.arrays()))
    assert fastjax.planning_count() == before
    zeros = np.zeros((8, *out_shape), np.float32)
    np.testing.assert_allclose(got, 3 * reference.exchange(x, zeros, meta), rtol=1e-6)


def test_plans_of_sizes_from_a_custom_gradient(rng):
    """JAX hands on a tangent for such integers, in name only."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)

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


def test_gradients_of_more_rows_than_int32_counts(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    rows = jax.ShapeDtypeStruct((8, 2**31), jnp.float8_e4m3fn)
    few = jax.ShapeDtypeStruct((8, 4), jnp.float8_e4m3fn)

    def local(operand, output, *arrays):
        loss = lambda b: exchange(operand, b, *arrays).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(loss)(output)

    with pytest.raises(ArgumentError, match="an output of 2147483648 rows need more than int32"):
        jax.eval_shape(spmd(local).mapped, few, rows, *meta.arrays())
