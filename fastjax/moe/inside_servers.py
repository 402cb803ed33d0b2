"""Rows to the experts of their server, a copy to each, and sums of the rows that experts return.

Rows are named by indices, so no array has a row for each choice, and rows are multiplied by their
weights while they are summed, so none has their products. Sums are in float32 or wider, in a fixed
order: that of experts on CPU devices, of a token's choices on others, whichever device of the
server has computed a row. Cotangents go to the experts in the type of the rows that they are of.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import linear, types, wire
from fastjax.moe.linear import Arrays, Begun, send
from fastjax.moe.routing import Route, Token
from fastjax.traced.nonnegative import quotient
from fastjax.traced.planned_exchange import summable
from fastjax.traced.reverse_mode import in_reverse_mode


def copying(dtype: np.dtype) -> linear.Map:
    """That of rows of tokens, shape (tokens, width), to their experts: (route.rows, width).

    Its transpose sums the rows of each token's choices, in a wide type.
    """
    wide = types.summed_in(dtype)
    return linear.Map(_copy, _sum, wide, wide)


@jax.named_scope("moe_to_experts")
def _copy(operands: Arrays, way: Route, token: Token, wide: np.dtype) -> Begun:
    del wide  # of the transpose
    return send(operands[0], way, token, indices=_tokens_of(way))


def _sum(operands: Arrays, way: Route, token: Token, wide: np.dtype) -> Begun:
    (rows,) = operands
    rows = rows if summable(rows.dtype, wide) else rows.astype(wide)
    return _sums(rows, None, way, wide, token)


@jax.named_scope("moe_add_up")
def _sums(
    rows: jax.Array, factors: jax.Array | None, route: Route, wide: np.dtype, token: Token
) -> Begun:
    """Sums the rows of each token's choices, each times its factor: shape (tokens, width), wide."""
    return send(
        rows,
        route,
        token,
        length=len(route.kept),
        dtype=wide,
        indices=_tokens_of(route),
        reverse=True,
        factors=factors,
        entries=route.place.reshape(route.kept.shape),
    )


def _tokens_of(route: Route) -> jax.Array:
    """The token of each choice, by expert."""
    return quotient(route.order, route.kept.shape[1])


@jax.named_scope("moe_to_experts")
def send_weights(weights: jax.Array, route: Route, token: Token = None) -> Begun:
    """Sends weights, shape (tokens, k), to the rows of their experts: shape (route.rows, 1)."""
    weights, _ = jax_compat.vary_together((weights, route.order), route.plan.axis_name)
    return send(route.by_expert(weights[..., None]), route, token)


@jax.named_scope("moe_add_up")
def return_values(values: jax.Array, route: Route, token: Token) -> Begun:
    """Returns a value for each row of experts, shape (route.rows,); the way back of weights.

    They arrive by expert; see `Route.by_choice`.
    """
    return send(values[:, None], route, token, back=True)


def copied_type(x: np.dtype, wire_dtype: np.dtype) -> np.dtype:
    """The type in which rows of type `x` are copied inside servers, in whole bytes.

    Those that have one byte and a scale between servers stay as they are.
    """
    stays = x if wire.has_scales(wire_dtype, x) else wire_dtype
    return wire.carrier(stays) if stays.itemsize == 1 else stays


def sum_types(
    rows: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array | None, np.dtype]:
    """Rows and factors in types that exchanges sum, and the type of the sums.

    Args:
      rows: of experts.
      weights: of each row, shape (rows, 1), or None for 1.
    """
    wide = types.summed_in(rows.dtype, *(() if weights is None else (weights.dtype,)))
    if not summable(rows.dtype, wide):
        rows = rows.astype(wide)
    factors = None if weights is None else weights.reshape(-1).astype(types.real(wide))
    return rows, factors, wide


def add_up(
    rows: jax.Array, route: Route, weights: jax.Array | None, token: Token = None
) -> jax.Array:
    """Sums the rows of each token's choices, weighted; without an order, with derivatives.

    Args:
      rows: shape (route.rows, width).
      route: of the tokens on this device.
      weights: of each row, shape (route.rows, 1). None: 1.
      token: of the exchange before.

    Returns:
      Shape (tokens, width), wide.
    """
    rows, factors, wide = sum_types(rows, weights)
    if not jnp.issubdtype(wide, jnp.inexact):
        return _integer_sums(rows, factors, route)
    if token is not None:
        return _sums(rows, factors, route, wide, token).rows()
    if factors is None:
        return linear.apply(copying(rows.dtype).transposed, (rows,), route)[0]
    operands = jax_compat.vary_together((rows, factors, route), route.plan.axis_name)
    return _weighted(*in_reverse_mode(operands))


@jax.custom_vjp
def _weighted(rows: jax.Array, factors: jax.Array, route: Route) -> jax.Array:
    """The rows of each token, times their factors, summed in a wide type."""
    wide = types.summed_in(rows.dtype, factors.dtype)
    return _sums(rows, factors, route, wide, None).rows()


def _weighted_forward(*values: Any) -> Any:
    return _weighted(*values), values


def _weighted_backward(residuals: Any, ct: jax.Array) -> Any:
    rows, factors, route = residuals
    # Tokens are of the rows' type, so that one holds their cotangents.
    (copies,) = linear.apply(copying(rows.dtype), (ct.astype(rows.dtype),), route)
    return (*weighted_cotangents(copies, rows, factors), None)


_weighted.defvjp(_weighted_forward, _weighted_backward)


def weighted_cotangents(
    copies: jax.Array, rows: jax.Array, factors: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cotangents of rows and of their factors.

    Args:
      copies: for each row, the cotangent of the sum that it is part of.
      rows: that were summed.
      factors: of them.
    """
    wide = types.summed_in(rows.dtype, factors.dtype)
    rows_ct = (copies.astype(wide) * factors[:, None].astype(wide)).astype(rows.dtype)
    # Otherwise XLA makes a wide array of them, which both products would read.
    copies, rows = jax.lax.optimization_barrier((copies, rows))
    dots = (copies.astype(wide) * rows.astype(wide)).sum(1)
    dots = dots.real if jnp.issubdtype(dots.dtype, jnp.complexfloating) else dots
    return rows_ct, dots.astype(factors.dtype)


def _integer_sums(rows: jax.Array, factors: jax.Array | None, route: Route) -> jax.Array:
    """Sums of integers, which exchanges do not sum, and which have no gradients."""
    rows = rows if factors is None else rows * factors[:, None]
    rows, _ = jax_compat.vary_together((rows, route.order), route.plan.axis_name)
    return route.by_choice(send(rows, route, None, back=True).rows()).sum(1)
