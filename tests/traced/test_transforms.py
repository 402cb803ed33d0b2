"""Gradients, batches, loops and rematerialisation, against one-device jax.numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax

STAGED = fastjax.Topology(2, 4)
GROUPS = [[0, 2, 5, 7], [1, 3, 4, 6]]


def exchange(*args, **options):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x", **options)


def case(rng, entries=8, groups=None, most=5):
    meta = reference.packed(reference.random_sizes(rng, 8, entries, most), groups)
    operand, output = reference.data(rng, meta)
    return meta, operand, output


def gradients(run_local, operand, output, arrays, weights, **spmd_options):
    """Gradients of sum(weights * exchange) with respect to operand and output."""

    def local(operand, output, weights, *arrays):
        return jax.grad(
            lambda a, b: jnp.sum(weights * jnp.sin(run_local(a, b, *arrays))), argnums=(0, 1)
        )(operand, output)

    return spmd(local, **spmd_options)(operand, output, weights, *arrays)


def expected_gradients(operand, output, meta, weights, groups=None):
    return jax.grad(
        lambda a, b: jnp.sum(weights * jnp.sin(reference.exchange_in_jax(a, b, meta, groups))),
        argnums=(0, 1),
    )(jnp.asarray(operand), jnp.asarray(output))


def test_gradient_with_a_fresh_output_under_check_vma(rng):
    """jax.lax types this result as equal on all devices, and its gradients are wrong."""
    meta, operand, output = case(rng)
    weights = rng.normal(size=output.shape).astype(np.float32)

    def fresh(operand, _, *arrays):
        return exchange(operand, jnp.zeros(output.shape[1:], operand.dtype), *arrays)

    got, _ = gradients(fresh, operand, output, meta.arrays(), weights, check_vma=True)
    expected, _ = expected_gradients(operand, np.zeros_like(output), meta, weights)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_result_varies_over_the_axis(rng):
    meta, operand, output = case(rng)

    def local(operand, *arrays):
        fresh = jnp.zeros(output.shape[1:], operand.dtype)
        return exchange(operand[0], fresh, *(a[0] for a in arrays))

    invariant = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P())
    with pytest.raises(ValueError, match=r"varying|replicat"):
        jax.jit(invariant)(operand, *meta.arrays())


def test_gradient_of_an_output_that_is_the_same_everywhere(rng):
    """A replicated output is used by every device: its gradient is the sum over them."""
    meta, operand, output = case(rng)
    shared = output[0]
    weights = rng.normal(size=output.shape).astype(np.float32)

    def local(operand, shared, weights, *arrays):
        arrays = [a[0] for a in arrays]
        loss = lambda b: jnp.sum(weights[0] * exchange(operand[0], b, *arrays))  # noqa: E731
        return jax.grad(loss)(shared)

    f = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh_of(),
            in_specs=(P("x"), P(), P("x"), *([P("x")] * 4)),
            out_specs=P(),
        )
    )
    got = f(operand, shared, weights, *meta.arrays())
    untouched = np.ones(output.shape[:2], bool)
    for _, _, j, landing, rows in reference.moves(meta):
        untouched[j, landing : landing + rows] = False
    expected = (weights * untouched[..., None]).sum(0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_jvp_and_second_derivative(rng):
    meta, operand, output = case(rng)
    operand_dot, output_dot = rng.normal(size=operand.shape), rng.normal(size=output.shape)
    tangents = [t.astype(np.float32) for t in (operand_dot, output_dot)]

    def pushed(f, a, b, *ts):
        return jax.jvp(lambda a, b: jnp.sin(f(a, b)), (a, b), ts)

    got = spmd(lambda a, b, c, d, *m: pushed(lambda x, y: exchange(x, y, *m), a, b, c, d))(
        operand, output, *tangents, *meta.arrays()
    )
    f = functools.partial(reference.exchange_in_jax, meta=meta)
    expected = pushed(f, *map(jnp.asarray, (operand, output, *tangents)))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-6)

    def curvature(f, a, b, v):
        grad = jax.grad(lambda a: jnp.sum(jnp.sin(f(a, b)) ** 2))
        return jax.jvp(grad, (a,), (v,))[1]

    got = spmd(lambda a, b, v, *m: curvature(lambda x, y: exchange(x, y, *m), a, b, v))(
        operand, output, tangents[0], *meta.arrays()
    )
    expected = curvature(f, *map(jnp.asarray, (operand, output, tangents[0])))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_transposed_twice_is_the_exchange(rng):
    meta, operand, output = case(rng)

    def local(operand, output, *arrays):
        zeros = jnp.zeros_like(output)
        forward = lambda a: exchange(a, zeros, *arrays)  # noqa: E731
        back = jax.linear_transpose(forward, operand)
        again = jax.linear_transpose(lambda ct: back(ct)[0], output)
        return again(operand)[0]

    got = spmd(local)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, np.zeros_like(output), meta))


def batch(rng, size=3, groups=None):
    metas = [reference.packed(reference.random_sizes(rng, 8, 8), groups) for _ in range(size)]
    n, m = np.max([reference.rows_needed(meta) for meta in metas], axis=0)
    operand = rng.normal(size=(8, size, n, 3)).astype(np.float32)
    output = rng.normal(size=(8, size, m, 3)).astype(np.float32)
    return metas, operand, output


def stacked(metas, dtype=np.int32):
    return [
        np.stack(parts, axis=1) for parts in zip(*(m.arrays(dtype) for m in metas), strict=True)
    ]


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["all", "groups"])
@pytest.mark.parametrize("dtype", [np.int32, np.int8])
def test_vmap_of_everything(rng, groups, dtype):
    metas, operand, output = batch(rng, groups=groups)
    f = functools.partial(exchange, axis_index_groups=groups, topology=STAGED)
    got = spmd(jax.vmap(f))(operand, output, *stacked(metas, dtype))
    for b, meta in enumerate(metas):
        expected = reference.exchange(operand[:, b], output[:, b], meta, groups)
        np.testing.assert_array_equal(got[:, b], expected)


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (0, None), (None, 1), (2, 0)])
def test_vmap_of_the_data_only(rng, axes):
    """jax.lax fails an assertion here."""
    meta, operand, output = case(rng)
    size = 4
    args, in_axes = [], []
    for x, axis in zip((operand, output), axes, strict=True):
        stack = np.stack([x + i for i in range(size)], axis=1)
        args.append(x if axis is None else np.moveaxis(stack, 1, axis + 1))
        in_axes.append(axis)
    run = spmd(jax.vmap(exchange, in_axes=(*in_axes, None, None, None, None)))
    got = run(*args, *meta.arrays())
    for b in range(size):
        parts = [
            x if axis is None else np.take(x, b, axis=axis + 1)
            for x, axis in zip(args, axes, strict=True)
        ]
        np.testing.assert_array_equal(got[:, b], reference.exchange(*parts, meta))


def test_vmap_of_the_metadata_only(rng):
    metas, operand, output = batch(rng)
    run = spmd(jax.vmap(exchange, in_axes=(None, None, 0, 0, 0, 0)))
    got = run(operand[:, 0], output[:, 0], *stacked(metas))
    for b, meta in enumerate(metas):
        expected = reference.exchange(operand[:, 0], output[:, 0], meta)
        np.testing.assert_array_equal(got[:, b], expected)


def test_vmap_of_one_offset_only(rng):
    meta, operand, output = case(rng)
    shifts = np.arange(3)
    arrays = list(meta.arrays())
    operand = np.concatenate([operand, operand], axis=1)
    arrays[0] = arrays[0][:, None] + shifts[None, :, None].astype(np.int32)
    got = spmd(jax.vmap(exchange, in_axes=(None, None, 0, None, None, None)))(
        operand, output, *arrays
    )
    for b in shifts:
        moved = reference.Metadata(arrays[0][:, b], *meta.arrays()[1:])
        np.testing.assert_array_equal(got[:, b], reference.exchange(operand, output, moved))


def test_vmap_twice_and_under_grad(rng):
    meta, operand, output = case(rng)
    operand = np.stack([operand * i for i in range(1, 5)], axis=1).reshape(8, 2, 2, -1, 3)
    f = jax.vmap(jax.vmap(exchange, (0, None, *[None] * 4)), (0, None, *[None] * 4))
    weights = rng.normal(size=(8, 2, 2, *output.shape[1:])).astype(np.float32)

    def local(operand, output, weights, *arrays):
        return jax.grad(lambda a: jnp.sum(weights * f(a, output, *arrays) ** 2))(operand)

    got = spmd(local)(operand, output, weights, *meta.arrays())
    reference_f = lambda a: reference.exchange_in_jax(a, output, meta)  # noqa: E731
    every = jax.vmap(jax.vmap(reference_f, 1, 1), 1, 1)
    loss = lambda a: jnp.sum(weights * every(a) ** 2)  # noqa: E731
    np.testing.assert_allclose(got, jax.grad(loss)(jnp.asarray(operand)), rtol=1e-5)


def test_gradient_under_vmap_of_everything(rng):
    metas, operand, output = batch(rng)
    weights = rng.normal(size=output.shape).astype(np.float32)

    def local(operand, output, weights, *arrays):
        def one(a, b, w, *m):
            return jax.grad(lambda a, b: jnp.sum(w * exchange(a, b, *m) ** 2), (0, 1))(a, b)

        return jax.vmap(one)(operand, output, weights, *arrays)

    got = spmd(local)(operand, output, weights, *stacked(metas))
    for b, meta in enumerate(metas):
        loss = lambda x, y: jnp.sum(  # noqa: E731
            weights[:, b] * reference.exchange_in_jax(x, y, meta) ** 2  # noqa: B023
        )
        parts = (jnp.asarray(operand[:, b]), jnp.asarray(output[:, b]))
        for g, e in zip(got, jax.grad(loss, (0, 1))(*parts), strict=True):
            np.testing.assert_allclose(g[:, b], e, rtol=1e-5)


def test_vmap_looks_for_overlaps_in_each_element(rng):
    """Elements of a batch land at the same offsets, each in its own output."""
    meta = reference.packed(rng.integers(1, 6, (8, 8)), gap=5)
    operand, output = reference.data(rng, meta)
    good = reference.packed(meta.send_sizes)
    # The last row that device 6 has for device 2 lands on the first one of device 1.
    meta.output_offsets[6, 2] = meta.output_offsets[1, 2] - meta.send_sizes[6, 2] + 1
    text = "device 6 and device 1 both write row"

    def batched(*args):
        return jax.vmap(exchange)(*(jnp.stack([a, a]) for a in args))

    with fastjax.options(check_overlaps=True):
        got = spmd(batched)(operand, output, *good.arrays())
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(spmd(batched)(operand, output, *meta.arrays()))
    expected = reference.exchange(operand, output, good)
    np.testing.assert_array_equal(got, np.stack([expected, expected], 1))


def rounds(operand, output, arrays, step):
    """The same exchange again and again, each time on what the last one left."""
    rows = operand.shape[0]
    return step(lambda x: exchange(x, output, *arrays, topology=STAGED)[:rows] + 1.0)


def expected_rounds(operand, output, meta, count):
    x = operand
    for _ in range(count):
        x = reference.exchange(x, output, meta)[:, : operand.shape[1]] + 1.0
    return x


def loop_case(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 4))
    operand, output = reference.data(rng, meta)
    rows = max(operand.shape[1], output.shape[1])
    shape = (8, rows, 3)
    return meta, *(rng.normal(size=shape).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", ["scan", "fori", "while", "unrolled scan"])
def test_loops(rng, kind, check_vma):
    meta, operand, output = loop_case(rng)

    def local(operand, output, *arrays):
        def step(once):
            if kind in ("scan", "unrolled scan"):
                unroll = 1 if kind == "scan" else 3
                body = lambda c, _: (once(c), None)  # noqa: E731
                return jax.lax.scan(body, operand, None, length=6, unroll=unroll)[0]
            if kind == "fori":
                return jax.lax.fori_loop(0, 6, lambda _, c: once(c), operand)
            return jax.lax.while_loop(
                lambda c: c[0] < 6, lambda c: (c[0] + 1, once(c[1])), (0, operand)
            )[1]

        return rounds(operand, output, arrays, step)

    got = spmd(local, check_vma=check_vma)(operand, output, *meta.arrays())
    np.testing.assert_allclose(got, expected_rounds(operand, output, meta, 6), rtol=1e-6)


def test_cond_that_all_devices_take_alike(rng):
    meta, operand, output = loop_case(rng)

    def local(flag, operand, output, *arrays):
        return jax.lax.cond(
            flag > 0,
            lambda: exchange(operand, output, *arrays),
            lambda: jax.lax.pcast(output * 2, (), to="varying"),
        )

    run = spmd(local)
    for flag in (0, 1):
        got = run(np.full(8, flag), operand, output, *meta.arrays())
        expected = reference.exchange(operand, output, meta) if flag else output * 2
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("policy", [None, "dots_saveable", "everything_saveable"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_through_rematerialised_scan(rng, policy, check_vma):
    """Layers under scan and remat, as trainers have them."""
    meta, operand, output = loop_case(rng)
    policy = policy and getattr(jax.checkpoint_policies, policy)

    def model(once, x):
        layer = jax.checkpoint(lambda c, w: (jnp.sin(once(c)) * w, None), policy=policy)
        return jnp.sum(jax.lax.scan(layer, x, jnp.arange(1.0, 4.0))[0] ** 2)

    def local(operand, output, *arrays):
        return jax.grad(lambda x: model(lambda c: exchange(c, output, *arrays), x))(operand)

    got = spmd(local, check_vma=check_vma)(operand, output, *meta.arrays())
    expected = jax.grad(lambda x: model(lambda c: reference.exchange_in_jax(c, output, meta), x))(
        jnp.asarray(operand)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_same_function_called_twice_in_one_program(rng):
    """Both calls share one lowered function; their devices must not be mixed up."""
    metas, operand, output = batch(rng, 2)
    inner = jax.jit(exchange)

    def local(operand, output, *arrays):
        return [inner(operand[b], output[b], *(a[b] for a in arrays)) for b in range(2)]

    run = spmd(local)
    for _ in range(20):
        got = run(operand, output, *stacked(metas))
        for b, meta in enumerate(metas):
            expected = reference.exchange(operand[:, b], output[:, b], meta)
            np.testing.assert_array_equal(got[b], expected)
