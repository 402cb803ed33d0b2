"""Rows of experts back to their tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import payload, types
from fastjax.moe.handle import Handle


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
    made in float32 or wider, or in integers where all are, in the order of a token's choices, so
    they come out the same every time. Choices that were dropped count as zero.

    Args:
      rows: one for each that `dispatch` returned, in the same place, shape (room, any width).
      handle: that of the `dispatch`.
      weights: of each token's choices, shape (tokens, k); 1 if left out.
      payload_dtype: type that rows travel in; see `dispatch`.

    Returns:
      Tokens, shape (tokens, width), of rows' type.

    Raises:
      ArgumentError: shapes or types do not fit the handle.
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
    choices = (handle.tokens, handle.top_k)
    each = jnp.ones(choices, rows.dtype) if weights is None else jnp.asarray(weights)
    if each.shape != choices:
        raise ArgumentError(
            f"weights must have one for each of the (tokens, k) = {choices} choices, got shape "
            f"{each.shape}."
        )
    travels_in = payload.check(payload_dtype, rows.dtype)
    returned = payload.send(
        rows,
        handle.tokens * handle.top_k,
        handle.back,
        handle.there,
        handle.plan.transpose(),
        travels_in,
    )
    returned = returned.at[handle.place].get(unique_indices=True, mode="promise_in_bounds")
    returned = returned.reshape(*choices, rows.shape[1])
    returned, each = jax_compat.vary_together([returned, each], handle.plan.axis_name)
    each = jnp.where(handle.kept, each, 0)  # of choices that go nowhere, it may be anything
    wide = types.promoted(_summed_in(rows.dtype), _summed_in(each.dtype))
    total = (returned.astype(wide) * each.astype(wide)[..., None]).sum(1)
    return total.astype(rows.dtype)


def _summed_in(dtype: np.dtype) -> np.dtype:
    """A type that holds all of this one's values, of 32 bits or more."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
    return dtype if dtype.itemsize >= 4 else np.dtype(np.int32)
