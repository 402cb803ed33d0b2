"""`combine` sends rows of experts back to their tokens."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.errors import ArgumentError
from fastjax.moe import arguments, crossing, each_choice, inside_servers, linear, types, wire
from fastjax.moe.handle import Crossing, Handle


@jax.named_scope("moe_combine")
def combine(
    rows: jax.Array,
    handle: Handle,
    weights: jax.Array | None = None,
    *,
    payload_dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns what experts made of tokens, weighted and added up for each token.

    Undoes `dispatch`, along its plan, which was made for rows as wide as those dispatched. Sums are
    made in float32 or wider, or in integers where all are, in a fixed order, so they come out the
    same every time. Choices that were dropped count as zero. Where `dispatch` deduplicated tokens,
    each server's part is summed there, and rounded once, to rows' type or payload_dtype.

    Args:
      rows: one for each that `dispatch` returned, in the same place, shape (room, any width).
      handle: that of the `dispatch`, or of `take_weights`.
      weights: of each token's choices, shape (..., k); if left out those that `dispatch` was
        given, or 1.
      payload_dtype: type that rows travel in; see `dispatch`.

    Returns:
      Tokens, shape (..., width) with the axes in front that x had, of rows' type.

    Raises:
      ArgumentError: shapes or types do not fit the handle.
    """
    _check_handle(handle)
    rows = check_rows(rows, handle.rows)
    if weights is not None:
        choices = *handle.shape, handle.kept.shape[-1]
        weights = arguments.check_weights(weights, choices)
    wire_dtype = wire.check(payload_dtype, rows.dtype)
    back = _each if handle.crossing is None else _summed
    tokens = back(rows, handle, weights, wire_dtype).astype(rows.dtype)
    return tokens.reshape(*handle.shape, tokens.shape[1])


def _each(
    rows: jax.Array, handle: Handle, weights: jax.Array | None, wire_dtype: np.dtype
) -> jax.Array:
    """Sums of tokens whose rows come back each for itself."""
    returned = each_choice.exchange(rows, handle.route, wire_dtype, dispatches=False)
    choices = each_choice.by_choice(returned, handle.route)
    weights = handle.weights if weights is None else weights
    return each_choice.add_up(choices, each_choice.weights_of(weights, handle.route, rows.dtype))


def _summed(
    rows: jax.Array, handle: Handle, weights: jax.Array | None, wire_dtype: np.dtype
) -> jax.Array:
    """Sums of tokens whose rows are summed in each server first."""
    assert handle.crossing is not None
    each = handle.weights
    if weights is not None:
        arguments.check_travelling(weights, True)
        crossed = crossing.cross_weights(weights, handle.crossing)
        each = inside_servers.send_weights(crossed, handle.route)
    sums = inside_servers.add_up(rows, handle.route, each)
    return _returned(sums, handle.crossing, rows.dtype, wire_dtype)


@jax.named_scope("moe_weights")
def take_weights(handle: Handle) -> tuple[jax.Array, Handle]:
    """The weights of rows at their experts, for experts that multiply by them themselves.

    For instance before the second product, where rows are narrower. Deduplicated tokens have
    brought them along; for others this is an exchange of one column, along the plan. Gradients flow
    to the weights that `dispatch` was given.

    Args:
      handle: that of the `dispatch`, which had `weights`.

    Returns:
      Weights, in float32 or wider, shape (room,): of each row that `dispatch` returned, and 0 where
      there is none. And a handle by which `combine` adds rows up as they are.

    Raises:
      ArgumentError: the handle has no weights.
    """
    _check_handle(handle)
    weights = handle.weights
    if weights is None:
        raise ArgumentError(
            "this handle has no weights: give them to fastjax.moe.dispatch, weights=..., and take "
            "them once."
        )
    if handle.crossing is None:
        wide = weights.astype(types.summed_in(weights.dtype))
        weights = inside_servers.send_weights(wide, handle.route)
    return weights.reshape(-1), dataclasses.replace(handle, weights=None)


def _check_handle(handle: object) -> None:
    if not isinstance(handle, Handle):
        raise ArgumentError(
            f"handle must come from fastjax.moe.dispatch, got {type(handle).__name__}."
        )


def check_rows(rows: jax.Array, room: int) -> jax.Array:
    """The rows of experts, one for each that was dispatched."""
    rows = jnp.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != room:
        raise ArgumentError(
            f"rows must have the shape ({room}, width) of what was dispatched, got {rows.shape}."
        )
    return rows


def _returned(sums: jax.Array, way: Crossing, dtype: np.dtype, wire_dtype: np.dtype) -> jax.Array:
    """Adds up for each token the sums of its servers, with derivatives.

    Args:
      sums: of each token on this device, wide, shape (tokens + room, width).
      way: the way that the tokens came.
      dtype: of rows.
      wire_dtype: type of sums on the wire.
    """
    mapped = crossing.Returned(*crossing.sum_wires(sums.dtype, dtype, wire_dtype))
    operands = sums, jnp.zeros((len(sums), 0), jnp.float32)
    constants = crossing.no_numbers(way), way
    return linear.apply(mapped, operands, constants, way.plan.axis_name)[0]


__all__ = ["check_rows", "combine", "take_weights"]
