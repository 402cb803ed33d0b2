"""Plans made early and used often: plan=, transpose(), and how often anything is planned."""

import jax
import jax.numpy as jnp
import numpy as np
import reference
from spmd import mesh_of, spmd

import fastjax


def setting(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    n, m = reference.rows_needed(meta)
    x = rng.normal(size=(8, n, 3)).astype(np.float32)
    return meta, x, (m, 3)


def test_a_value_and_its_gradient_are_planned_once_even_without_a_plan(rng):
    meta, x, out_shape = setting(rng)

    def local(x, *arrays):
        zeros = jnp.zeros(out_shape, x.dtype)
        loss = lambda x: jnp.sum(  # noqa: E731
            jnp.sin(fastjax.fast_ragged_all_to_all(x, zeros, *arrays, axis_name="x"))
        )
        return jax.value_and_grad(loss)(x)

    run = spmd(local)
    before = fastjax.planning_count()
    jax.block_until_ready(run(x, *meta.arrays()))
    assert fastjax.planning_count() - before == 1


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
            rows = fastjax.fast_ragged_all_to_all(x, zeros, *arrays, axis_name="x", plan=plan)
            return c + rows, None

        zeros = jax.lax.pcast(jnp.zeros(out_shape, x.dtype), ("x",), to="varying")
        return jax.lax.scan(body, zeros, None, length=3)[0]

    before = fastjax.planning_count()
    got = jax.block_until_ready(spmd(local, mesh)(plan, x, *meta.arrays()))
    assert fastjax.planning_count() == before
    zeros = np.zeros((8, *out_shape), np.float32)
    np.testing.assert_allclose(got, 3 * reference.exchange(x, zeros, meta), rtol=1e-6)


def test_vmap_with_a_plan_of_the_same_sizes(rng):
    """Data in batches, one plan: the rows of all elements travel together."""
    meta, x, out_shape = setting(rng)
    batch = np.stack([x, 2 * x, -x], axis=1)

    def local(batch, *arrays):
        plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
        zeros = jnp.zeros(out_shape, batch.dtype)
        f = lambda x: fastjax.fast_ragged_all_to_all(  # noqa: E731
            x, zeros, *arrays, axis_name="x", plan=plan
        )
        return jax.vmap(f)(batch)

    got = spmd(local)(batch, *meta.arrays())
    zeros = np.zeros((8, *out_shape), np.float32)
    for b in range(3):
        np.testing.assert_array_equal(got[:, b], reference.exchange(batch[:, b], zeros, meta))


def test_vmap_with_planning_inside(rng):
    metas = [reference.packed(reference.random_sizes(rng, 8, 8)) for _ in range(3)]
    n, m = np.max([reference.rows_needed(meta) for meta in metas], axis=0)
    x = rng.normal(size=(8, 3, n, 2)).astype(np.float32)
    arrays = [np.stack(parts, 1) for parts in zip(*(q.arrays() for q in metas), strict=True)]

    def one(x, *arrays):
        plan = fastjax.plan_ragged_all_to_all(
            arrays[1], axis_name="x", topology=fastjax.Topology(4, 2)
        )
        zeros = jnp.zeros((m, 2), x.dtype)
        return fastjax.fast_ragged_all_to_all(x, zeros, *arrays, axis_name="x", plan=plan)

    got = spmd(jax.vmap(one))(x, *arrays)
    for b, meta in enumerate(metas):
        zeros = np.zeros((8, m, 2), np.float32)
        np.testing.assert_array_equal(got[:, b], reference.exchange(x[:, b], zeros, meta))


def test_vmap_over_plans_made_outside(rng):
    """Each element brings its own plan: one exchange for each."""
    metas = [reference.packed(reference.random_sizes(rng, 8, 8)) for _ in range(2)]
    n, m = np.max([reference.rows_needed(meta) for meta in metas], axis=0)
    x = rng.normal(size=(8, 2, n, 2)).astype(np.float32)
    arrays = [np.stack(parts, 1) for parts in zip(*(q.arrays() for q in metas), strict=True)]

    def local(x, *arrays):
        plans = [fastjax.plan_ragged_all_to_all(s, axis_name="x") for s in arrays[1]]
        stacked = jax.tree.map(lambda *t: jnp.stack(t), *plans)

        def one(x, plan, *arrays):
            zeros = jnp.zeros((m, 2), x.dtype)
            return fastjax.fast_ragged_all_to_all(x, zeros, *arrays, axis_name="x", plan=plan)

        return jax.vmap(one)(x, stacked, *arrays)

    got = spmd(local)(x, *arrays)
    for b, meta in enumerate(metas):
        zeros = np.zeros((8, m, 2), np.float32)
        np.testing.assert_array_equal(got[:, b], reference.exchange(x[:, b], zeros, meta))


def test_vmap_of_offsets_with_a_plan(rng):
    meta, x, out_shape = setting(rng)
    x = np.concatenate([x, x], axis=1)
    inputs = np.stack([meta.input_offsets, meta.input_offsets + 1], axis=1).astype(np.int32)

    def local(x, inputs, *arrays):
        plan = fastjax.plan_ragged_all_to_all(arrays[0], axis_name="x")
        zeros = jnp.zeros(out_shape, x.dtype)
        f = lambda i: fastjax.fast_ragged_all_to_all(  # noqa: E731
            x, zeros, i, *arrays, axis_name="x", plan=plan
        )
        return jax.vmap(f)(inputs)

    got = spmd(local)(x, inputs, *meta.arrays()[1:])
    for b in range(2):
        moved = reference.Metadata(inputs[:, b], *meta.arrays()[1:])
        zeros = np.zeros((8, *out_shape), np.float32)
        np.testing.assert_array_equal(got[:, b], reference.exchange(x, zeros, moved))
