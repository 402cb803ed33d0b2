"""Layers outside of `jit`, and experts that use traced values from around them."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from spmd import mesh_of

import fastjax
from fastjax import moe

P = jax.P
DEVICES, EXPERTS, TOP_K = 8, 16, 2


def layer(function, chunks, deduplicate, x, weights, ids, experts):
    return moe.layer(
        function,
        x,
        ids,
        weights,
        experts,
        num_experts=EXPERTS,
        axis_name="x",
        topology=fastjax.Topology(4, 2),
        chunks=chunks,
        deduplicate=deduplicate,
    )


@pytest.fixture
def arrays(rng):
    x, router, experts = reference.problem(rng, DEVICES, 4, EXPERTS)
    x = x.reshape(-1, x.shape[-1])
    return x, *reference.route(x, router, TOP_K), experts


@pytest.mark.parametrize("deduplicate", [True, False])
@pytest.mark.parametrize("chunks", [1, 2])
def test_values_and_gradients_outside_of_jit(arrays, chunks, deduplicate):
    x, weights, ids, experts = arrays
    one = lambda rows, params: jnp.tanh(rows @ params[0]) @ params[1]  # noqa: E731
    local = functools.partial(layer, one, chunks, deduplicate)
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    step = jax.value_and_grad(lambda x: (mapped(x, weights, ids, experts) ** 2).sum())
    for got, wanted in zip(step(x), jax.jit(step)(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("deduplicate", [True, False])
def test_experts_that_use_traced_values(arrays, deduplicate):
    """Of any type, made in a loop around the layer."""

    def step(chunks):
        def local(x, weights, ids, experts, scale):
            def body(rows, key):
                mask = jax.random.bernoulli(key, 0.5, rows.shape[1:])
                shift = jax.random.randint(key, (), 0, 3)

                def function(rows, sizes, params):
                    hidden = jnp.tanh(jax.lax.ragged_dot(rows, params[0], sizes))
                    return jax.lax.ragged_dot(hidden, params[1], sizes) * mask * scale + shift

                return layer(function, chunks, deduplicate, rows, weights, ids, experts), None

            return jax.lax.scan(body, x, jax.random.split(jax.random.key(0), 2))[0]

        mapped = jax.shard_map(
            local,
            mesh=mesh_of(),
            in_specs=(*[P("x")] * 4, P()),
            out_specs=P("x"),
            check_vma=False,
        )
        return jax.jit(jax.grad(lambda *given: (mapped(*given) ** 2).sum(), (0, 1, 3, 4)))

    given = (*arrays, np.float32(1.5))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, step(2)(*given), step(1)(*given))
