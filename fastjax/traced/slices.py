"""Where the slices of an exchange land, and which rows they cover."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fastjax.errors import ArgumentError
from fastjax.traced.plan import ExchangeGroup


def landings(output_offsets: jax.Array, group: ExchangeGroup) -> jax.Array:
    """Where what arrives here lands: the offsets that others have for this device."""
    if group.groups is None:
        return jax.lax.all_to_all(output_offsets, group.axes, 0, 0, tiled=True)
    # JAX has no vmap of an all_to_all with groups.
    everyone = jax.lax.all_gather(output_offsets, group.axes, axis_index_groups=group.groups)
    return landings_of(everyone, group)


def landings_of(everyone: jax.Array, group: ExchangeGroup) -> jax.Array:
    """The same, of the offsets of all devices, by position."""
    for_each = everyone.reshape(group.size, group.size, -1)
    return jnp.take(for_each, group.position(), axis=1).reshape(-1)


def covered(starts: jax.Array, sizes: jax.Array, rows: int) -> jax.Array:
    """Which of `rows` rows lie in some slice; slices without rows lie nowhere."""
    if rows >= 2**31:
        raise ArgumentError(
            f"gradients for an output of {rows} rows need more than int32 counts; split it."
        )
    starts, sizes = starts.astype(jnp.int32), sizes.astype(jnp.int32)
    starts = jnp.where(sizes > 0, starts, 0)
    edges = jnp.zeros(rows + 1, jnp.int32).at[starts].add(1).at[starts + sizes].add(-1)
    return jnp.cumsum(edges)[:rows] > 0
