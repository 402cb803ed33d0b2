"""Mesh axes that are exchanged over, and checks of offsets and sizes along them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.errors import ArgumentError
from fastjax.jax_compat import Axes
from fastjax.topology import AxisName
from fastjax.traced.nonnegative import look_up

Groups = tuple[tuple[int, ...], ...] | None
"""Groups of positions of those axes that exchange among themselves; None: all in one."""


def _size_of(axes: Axes) -> int:
    try:
        return jax.lax.axis_size(axes)
    except NameError as error:  # what jax.lax raises, too
        raise NameError(
            f"{error}. Call this inside jax.shard_map over a mesh with that axis; got axis_name "
            f"{axes[0] if len(axes) == 1 else axes!r}."
        ) from None


def resolve_axis(
    axis_name: AxisName, axis_index_groups: Iterable[Iterable[int]] | None
) -> tuple[Axes, Groups, int]:
    """Canonical axis names and groups, and the number of devices that exchange with each other."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    axis_size = _size_of(axes)
    if len(set(axes)) < len(axes):
        raise ArgumentError(f"axis_name must name each axis once, got {axes}.")
    if axis_index_groups is None:
        return axes, None, axis_size
    try:
        groups = tuple(tuple(operator.index(i) for i in group) for group in axis_index_groups)
    except TypeError:
        raise ArgumentError(
            "axis_index_groups must be lists of positions, which are integers and known when the "
            f"program is traced, such as [[0, 1], [2, 3]]; got {axis_index_groups!r}."
        ) from None
    if len({len(group) for group in groups}) != 1:
        raise ArgumentError(
            f"axis_index_groups must be equally large, got sizes {[len(g) for g in groups]}."
        )
    if sorted(i for group in groups for i in group) != list(range(axis_size)):
        raise ArgumentError(
            f"axis_index_groups must name every position of the axis, 0 to {axis_size - 1}, once; "
            f"got {groups}."
        )
    return axes, groups, len(groups[0])


def check_metadata(**arrays: jax.Array) -> None:
    """Refuses offsets and sizes of impossible shape or type, in the words of `jax.lax`."""
    lengths = {}
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.integer):
            error = ArgumentError(f"ragged_all_to_all {name} must be integer type.")
            error.add_note(f"{name} has type {array.dtype}.")
            raise error
        if np.ndim(array) != 1 or array.shape[0] < 1:
            raise ArgumentError(
                f"ragged_all_to_all {name} must be rank 1 with positive dimension size, "
                f"but got shape {np.shape(array)}"
            )
        lengths[name] = array.shape[0]
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"offsets and sizes must have one length, got {lengths}.")


def check_length(group_size: int, **arrays: jax.Array) -> None:
    """Refuses offsets and sizes, which have one length, if devices have unequal shares of it."""
    name, array = next(iter(arrays.items()))
    if array.shape[0] % group_size:
        raise ArgumentError(
            f"{name} has {array.shape[0]} entries; want a multiple of the {group_size} "
            "devices that exchange: as many entries for each device."
        )


def position(axes: Axes, groups: Groups) -> jax.Array:
    """The position of this device in its group."""
    index = jax.lax.axis_index(axes)
    if groups is None:
        return index
    positions = {device: i for group in groups for i, device in enumerate(group)}
    return look_up(jnp.array([positions[i] for i in range(len(positions))], jnp.int32), index)


def batch_at(value: jax.Array, dim: int | None, size: int, at: int) -> jax.Array:
    """Returns the value with its batch dimension, made if need be, at `at`."""
    if dim is None:
        shape = (*value.shape[:at], size, *value.shape[at:])
        return jnp.broadcast_to(jnp.expand_dims(value, at), shape)
    return jnp.moveaxis(value, dim, at)


def fold_metadata(array: jax.Array, dim: int) -> jax.Array:
    """Batched offsets or sizes as one array, updates to one peer side by side."""
    return jnp.moveaxis(array, dim, 1).reshape(-1)


def refuse_mapped_axis(axis_data: Any, axes: Axes) -> None:
    """Refuses vmap over an axis that is exchanged over: it has no devices to exchange between."""
    if axis_data.name in axes:
        raise ArgumentError(
            f"axis {axis_data.name!r} is a vmap axis; ragged exchanges run over mesh axes, inside "
            "jax.shard_map."
        )
