"""Applies functions to rows of groups, tile by tile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from fastjax.moe import types
from fastjax.traced.nonnegative import look_up, quotient_up

_TILE = 128  # rows

Rows = Any  # a pytree of arrays with as many rows each
Params = Any  # a pytree of arrays
OfTile = Callable[[Rows, Rows, Params], tuple[Rows, Params]]
StateT = TypeVar("StateT")


class Runs(NamedTuple):
    """Rows of groups, without padding: int32, shape (groups,) each."""

    starts: jax.Array
    sizes: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def over_groups(
    function: OfTile, rows: Rows, masked: Rows, of_groups: Params, runs: Runs
) -> tuple[Rows, Params]:
    """Applies a function to the rows of each group, tile by tile.

    Its derivative is another such function, of rows and cotangents, so there are derivatives of any
    order.

    Args:
      function: of a tile. Takes rows; rows that are zero where they are another group's; and what
        belongs to the group. Returns new rows, and a part of a sum over the group, to which rows
        that are zero add nothing.
      rows: shape (room, ...) each.
      masked: the same.
      of_groups: shape (groups, ...) each.
      runs: of each group's rows.

    Returns:
      New rows, and the sums of each group.
    """
    room = rows[0].shape[0]
    first = lambda a: a[: tile_rows(room)]  # noqa: E731
    some, none = jax.tree.map(first, (rows, masked))
    of_one = jax.tree.map(lambda p: p[0], of_groups)
    made, parts = jax.eval_shape(function, some, none, of_one)
    zeros = functools.partial(jnp.zeros_like, rows[0])
    results = jax.tree.map(lambda a: zeros(a.dtype, shape=(room, *a.shape[1:])), made)
    # Sums of many tiles: in float32 or wider.
    wide = lambda p: types.promoted(p.dtype, jnp.float32)  # noqa: E731
    totals = jax.tree.map(lambda p: zeros(wide(p), shape=(*runs[0].shape, *p.shape)), parts)

    def add(tile: _Tile, found: tuple[Rows, Params]) -> tuple[Rows, Params]:
        results, totals = found
        own, or_zero = jax.tree.map(tile.own, rows), jax.tree.map(tile.own_or_zero, masked)
        values, parts = function(own, or_zero, tile.of_group(of_groups))
        results = jax.tree.map(tile.written, results, values)
        return results, jax.tree.map(tile.added_to_group, totals, parts)

    results, totals = _over_tiles(add, room, runs, (results, totals))
    return results, jax.tree.map(lambda t, p: t.astype(p.dtype), totals, parts)


def _forward(function: OfTile, *operands: Any) -> Any:
    return over_groups(function, *operands), operands


def _backward(function: OfTile, operands: Any, cts: tuple[Rows, Params]) -> Any:
    rows, masked, of_groups, runs = operands
    results_ct, sums_ct = cts

    def transposed(rows: Rows, masked: Any, of_group: Any) -> tuple[Any, Params]:
        (masked, results_ct), (of_group, sums_ct) = masked, of_group
        _, back = jax.vjp(function, rows, masked, of_group)
        rows_ct, masked_ct, of_group_ct = back((results_ct, sums_ct))
        return (rows_ct, masked_ct), of_group_ct

    made: Any = over_groups(transposed, rows, (masked, results_ct), (of_groups, sums_ct), runs)
    (rows_ct, masked_ct), of_groups_ct = made
    return rows_ct, masked_ct, of_groups_ct, None


over_groups.defvjp(_forward, _backward)


class _Tile:
    """Consecutive rows, of which a run belongs to one group."""

    def __init__(self, number: jax.Array, room: int, runs: Runs) -> None:
        self.length = tile_rows(room)
        tiles = quotient_up(runs.sizes, self.length)
        last = jnp.cumsum(tiles)
        self.group = (last <= number).sum()
        first, size, last_tile, own_tiles = (
            look_up(array, self.group) for array in (*runs, last, tiles)
        )
        start = first + (number - last_tile + own_tiles) * self.length
        # The last tiles begin earlier, so that they end where there is room.
        self.first = jnp.minimum(start, room - self.length)
        row = jnp.arange(self.length, dtype=jnp.int32)
        begins, ends_at = start - self.first, first + size - self.first
        self.mine = ((row >= begins) & (row < ends_at))[:, None]
        self._nearest = jnp.clip(row, begins, ends_at - 1)

    def own(self, array: jax.Array) -> jax.Array:
        """Rows of the tile; in the place of each row of another group, one of its own again.

        Rows of other groups may hold anything, and functions need not have a derivative at zero.
        """
        return look_up(self._slice(array), self._nearest)

    def own_or_zero(self, array: jax.Array) -> jax.Array:
        return jnp.where(self.mine, self._slice(array), 0)

    def of_group(self, params: Params) -> Params:
        at = lambda p: jax.lax.dynamic_index_in_dim(p, self.group, keepdims=False)  # noqa: E731
        return jax.tree.map(at, params)

    def added_to_group(self, totals: jax.Array, values: jax.Array) -> jax.Array:
        total = self.of_group(totals) + values.astype(totals.dtype)
        return jax.lax.dynamic_update_index_in_dim(totals, total, self.group, 0)

    def written(self, array: jax.Array, values: jax.Array) -> jax.Array:
        """The array, with this tile's own rows changed."""
        changed = jnp.where(self.mine, values, self._slice(array))
        return jax.lax.dynamic_update_slice_in_dim(array, changed, self.first, 0)

    def _slice(self, array: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.length)


def tile_rows(room: int) -> int:
    return min(_TILE, room)


def _over_tiles(
    step: Callable[[_Tile, StateT], StateT], room: int, runs: Runs, start: StateT
) -> StateT:
    if room == 0:
        return start
    tiles = quotient_up(runs.sizes, tile_rows(room)).sum()
    return jax.lax.fori_loop(0, tiles, lambda i, now: step(_Tile(i, room, runs), now), start)


__all__ = ["OfTile", "Runs", "over_groups", "tile_rows"]
