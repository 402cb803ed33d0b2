"""Applies experts to rows, at the cost of the rows that there are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import types
from fastjax.traced.nonnegative import look_up, quotient_up

_TILE = 128  # rows

Params = Any  # a pytree of arrays
Function = Callable[[jax.Array, Params], jax.Array]
Rows = Any  # a pytree of arrays with as many rows each
OfTile = Callable[[Rows, Rows, Params], tuple[Rows, Params]]
StateT = TypeVar("StateT")


class Runs(NamedTuple):
    """Rows of groups, without padding: int32, shape (groups,) each."""

    starts: jax.Array
    sizes: jax.Array


def grouped_map(
    function: Function,
    rows: jax.Array,
    params: Params,
    group_sizes: jax.Array,
    group_rows: jax.Array | None = None,
) -> jax.Array:
    """Applies to each row what its group does, tile by tile: a whole expert in one go.

    Room without rows costs nothing, and what lies between the input and the result is never larger
    than a tile; the backward pass computes it again. No forward-mode derivatives.

    Args:
      function: takes rows, shape (some, width), and one group's params; returns a row for each,
        shape (some, new width). Rows must not depend on each other. It may use no other traced
        values, and no collectives: devices have different numbers of tiles.
      rows: floating-point, shape (room, width); those of one group after those of another.
      params: a pytree of floating-point arrays, each with a leading dimension of groups.
      group_sizes: rows of each group, integers, shape (groups,).
      group_rows: how many of them, from the first, are no padding; by default all. The function is
        not applied to padding, which has no part in gradients. See `Handle.group_rows`.

    Returns:
      The function of each row, shape (room, new width); zero in padding and after the last group.

    Raises:
      ArgumentError: shapes or types do not fit.
    """
    rows, group_sizes = jnp.asarray(rows), jnp.asarray(group_sizes)
    params = jax.tree.map(jnp.asarray, params)
    if rows.ndim != 2 or group_sizes.ndim != 1:
        raise ArgumentError(
            "rows and group_sizes must have shapes (room, width) and (groups,), got "
            f"{rows.shape} and {group_sizes.shape}."
        )
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        raise ArgumentError(f"rows must be floating-point, got {rows.dtype}.")
    runs = _runs_of(group_sizes, group_rows)
    for leaf in jax.tree.leaves(params):
        if leaf.shape[:1] != group_sizes.shape or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ArgumentError(
                f"params must be floating-point, with a leading dimension of the "
                f"{group_sizes.shape[0]} groups, in a layer the experts of this device (which the "
                f"shard_map's in_specs must hand out); one is {leaf.dtype} of shape {leaf.shape}."
            )
    tile = jax.ShapeDtypeStruct((_tile_rows(rows.shape[0]), rows.shape[1]), rows.dtype)
    one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params)
    made = _traced(function, tile, one)
    if getattr(made, "ndim", 0) != 2 or made.shape[0] != tile.shape[0]:
        shapes = jax.tree.map(lambda array: array.shape, made)
        raise ArgumentError(
            f"function must return a row for each of its rows, shape ({tile.shape[0]}, new width), "
            f"got {shapes}."
        )
    if group_sizes.shape[0] == 0:
        return jnp.zeros((rows.shape[0], made.shape[1]), made.dtype)
    leaves, structure = jax.tree.flatten((rows, params, runs))
    leaves = jax_compat.vary_together(leaves, ())
    rows, params, runs = jax.tree.unflatten(structure, leaves)

    def of_tile(rows: Rows, masked: Rows, params: Params) -> tuple[Rows, Params]:
        del masked
        return (function(rows[0], params),), ()

    mapped: Any = _over_groups(of_tile, (rows,), (), params, runs)
    (result,), _ = mapped
    return result


def _runs_of(group_sizes: jax.Array, group_rows: jax.Array | None) -> Runs:
    sizes = _sizes("group_sizes", group_sizes)
    starts = jnp.cumsum(sizes, dtype=sizes.dtype) - sizes
    if group_rows is None:
        return Runs(starts, sizes)
    group_rows = _sizes("group_rows", jnp.asarray(group_rows))
    if group_rows.shape != sizes.shape:
        raise ArgumentError(
            f"group_rows must have a number for each of the {sizes.shape[0]} groups, got shape "
            f"{group_rows.shape}."
        )
    return Runs(starts, jnp.minimum(sizes, group_rows))


def _sizes(name: str, sizes: jax.Array) -> jax.Array:
    if not np.issubdtype(sizes.dtype, np.integer):
        raise ArgumentError(f"{name} must be integers, got {sizes.dtype}.")
    return sizes.astype(jnp.int32)


def _traced(function: Function, rows: jax.ShapeDtypeStruct, params: Params) -> Any:
    """What the function makes, in shape and type, if it is one that tiles can be given to."""
    program, made = jax.make_jaxpr(function, return_shape=True)(rows, params)
    shared = sorted(map(str, {*program.effects, *jax_compat.our_primitives(program)}))
    if shared:
        raise ArgumentError(
            "function must not exchange anything with other devices, which have other numbers of "
            f"tiles, nor have other effects; it has {shared}. Do that to what grouped_map returns."
        )
    if any(isinstance(value, Tracer) for value in program.consts):
        raise ArgumentError(
            "function must not use traced values from around it; pass them in params, repeated for "
            "each group if need be."
        )
    return made


def grouped_dot(rows: jax.Array, weights: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """`jax.lax.ragged_dot(rows, weights, group_sizes)`, tile by tile.

    On CPUs, JAX's multiplies every row with every group's weights, room without rows included. This
    does as much as there are rows, on any platform. On GPUs and TPUs prefer JAX's, which has
    kernels of its own there. Products are summed in float32 or wider. No forward-mode derivatives.

    Args:
      rows: shape (room, width); those of one group after those of another.
      weights: one matrix for each group, shape (groups, width, new width).
      group_sizes: rows of each group, integers, shape (groups,).

    Returns:
      Each row times its group's matrix, shape (room, new width); zero after the last group.

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
    for name, array in (("rows", rows), ("weights", weights)):
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            raise ArgumentError(f"{name} must be floating-point, got {array.dtype}.")
    return grouped_map(_dot, rows, weights, group_sizes)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
    dtype = types.promoted(left.dtype, right.dtype)
    wide = types.promoted(dtype, jnp.float32)
    product = jnp.dot(left.astype(dtype), right.astype(dtype), preferred_element_type=wide)
    return product.astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _over_groups(
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
    first = lambda a: a[: _tile_rows(room)]  # noqa: E731
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
    return _over_groups(function, *operands), operands


def _backward(function: OfTile, operands: Any, cts: tuple[Rows, Params]) -> Any:
    rows, masked, of_groups, runs = operands
    results_ct, sums_ct = cts

    def transposed(rows: Rows, masked: Any, of_group: Any) -> tuple[Any, Params]:
        (masked, results_ct), (of_group, sums_ct) = masked, of_group
        _, back = jax.vjp(function, rows, masked, of_group)
        rows_ct, masked_ct, of_group_ct = back((results_ct, sums_ct))
        return (rows_ct, masked_ct), of_group_ct

    made: Any = _over_groups(transposed, rows, (masked, results_ct), (of_groups, sums_ct), runs)
    (rows_ct, masked_ct), of_groups_ct = made
    return rows_ct, masked_ct, of_groups_ct, None


_over_groups.defvjp(_forward, _backward)


class _Tile:
    """Consecutive rows, of which a run belongs to one group."""

    def __init__(self, number: jax.Array, room: int, runs: Runs) -> None:
        self.length = _tile_rows(room)
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


def _tile_rows(room: int) -> int:
    return min(_TILE, room)


def _over_tiles(
    step: Callable[[_Tile, StateT], StateT], room: int, runs: Runs, start: StateT
) -> StateT:
    if room == 0:
        return start
    tiles = quotient_up(runs.sizes, _tile_rows(room)).sum()
    return jax.lax.fori_loop(0, tiles, lambda i, now: step(_Tile(i, room, runs), now), start)
