"""Sends rows to the experts of their server, a copy to each, and sums what experts made of them.

Rows are named by indices, so no array has a row for each choice, and rows are multiplied by their
weights while they are summed, so none has their products. Platforms without a backend of ours
exchange copies instead. Sums are in float32 or wider, in a fixed order: that of devices and experts
on CPU devices, of a token's choices on others. Cotangents go to the experts in the type of the rows
that they are of.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import config, jax_compat
from fastjax.moe import ordering, payload, types
from fastjax.moe.handle import Route
from fastjax.moe.packing import carrier
from fastjax.traced import fallback
from fastjax.traced.indexed_exchange import indexed_exchange, summable
from fastjax.traced.nonnegative import look_up, quotient


def send(
    x: jax.Array,
    route: Route,
    travels_in: np.dtype,
    dependency: ordering.Dependency = None,
    sums_dependency: ordering.Dependency = None,
) -> tuple[jax.Array, ordering.Dependency]:
    """Sends the rows of tokens to their experts, which wait for `dependency`.

    Args:
      x: tokens, shape (tokens, width).
      route: to the experts.
      travels_in: the type that rows travel in.
      dependency: what the experts wait for.
      sums_dependency: that of `add_up` of the same route.

    Returns:
      Shape (route.rows, width), of x's type; and `sums_dependency`. In the backward pass, its
      cotangent is needed until experts have ended. Otherwise XLA could give its memory to a small
      array of the experts, which would then wait for the landing of the next chunk.
    """
    whole = carrier(travels_in) if travels_in.itemsize == 1 else travels_in
    whole_x = x.astype(whole)
    sent: Any = _varying(_gathered, whole_x, dependency, sums_dependency, route)
    rows, sums_dependency = sent
    return rows.astype(x.dtype), sums_dependency


def send_weights(
    weights: jax.Array, route: Route, dependency: ordering.Dependency = None
) -> jax.Array:
    """Sends weights to the rows of their experts, shape (route.rows, 1).

    They are staged where there is a dependency, and do not wait for it.
    """
    each = weights.reshape(-1, 1)
    each, *_ = jax_compat.vary_together([each, route.order], route.plan.axis_name)
    sorted_ = look_up(each, route.order, unique=True)
    staged = ordering.on_rows(sorted_, ordered=dependency is not None)
    return payload.exchange(sorted_, route.rows, route.there, route.plan, staged)


def add_up(
    rows: jax.Array,
    route: Route,
    weights: jax.Array | None,
    dependency: ordering.Dependency = None,
) -> tuple[jax.Array, ordering.Dependency]:
    """Sums what experts made of each token, weighted.

    The cotangent of `dependency` depends on the cotangents of the rows: in the backward pass,
    what comes earlier forward waits for these.

    Args:
      rows: shape (route.rows, width).
      route: that of `send`.
      weights: of each row; see `send_weights`. None: 1.
      dependency: what comes earlier; the sums do not wait for it.

    Returns:
      Shape (tokens, width), wide; and a dependency on the sums, None if there is no `dependency`.
    """
    wide = types.summed_in(rows.dtype, *(() if weights is None else (weights.dtype,)))
    if not jnp.issubdtype(wide, jnp.inexact):
        # Exchanges sum no integers, which have no gradients either.
        rows = rows.astype(wide)
        rows = rows if weights is None else rows * weights.astype(wide)
        sums = _varying(functools.partial(_sum_returned, wide), rows, None, route)
        return sums, ordering.on_rows(sums, ordered=dependency is not None)
    if not summable(rows.dtype, wide):
        rows = rows.astype(wide)
    factors = None if weights is None else weights.reshape(-1).astype(types.real(wide))
    summed: Any = _varying(functools.partial(_summed, wide), rows, factors, dependency, route)
    return summed


def _varying(function: Any, *arrays: Any) -> jax.Array:
    """The function of arrays, of which a route is the last, that vary over the same axes."""
    leaves, structure = jax.tree.flatten(arrays)
    leaves = jax_compat.vary_together(leaves, arrays[-1].plan.axis_name)
    return function(*jax.tree.unflatten(structure, leaves))


@jax.custom_vjp
def _gathered(
    x: jax.Array,
    dependency: ordering.Dependency,
    sums_dependency: ordering.Dependency,
    route: Route,
) -> Any:
    indexed = functools.partial(_gather_indexed, staged=dependency is not None)
    rows = _by_platform(indexed, _gather_copied, x, route)
    return ordering.for_experts(rows, dependency), sums_dependency


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(
    wide: np.dtype,
    rows: jax.Array,
    factors: jax.Array | None,
    dependency: ordering.Dependency,
    route: Route,
) -> Any:
    """The rows of each token, times their factors, summed in a wide type; and a dependency."""
    ordered = dependency is not None
    indexed = functools.partial(_sum_indexed, wide, ordered)
    sums = _by_platform(indexed, functools.partial(_sum_returned, wide), rows, factors, route)
    return sums, ordering.on_rows(sums, ordered=ordered)


def _by_platform(indexed: Any, copied: Any, *operands: Any) -> Any:
    """`indexed` of operands where exchanges take indices, and `copied` where they do not."""
    gpus = fallback.gpus_with_handlers(config.current().fallback)
    branches: dict[str, Any] = dict.fromkeys(("cpu", *gpus), indexed)
    return jax.lax.platform_dependent(*operands, default=copied, **branches)


def _gathered_forward(x: jax.Array, *others: Any) -> Any:
    dependency, _, route = others
    return _gathered(x, *others), (x[:0], dependency, route)


def _gathered_backward(residuals: Any, cts: Any) -> Any:
    empty, dependency, route = residuals
    ct, sums_ct = cts
    sums, dependency = add_up(ct, route, None, dependency)
    if dependency is not None and sums_ct is not None:
        dependency = ordering.wait(dependency, sums_ct)
    return sums.astype(empty.dtype), dependency, sums_ct, None


def _summed_forward(wide: np.dtype, *values: Any) -> Any:
    return _summed(wide, *values), values


def _summed_backward(wide: np.dtype, residuals: Any, cts: Any) -> Any:
    ct, dependency = cts
    rows, factors, earlier, route = residuals
    on_rows = functools.partial(ordering.on_rows, ordered=earlier is not None)
    # Tokens are of the rows' type, so that one holds their cotangents.
    gathered: Any = _gathered(ct.astype(rows.dtype), dependency, None, route)
    each, _ = gathered
    if factors is None:
        return each, None, on_rows(each), None
    rows_ct = (each.astype(wide) * factors[:, None].astype(wide)).astype(rows.dtype)
    # Otherwise XLA makes a wide array of them, which both products would read.
    each, rows = jax.lax.optimization_barrier((each, rows))
    factors_ct = _dots(each.astype(wide), rows.astype(wide)).astype(factors.dtype)
    return rows_ct, factors_ct, on_rows(rows_ct), None


def _dots(some: jax.Array, others: jax.Array) -> jax.Array:
    """The dot product of each two rows."""
    dots = (some * others).sum(1)
    return dots.real if jnp.issubdtype(dots.dtype, jnp.complexfloating) else dots


_gathered.defvjp(_gathered_forward, _gathered_backward)
_summed.defvjp(_summed_forward, _summed_backward)


def _tokens_of(route: Route) -> jax.Array:
    """The token of each choice, by expert."""
    return quotient(route.order, route.top_k)


@jax.named_scope("moe_to_experts")
def _gather_indexed(x: jax.Array, route: Route, *, staged: bool) -> jax.Array:
    dependency = ordering.on_rows(x, ordered=staged)
    base = ordering.zeros((route.rows, x.shape[1]), x.dtype, dependency)
    return indexed_exchange(x, base, route.there, _tokens_of(route), route.plan, staged=staged)


@jax.named_scope("moe_add_up")
def _sum_indexed(
    wide: np.dtype, staged: bool, rows: jax.Array, factors: jax.Array | None, route: Route
) -> jax.Array:
    dependency = ordering.on_rows(rows, ordered=staged)
    base = ordering.zeros((route.tokens, rows.shape[1]), wide, dependency)
    return indexed_exchange(
        rows,
        base,
        route.there,
        _tokens_of(route),
        route.plan,
        reverse=True,
        factors=factors,
        entries=route.place.reshape(route.tokens, route.top_k),
        staged=staged,
    )


def _gather_copied(x: jax.Array, route: Route) -> jax.Array:
    copies = look_up(x, _tokens_of(route))
    return payload.exchange(copies, route.rows, route.there, route.plan)


def _sum_returned(
    wide: np.dtype, rows: jax.Array, factors: jax.Array | None, route: Route
) -> jax.Array:
    rows = rows.astype(wide)
    if factors is not None:
        rows = rows * factors[:, None].astype(wide)
    choices = route.tokens * route.top_k
    returned = payload.exchange(rows, choices, route.back, route.plan.transpose())
    returned = look_up(returned, route.place, unique=True)
    return returned.reshape(route.tokens, route.top_k, rows.shape[1]).sum(1)


__all__ = ["add_up", "send", "send_weights"]
