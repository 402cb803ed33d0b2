"""`combine` sends rows of experts back to their tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fastjax.errors import ArgumentError
from fastjax.moe import arguments, inside_servers, ordering, payload, to_experts
from fastjax.moe.crossing import cross_weights
from fastjax.moe.handle import Handle
from fastjax.moe.returning import return_sums


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
      handle: that of the `dispatch`.
      weights: of each token's choices, shape (tokens, k); if left out those that `dispatch` was
        given, or 1.
      payload_dtype: type that rows travel in; see `dispatch`.

    Returns:
      Tokens, shape (tokens, width), of rows' type.

    Raises:
      ArgumentError: shapes or types do not fit the handle.
    """
    tokens, *_ = combine_in_order(rows, handle, weights, payload_dtype, None, None)
    return tokens


def combine_in_order(
    rows: jax.Array,
    handle: Handle,
    weights: jax.Array | None,
    payload_dtype: DTypeLike | None,
    dependency: ordering.Dependency,
    sums_dependency: ordering.Dependency,
) -> tuple[jax.Array, ordering.Dependency, ordering.Dependency, ordering.Dependency]:
    """Does what `combine` does, and begins its exchange between all devices after `dependency`.

    Args:
      rows: see `combine`.
      handle: see `combine`.
      weights: see `combine`.
      payload_dtype: see `combine`.
      dependency: what the exchange waits for.
      sums_dependency: that of the chunk before. In the backward pass, the cotangents of that chunk
        are unpacked after those of this chunk have reached their experts.

    Returns:
      Tokens; a dependency for the next such exchange; one for experts that are to work once
      this exchange has begun; and `sums_dependency` for the next chunk.
    """
    if not isinstance(handle, Handle):
        raise ArgumentError(
            f"handle must come from fastjax.moe.dispatch, got {type(handle).__name__}."
        )
    rows = jnp.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != handle.rows:
        raise ArgumentError(
            f"rows must have the shape ({handle.rows}, width) of what was dispatched, got "
            f"{rows.shape}."
        )
    if weights is not None:
        weights = arguments.check_weights(weights, handle.choices)
    travels_in = payload.check(payload_dtype, rows.dtype)
    if handle.crossing is None:
        each = handle.weights if weights is None else weights
        tokens, dependency, experts_dependency = to_experts.add_up(
            rows, handle.route, each, travels_in, dependency
        )
        return tokens.astype(rows.dtype), dependency, experts_dependency, sums_dependency
    each = handle.weights
    if weights is not None:
        arguments.check_travelling(weights, True)
        landed = cross_weights(weights, handle.crossing)
        each = inside_servers.send_weights(landed, handle.route)
    sums, experts_dependency = inside_servers.add_up(rows, handle.route, each, sums_dependency)
    if not jnp.issubdtype(rows.dtype, jnp.floating):
        travels_in = sums.dtype
    tokens, dependency, sums_dependency = return_sums(
        sums, handle.crossing, rows.dtype, travels_in, dependency
    )
    if experts_dependency is not None:
        experts_dependency = ordering.wait(experts_dependency, dependency)
    return tokens.astype(rows.dtype), dependency, experts_dependency, sums_dependency
