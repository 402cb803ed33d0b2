"""Experts' matrix products, at the cost of the rows that there are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.errors import ArgumentError

_TILE = 128  # rows


def grouped_dot(rows: jax.Array, weights: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """`jax.lax.ragged_dot(rows, weights, group_sizes)`, tile by tile.

    On CPUs, JAX's multiplies every row with every group's weights, room without rows included. This
    does as much as there are rows, on any platform. On GPUs and TPUs prefer JAX's, which has
    kernels of its own there. Products are summed in float32 or wider. No forward-mode derivatives.

    Args:
      rows: shape (room, width); those of one group behind those of another.
      weights: one matrix for each group, shape (groups, width, new width).
      group_sizes: rows of each group, integers, shape (groups,).

    Returns:
      Each row times its group's matrix, shape (room, new width); zero behind the last group.

    Raises:
      ArgumentError: shapes or types do not fit.
    """
    rows, weights, group_sizes = map(jnp.asarray, (rows, weights, group_sizes))
    shapes = (rows.shape, weights.shape, group_sizes.shape)
    if (
        [len(shape) for shape in shapes] != [2, 3, 1]
        or rows.shape[1] != weights.shape[1]
        or weights.shape[0] != group_sizes.shape[0]
    ):
        raise ArgumentError(
            "rows, weights and group_sizes must have shapes (room, width), (groups, width, new "
            f"width) and (groups,), got {', '.join(map(str, shapes))}."
        )
    if not np.issubdtype(group_sizes.dtype, np.integer):
        raise ArgumentError(f"group_sizes must be integers, got {group_sizes.dtype}.")
    return _grouped_dot(*jax_compat.vary_together([rows, weights, group_sizes], ()))


@jax.custom_vjp
def _grouped_dot(rows: Any, weights: Any, group_sizes: Any) -> Any:
    dtype = jnp.promote_types(rows.dtype, weights.dtype)
    empty = jnp.zeros_like(rows, dtype, shape=(rows.shape[0], weights.shape[2]))

    def fill(tile: _Tile, result: Any) -> Any:
        product = _dot(tile.of(rows), weights[tile.group]).astype(dtype)
        return tile.written(result, product)

    return _over_tiles(fill, rows.shape[0], group_sizes, empty)


def _forward(rows: Any, weights: Any, group_sizes: Any) -> Any:
    return _grouped_dot(rows, weights, group_sizes), (rows, weights, group_sizes)


def _backward(residuals: Any, ct: Any) -> Any:
    rows, weights, group_sizes = residuals
    wide = jnp.promote_types(ct.dtype, jnp.float32)

    def add(tile: _Tile, total: Any) -> Any:
        own = jnp.where(tile.mine, tile.of(rows), 0)
        return total.at[tile.group].add(_dot(own.T, tile.of(ct)).astype(wide))

    empty = jnp.zeros_like(weights, wide)
    weights_ct = _over_tiles(add, rows.shape[0], group_sizes, empty).astype(weights.dtype)
    rows_ct = _grouped_dot(ct, jnp.swapaxes(weights, 1, 2), group_sizes).astype(rows.dtype)
    return rows_ct, weights_ct, None


_grouped_dot.defvjp(_forward, _backward)


def _dot(left: Any, right: Any) -> Any:
    dtype = jnp.promote_types(left.dtype, right.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    return jnp.dot(left.astype(dtype), right.astype(dtype), preferred_element_type=wide)


class _Tile:
    """Some rows in one piece, of which a run belongs to one group."""

    def __init__(self, number: Any, room: int, group_sizes: Any) -> None:
        self.length = min(_TILE, room)
        tiles = -(-group_sizes // self.length)
        last = jnp.cumsum(tiles)
        self.group = (last <= number).sum()
        ends = jnp.cumsum(group_sizes)
        end = ends[self.group]
        start = end - group_sizes[self.group]
        start += (number - last[self.group] + tiles[self.group]) * self.length
        # The last tiles begin earlier, so that they end where there is room.
        self.first = jnp.minimum(start, room - self.length)
        row = self.first + jnp.arange(self.length)
        self.mine = ((row >= start) & (row < end))[:, None]

    def of(self, array: Any) -> Any:
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.length)

    def written(self, array: Any, values: Any) -> Any:
        """The array, with this tile's own rows changed."""
        changed = jnp.where(self.mine, values, self.of(array))
        return jax.lax.dynamic_update_slice_in_dim(array, changed, self.first, 0)


def _over_tiles(step: Any, room: int, group_sizes: Any, start: Any) -> Any:
    if room == 0:
        return start
    sizes = group_sizes.astype(jnp.int32)
    tiles = (-(-sizes // min(_TILE, room))).sum()
    return jax.lax.fori_loop(0, tiles, lambda i, now: step(_Tile(i, room, sizes), now), start)
