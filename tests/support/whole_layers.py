"""Layers of experts with skewed tokens, and the dense layer that they are compared with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spmd import mesh_of

import fastjax
from fastjax import moe

P = jax.P
DEVICES, EXPERTS, TOP_K, WIDTH = 8, 16, 3, 6
TOPOLOGY = fastjax.Topology(4, 2)
BALANCED = {"balance": True, "topology": fastjax.Topology(2, 4)}


def expert(rows: Any, params: Any) -> Any:
    return jnp.tanh(rows @ params[0]) @ params[1]


def dense(x: Any, weights: Any, params: Any, ids: Any) -> Any:
    every = jax.vmap(expert, (None, 0), 1)(x, params)
    chosen = jnp.take_along_axis(every, jnp.maximum(ids, 0)[..., None], 1)
    return (chosen * jnp.where(ids < 0, 0, weights)[..., None]).sum(1)


def layer(
    x: Any, weights: Any, params: Any, ids: Any, expert_fn: Any = expert, **options: Any
) -> Any:
    usual = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY, "buffer_factor": 1.25}
    return moe.layer(x, ids, weights, params, expert_fn=expert_fn, **usual | options)


def on_devices(expert_fn: Any = expert, **options: Any) -> Any:
    """The layer, with statistics of each device."""

    def local(x: Any, weights: Any, params: Any, ids: Any) -> Any:
        result, stats = layer(x, weights, params, ids, expert_fn, return_stats=True, **options)
        return result, jax.tree.map(lambda a: a[None], stats)

    return jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))


def ids_of(rng: Any, tokens: Any, law: Any) -> Any:
    shape = DEVICES * tokens, TOP_K
    if law == "one device":
        return rng.integers(0, 2, shape).astype(np.int32)
    if law == "one expert":
        return np.full(shape, 5, np.int32)
    if law == "holes":
        return np.where(rng.random(shape) < 0.5, -1, rng.integers(0, 3, shape)).astype(np.int32)
    popular = rng.permutation(np.arange(1, EXPERTS + 1) ** -1.2)
    return rng.choice(EXPERTS, shape, p=popular / popular.sum()).astype(np.int32)


def problem(rng: Any, tokens: Any, law: Any = "zipf") -> Any:
    some = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = some(EXPERTS, WIDTH, 5), some(EXPERTS, 5, WIDTH)
    x, weights = some(DEVICES * tokens, WIDTH), rng.random((DEVICES * tokens, TOP_K))
    return x, weights.astype(np.float32), params, ids_of(rng, tokens, law)


def same(got: Any, wanted: Any) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        size = np.abs(other).max(initial=1)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * size)


def rows_of_experts(stats: Any, ids: Any) -> Any:
    """Rows of each expert, by numpy, which the statistics of all devices have; nothing dropped."""
    rows = np.bincount(ids[ids >= 0], minlength=EXPERTS)
    np.testing.assert_array_equal(stats.expert_rows, np.broadcast_to(rows, (DEVICES, EXPERTS)))
    assert not stats.dropped.any()
    return rows


def with_gradients(function: Any) -> Any:
    """All that a function returns, and the gradients of the first's squares, by one program."""

    def loss(x: Any, weights: Any, params: Any, ids: Any) -> Any:
        made = function(x, weights, params, ids)
        return ((made[0] if isinstance(made, tuple) else made) ** 2).sum(), made

    def both(*arrays: Any) -> Any:
        (_, made), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)
        return made, gradients

    return jax.jit(both)


gradients_of_dense = with_gradients(dense)


def scales() -> Any:
    return np.arange(1, EXPERTS + 1, dtype=np.float32)[:, None]
