"""A layer in the manner of today's JAX trainers, which knows nothing of fastjax.

Offsets come from an all-gathered matrix, outputs are uninitialised, buffers are for the worst case
or are too small, and `jax.lax.ragged_all_to_all` is looked up when it is called.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

NOWHERE = 1 << 20  # expert of rows that did not come


def offsets_and_sizes(sizes: Any, me: Any, *, back: bool = False, whole: Any = None) -> Any:
    """Of all_to_all with the matrix sizes[from, to]; `whole` is that before truncation."""
    there = sizes if whole is None else whole
    before_to = jnp.cumsum(there, axis=1) - there
    before_from = jnp.cumsum(sizes, axis=0) - sizes
    if back:
        return before_from[:, me], sizes[:, me], before_to[:, me], sizes[me]
    return before_to[me], sizes[me], before_from[me], sizes[:, me]


def truncated(sizes: Any, room: int) -> Any:
    """What each device has room for, by sender."""
    before = jnp.cumsum(sizes, axis=0) - sizes
    return jnp.clip(room - before, 0, sizes)


def layer(x: Any, params: Any, *, axis: Any, top_k: int, room: int | None = None) -> Any:
    """Experts spread over the axis, and so are tokens."""
    router, first, second = params
    shards, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    local = first.shape[0]
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router), top_k)
    order = jnp.argsort(ids.reshape(-1), stable=True)
    chosen = ids.reshape(-1)[order]
    to_shard = jnp.zeros(shards, jnp.int32).at[chosen // local].add(1)
    whole = jax.lax.all_gather(to_shard, axis)
    room = room or x.shape[0] * min(top_k, local) * shards
    sizes = truncated(whole, room)
    meta = offsets_and_sizes(sizes, me, whole=whole)
    rows = jax.lax.ragged_all_to_all(
        x[order // top_k], jax.lax.empty((room, x.shape[1]), x.dtype), *meta, axis_name=axis
    )
    experts = jax.lax.ragged_all_to_all(
        chosen, jnp.full(room, NOWHERE, chosen.dtype), *meta, axis_name=axis
    )
    rows = local_experts(rows, experts - me * local, first, second)
    returned = jax.lax.ragged_all_to_all(
        rows,
        jax.lax.empty((order.shape[0], x.shape[1]), x.dtype),
        *offsets_and_sizes(sizes, me, back=True, whole=whole),
        axis_name=axis,
    )
    returned = returned[jnp.argsort(order)].reshape(*ids.shape, -1)
    return (returned * weights[..., None]).sum(1)


def local_experts(rows: Any, experts: Any, first: Any, second: Any) -> Any:
    """This device's experts on rows that lie in any order."""
    order = jnp.argsort(experts, stable=True)
    sizes = jnp.zeros(first.shape[0], jnp.int32).at[experts].add(1, mode="drop")
    rows = jnp.tanh(jax.lax.ragged_dot(rows[order], first, sizes))
    return jax.lax.ragged_dot(rows, second, sizes)[jnp.argsort(order)]


def replicated_layer(x: Any, params: Any, *, axis: Any, top_k: int) -> Any:
    """All shards have all tokens: each computes its experts' rows, and sends them to everybody."""
    router, first, second = params
    shards, me = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    local = first.shape[0]
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router), top_k)
    order = jnp.argsort(ids.reshape(-1), stable=True)
    chosen = ids.reshape(-1)[order]
    counts = jnp.zeros(shards, jnp.int32).at[chosen // local].add(1)
    start = (jnp.cumsum(counts) - counts)[me]
    # Mine first, as many as there may be.
    mine = jnp.roll(jnp.arange(order.shape[0]), -start)
    experts = jnp.where(jnp.arange(order.shape[0]) < counts[me], chosen[mine], NOWHERE)
    rows = local_experts(x[order[mine] // top_k], experts - me * local, first, second)
    every = jax.lax.ragged_all_to_all(
        rows,
        jax.lax.empty((order.shape[0], x.shape[1]), x.dtype),
        jnp.zeros(shards, jnp.int32),
        jnp.full(shards, counts[me]),
        jnp.full(shards, start),
        counts,
        axis_name=axis,
    )
    every = every[jnp.argsort(order)].reshape(*ids.shape, -1)
    return (every * weights[..., None]).sum(1)


def network(x: Any, layers: Any, one: Any, *, remat: bool) -> Any:
    """Layers, one after the other."""
    body = lambda x, params: (x + one(x, params), None)  # noqa: E731
    return jax.lax.scan(jax.checkpoint(body) if remat else body, x, layers)[0]
