"""Rows of padding, for functions that are given them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fastjax.traced.nonnegative import look_up


def filled(
    rows: jax.Array, group_rows: jax.Array, group_sizes: jax.Array, alignment: int
) -> jax.Array:
    """Rows, of which those of padding are the last row of their group again.

    Zeros may have no derivative, and that of a parameter would sum it up with those of other rows.

    Args:
      rows: shape (room, width), group after group.
      group_rows: rows of each group without padding.
      group_sizes: with padding. A group without rows has none.
      alignment: a group has less padding than this.
    """
    if alignment == 1:
        return rows
    room = rows.shape[0]
    padding = (group_sizes - group_rows)[:, None]
    ends = jnp.cumsum(group_sizes, dtype=group_sizes.dtype)[:, None]
    from_end = jnp.arange(1, alignment, dtype=group_sizes.dtype)[None]
    # Distinct where there is no padding, too.
    nowhere = room + jnp.arange(padding.size * from_end.size, dtype=jnp.uint32)
    at = (ends - from_end).astype(jnp.uint32)
    at = jnp.where(from_end <= padding, at, nowhere.reshape(at.shape)).reshape(-1)
    last = jnp.repeat(jnp.maximum(ends - padding - 1, 0), alignment - 1)
    copies = look_up(jax.lax.stop_gradient(rows), last)
    return rows.at[at].set(copies, mode="drop", unique_indices=True, wrap_negative_indices=False)


__all__ = ["filled"]
