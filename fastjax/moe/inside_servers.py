"""Rows to the experts of their server, a copy for each, and the sums of what experts made of them.

Rows are named by indices, so no array has a row for each choice. Weights are multiplied where the
experts are. Sums are in float32 or wider, in a fixed order: that of devices and experts on CPU
devices, of a token's choices on others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import payload, types
from fastjax.moe.handle import Route
from fastjax.moe.packing import carrier
from fastjax.traced.indexed_exchange import indexed_exchange


def send(x: jax.Array, route: Route, travels_in: np.dtype) -> jax.Array:
    """The rows of tokens at their experts, shape (route.rows, width), of x's type."""
    whole = carrier(travels_in) if travels_in.itemsize == 1 else travels_in
    return _linear(_gathered, x.astype(whole), route).astype(x.dtype)


def send_weights(weights: jax.Array, route: Route) -> jax.Array:
    """The weight of each row at its expert, shape (route.rows, 1)."""
    each = weights.reshape(-1, 1)
    each, *_ = jax_compat.vary_together([each, route.order], route.plan.axis_name)
    sorted_ = each.at[route.order].get(unique_indices=True, mode="promise_in_bounds")
    return payload.exchange(sorted_, route.rows, route.there, route.plan)


def add_up(rows: jax.Array, route: Route, weights: jax.Array | None) -> jax.Array:
    """What experts made of each token, weighted and summed: shape (tokens, width), wide.

    Args:
      rows: shape (route.rows, width).
      route: that of `send`.
      weights: of each row; see `send_weights`. None: 1.
    """
    wide = types.summed_in(rows.dtype, *(() if weights is None else (weights.dtype,)))
    rows = rows.astype(wide)
    if weights is not None:
        rows = rows * weights.astype(wide)
    # Exchanges sum no integers, which have no gradients either.
    return _linear(_summed if jnp.issubdtype(wide, jnp.inexact) else _sum_returned, rows, route)


def _linear(function: Any, rows: jax.Array, route: Route) -> jax.Array:
    leaves, structure = jax.tree.flatten((rows, route))
    leaves = jax_compat.vary_together(leaves, route.plan.axis_name)
    return function(*jax.tree.unflatten(structure, leaves))


@jax.custom_vjp
def _gathered(x: jax.Array, route: Route) -> jax.Array:
    return jax.lax.platform_dependent(x, route, cpu=_gather_indexed, default=_gather_copied)


@jax.custom_vjp
def _summed(rows: jax.Array, route: Route) -> jax.Array:
    return jax.lax.platform_dependent(rows, route, cpu=_sum_indexed, default=_sum_returned)


def _gathered_forward(x: jax.Array, route: Route) -> Any:
    return _gathered(x, route), (x[:0], route)


def _gathered_backward(residuals: Any, ct: jax.Array) -> Any:
    empty, route = residuals
    wide = ct.astype(types.summed_in(ct.dtype))
    return _summed(wide, route).astype(empty.dtype), None


def _summed_forward(rows: jax.Array, route: Route) -> Any:
    return _summed(rows, route), route


def _summed_backward(route: Route, ct: jax.Array) -> Any:
    return _gathered(ct, route), None


_gathered.defvjp(_gathered_forward, _gathered_backward)
_summed.defvjp(_summed_forward, _summed_backward)


def _tokens_of(route: Route) -> jax.Array:
    """The token of each choice, by expert."""
    return route.order // route.top_k


def _gather_indexed(x: jax.Array, route: Route) -> jax.Array:
    base = jnp.zeros((route.rows, x.shape[1]), x.dtype)
    return indexed_exchange(x, base, route.there, _tokens_of(route), route.plan)


def _sum_indexed(rows: jax.Array, route: Route) -> jax.Array:
    base = jnp.zeros((route.tokens, rows.shape[1]), rows.dtype)
    plan = route.plan
    return indexed_exchange(rows, base, route.there, _tokens_of(route), plan, reverse=True)


def _gather_copied(x: jax.Array, route: Route) -> jax.Array:
    copies = x.at[_tokens_of(route)].get(mode="promise_in_bounds")
    return payload.exchange(copies, route.rows, route.there, route.plan)


def _sum_returned(rows: jax.Array, route: Route) -> jax.Array:
    choices = route.tokens * route.top_k
    returned = payload.exchange(rows, choices, route.back, route.plan.transpose())
    returned = returned.at[route.place].get(unique_indices=True, mode="promise_in_bounds")
    return returned.reshape(route.tokens, route.top_k, rows.shape[1]).sum(1)


__all__ = ["add_up", "send", "send_weights"]
