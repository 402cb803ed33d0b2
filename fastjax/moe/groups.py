"""Applies experts to rows, at the cost of the rows that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import types
from fastjax.moe.tiles import Runs, over_groups

Params = Any  # a pytree of arrays
Function = Callable[[jax.Array, Params], jax.Array]


def grouped_map(
    function: Function,
    rows: jax.Array,
    params: Params,
    group_sizes: jax.Array,
    group_rows: jax.Array | None = None,
    *,
    usual_rows: int | None = None,
) -> jax.Array:
    """Applies to each row what its group does, tile by tile: a whole expert in one go.

    On CPUs room without rows costs nothing, and what lies between the input and the result is never
    larger than a tile of each group, of at most 128 rows. On other platforms all the room is
    computed, at most an eighth of it at once if it has 1024 rows for each group. The backward pass
    computes again. No forward-mode derivatives. A row's result depends on the row, the params
    and all shapes, not on its place or on other rows.

    Args:
      function: takes rows, shape (some, width), and one group's params; returns a row for each,
        shape (some, new width). Rows must not depend on each other. It may use no other traced
        values, and no collectives: devices have different numbers of tiles. `vmap` batches it.
      rows: floating-point, shape (room, width); those of one group after those of another.
      params: a pytree of floating-point arrays, each with a leading dimension of groups.
      group_sizes: rows of each group, integers, shape (groups,).
      group_rows: how many of them, from the first, are no padding; by default all. The function is
        not applied to padding, which has no part in gradients. See `Handle.group_rows`.
      usual_rows: how many a group is expected to have, by which the length of tiles is chosen when
        the program is traced; by default the room's share.

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
    some = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
    one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params)
    made = _traced(function, some, one)
    if getattr(made, "ndim", 0) != 2 or made.shape[0] != rows.shape[0]:
        shapes = jax.tree.map(lambda array: array.shape, made)
        raise ArgumentError(
            f"function must return a row for each of its rows, shape ({rows.shape[0]}, new width), "
            f"got {shapes}."
        )
    if group_sizes.shape[0] == 0:
        return jnp.zeros((rows.shape[0], made.shape[1]), made.dtype)
    usual = max(1, usual_rows or -(-rows.shape[0] // group_sizes.shape[0]))
    leaves, structure = jax.tree.flatten((rows, params, runs))
    leaves = jax_compat.vary_together(leaves, ())
    rows, params, runs = jax.tree.unflatten(structure, leaves)

    def of_tile(rows: Any, masked: Any, params: Params) -> tuple[Any, Any]:
        del masked
        return (function(rows[0], params),), ()

    mapped: Any = over_groups(of_tile, usual, (rows,), (), params, runs)
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


def grouped_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: jax.Array | None = None,
) -> jax.Array:
    """`jax.lax.ragged_dot`, tile by tile.

    On CPUs, JAX's multiplies every row with every group's matrix, room without rows included. This
    does as much as there are rows. On GPUs and TPUs prefer JAX's, which has kernels of its own
    there. Products are summed in float32 or wider. No forward-mode derivatives. See
    `swap_ragged_all_to_all(ragged_dot=True)` for programs that call JAX's.

    Args:
      lhs: rows, shape (room, width); those of one group after those of another.
      rhs: one matrix for each group, shape (groups, width, new width).
      group_sizes: rows of each group, integers, shape (groups,).
      precision: as of `jax.lax.dot`.
      preferred_element_type: of the result, floating-point; by default that of both together.
      group_offset: must be None. A device that has some of the groups passes their rows and sizes.

    Returns:
      Each row times its group's matrix, shape (room, new width); zero after the last group.

    Raises:
      ArgumentError: shapes or types do not fit, or there is a group_offset.
    """
    lhs, rhs, group_sizes = map(jnp.asarray, (lhs, rhs, group_sizes))
    shapes = (lhs.shape, rhs.shape, group_sizes.shape)
    if (
        [len(shape) for shape in shapes] != [2, 3, 1]
        or lhs.shape[1] != rhs.shape[1]
        or rhs.shape[0] != group_sizes.shape[0]
    ):
        raise ArgumentError(
            "lhs, rhs and group_sizes must have shapes (room, width), (groups, width, new "
            f"width) and (groups,), got {', '.join(map(str, shapes))}."
        )
    result = jnp.dtype(preferred_element_type or types.promoted(lhs.dtype, rhs.dtype))
    for name, dtype in (
        ("lhs", lhs.dtype),
        ("rhs", rhs.dtype),
        ("preferred_element_type", result),
    ):
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise ArgumentError(f"{name} must be floating-point, got {dtype}.")
    if group_offset is not None:
        raise ArgumentError(
            "group_offset is not supported: pass rhs and group_sizes of the groups that are here, "
            "and lhs from their first row on (jnp.roll moves it to the front)."
        )
    return grouped_map(
        lambda left, right: _dot(left, right, precision, result), lhs, rhs, group_sizes
    )


def _dot(
    left: jax.Array, right: jax.Array, precision: jax.lax.PrecisionLike, result: np.dtype
) -> jax.Array:
    dtype = types.promoted(left.dtype, right.dtype)
    wide = types.promoted(types.promoted(dtype, result), jnp.float32)
    product = jnp.dot(
        left.astype(dtype), right.astype(dtype), precision=precision, preferred_element_type=wide
    )
    return product.astype(result)
