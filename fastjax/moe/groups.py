"""Applies experts to rows, at the cost of the rows that there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import arguments, types
from fastjax.moe.programs import effects, evaluated, names_values, opened
from fastjax.moe.tiles import Params as TileParams
from fastjax.moe.tiles import Runs, lengths, over_groups
from fastjax.traced.nonnegative import look_up
from fastjax.traced.reverse_mode import in_reverse_mode

Params = Any  # a pytree of arrays
Function = Callable[[jax.Array, Params], jax.Array]
_OperandsT = TypeVar("_OperandsT", bound=tuple[jax.Array, Params, Runs])


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
    larger than a tile of at most 256 rows, or one of each group, of at most 128. On other platforms
    a tile has the usual rows of a group, 128 at least; one of each group is computed, however few
    rows there are, and further ones where there are more. The backward pass computes again. No
    forward-mode derivatives. A row's result depends on the row, the params and all shapes, and on
    CPUs not on its place or on other rows.

    Args:
      function: takes rows, shape (some, width), and one group's params; returns a row for each,
        shape (some, new width). Rows must not depend on each other. It may use values from around
        it, which all groups share, but no collectives: devices have different numbers of tiles.
        `vmap` batches it.
      rows: floating-point, shape (room, width); those of one group after those of another.
      params: a pytree of arrays, each with a leading dimension of groups. Integers, such as narrow
        weights whose scales are other params, have no gradients.
      group_sizes: rows of each group, integers, shape (groups,).
      group_rows: how many of them, from the first, are no padding; by default all. The function is
        not applied to padding, which has no part in gradients. See `Handle.group_rows`.
      usual_rows: how many a group is expected to have, by which the length of tiles is chosen when
        the program is traced; by default the room's share.

    Returns:
      The function of each row, shape (room, new width); zero in padding and after the last group.

    Raises:
      ArgumentError: shapes or types do not fit, or the function does what tiles cannot do.
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
    arguments.check_params(params, group_sizes.shape[0], "groups")
    if usual_rows is not None:
        arguments.check_count("usual_rows", usual_rows)
    usual = max(1, usual_rows or -(-rows.shape[0] // max(1, group_sizes.shape[0])))
    if group_sizes.shape[0] == 0:
        one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params)
        (made,) = _traced(function, rows, one).out_avals
        return jnp.zeros((rows.shape[0], made.shape[1]), made.dtype)
    tiles = lengths(len(rows), usual, len(group_sizes))
    programs, captured, operands = _programs(function, (rows, params, runs), tiles)
    rows, params, runs = operands
    params = TileParams(jax.tree.leaves(params), captured)

    # It outlives traces in JAX's caches, so it has no traced values.
    def of_tile(rows: Any, masked: Any, params: TileParams) -> tuple[Any, TileParams]:
        del masked
        made = evaluated(programs[len(rows[0])](params.shared), rows[0], *params.of_groups)
        return tuple(made), TileParams((), ())

    rows, params = in_reverse_mode((rows, params))
    mapped: Any = over_groups(of_tile, usual, (rows,), (), params, runs)
    (result,), _ = mapped
    return result


def _programs(
    function: Function, operands: _OperandsT, lengths: Iterable[int]
) -> tuple[dict[int, Callable[..., ClosedJaxpr]], list[jax.Array], _OperandsT]:
    """What closes the function's program for each number of rows; what it captures; the operands.

    The latter two vary over all axes that any of them, or the result, varies over. Then cotangents
    are summed over devices once, and not in loops of which devices have different turns.
    """
    axes: frozenset[Any] = frozenset()
    while True:
        operands = jax_compat.vary_together(operands, tuple(axes))
        rows, params, _ = operands
        one = jax.tree.map(lambda p: p[0], params)
        programs = {length: _traced(function, rows[:length], one) for length in {*lengths}}
        closings, (captured, *others) = zip(*map(opened, programs.values()), strict=True)
        if any([*map(id, captured)] != [*map(id, other)] for other in others):
            raise ArgumentError("function must use the same values however many rows it gets.")
        found = [jax.typeof(v) for v in captured] + [p.out_avals[0] for p in programs.values()]
        axes = frozenset().union(*map(jax_compat.vma, found))
        if axes <= jax_compat.vma(jax.typeof(rows)):
            captured, _ = jax_compat.vary_together((captured, rows), ())
            return dict(zip(programs, closings, strict=True)), captured, operands


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


def _traced(function: Function, rows: jax.Array, params: Params) -> ClosedJaxpr:
    """The program of a function that tiles can be given to."""
    program, made = jax.make_jaxpr(function, return_shape=True)(rows, params)
    if getattr(made, "ndim", 0) != 2 or made.shape[0] != rows.shape[0]:
        shapes = jax.tree.map(lambda array: array.shape, made)
        raise ArgumentError(
            f"function must return a row for each of its rows, shape ({rows.shape[0]}, new width), "
            f"got {shapes}."
        )
    shared = sorted(map(str, effects(program)))
    if shared:
        raise ArgumentError(
            "function must not exchange anything with other devices, which have other numbers of "
            f"tiles, nor have other effects; it has {shared}. Do that to what grouped_map returns."
        )
    if names_values(program):
        raise ArgumentError(
            "function must not name values by checkpoint_name: no policy finds them in tiles, and "
            "the backward pass makes them again. Leave the names out, or apply products to all "
            "rows, with grouped_dot or jax.lax.ragged_dot; in a layer, by its grouped_fn."
        )
    return program


def padded(
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
    does as much as there are rows. On TPUs prefer JAX's, which has kernels of its own there.
    Products are summed in float32 or wider. No forward-mode derivatives. See
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
