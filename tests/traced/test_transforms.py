"""Gradients, loops and rematerialisation, against one-device jax.numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax

STAGED = fastjax.Topology(2, 4)


def case(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    return meta, operand, output


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_kinds_of_axes(rng, explicit, check_vma, jit):
    meta, operand, output = case(rng)
    run = spmd(exchange, mesh_of(explicit=explicit), check_vma=check_vma, jit=jit)
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_where_types_and_ranks_are_not_promoted(rng):
    meta, operand, output = case(rng)

    def local(operand, output, *arrays):
        loss = lambda *rows: (jax.vmap(exchange)(*rows, *arrays) ** 2).sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(operand, output)

    twice = [np.stack([a, a], 1) for a in (operand, output, *meta.arrays())]
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        strict = spmd(local)(*twice)
    for one, other in zip(strict, spmd(local)(*twice), strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradient_with_a_fresh_output_under_check_vma(rng):
    """jax.lax types this result as equal on all devices, and its gradients are wrong."""
    meta, operand, output = case(rng)
    weights = rng.normal(size=output.shape).astype(np.float32)

    def local(operand, weights, *arrays):
        zeros = jnp.zeros(output.shape[1:], operand.dtype)
        loss = lambda a: jnp.sum(weights * jnp.sin(exchange(a, zeros, *arrays)))  # noqa: E731
        return jax.grad(loss)(operand)

    def expected(operand):
        rows = reference.exchange_in_jax(operand, np.zeros_like(output), meta)
        return jnp.sum(weights * jnp.sin(rows))

    got = spmd(local)(operand, weights, *meta.arrays())
    np.testing.assert_allclose(got, jax.grad(expected)(jnp.asarray(operand)), rtol=1e-6)


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


def loop_case(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 4))
    operand, output = reference.data(rng, meta)
    rows = max(operand.shape[1], output.shape[1])
    shape = (8, rows, 3)
    return meta, *(rng.normal(size=shape).astype(np.float32) for _ in range(2))


LOOPS = {
    "scan": lambda step, x: jax.lax.scan(lambda c, _: (step(c), None), x, length=6)[0],
    "unrolled": lambda step, x: jax.lax.scan(lambda c, _: (step(c), None), x, length=6, unroll=3)[
        0
    ],
    "while": lambda step, x: jax.lax.while_loop(
        lambda c: c[0] < 6, lambda c: (c[0] + 1, step(c[1])), (0, x)
    )[1],
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("kind", LOOPS)
def test_loops(rng, kind, check_vma):
    """The same exchange again and again, each time of the rows that the last one left."""
    meta, operand, output = loop_case(rng)

    def local(operand, output, *arrays):
        step = lambda x: exchange(x, output, *arrays, topology=STAGED) + 1.0  # noqa: E731
        return LOOPS[kind](step, operand)

    got = spmd(local, check_vma=check_vma)(operand, output, *meta.arrays())
    expected = operand
    for _ in range(6):
        expected = reference.exchange(expected, output, meta) + 1.0
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_cond_that_is_the_same_on_all_devices(rng):
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


@pytest.mark.parametrize(
    ("policy", "check_vma"), [(None, True), (None, False), ("everything_saveable", True)]
)
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
    meta, operand, output = case(rng)
    inner = jax.jit(exchange)

    def local(operand, output, *arrays):
        return inner(operand, output, *arrays), inner(2 * operand, output, *arrays)

    run = spmd(local)
    expected = [reference.exchange(times * operand, output, meta) for times in (1, 2)]
    for _ in range(20):
        for got, wanted in zip(run(operand, output, *meta.arrays()), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
