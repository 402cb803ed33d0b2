"""What JAX says of devices: which server each is in."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from fastjax.errors import TopologyError

AxisName = Hashable | Sequence[Hashable]


def lines(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """What lies along some axes of an array: one row for each position of the other axes."""
    moved = np.moveaxis(array, axes, range(len(axes)))
    return moved.reshape(math.prod(moved.shape[: len(axes)]), -1).T


def _servers_of(devices: np.ndarray) -> np.ndarray:
    """Which server each device is in."""
    # A CPU's "slice" says which host it is on, if anything. Processes have memory of their own, so
    # several of one host are still servers of their own.
    slices = np.vectorize(
        lambda d: None if d.platform == "cpu" else getattr(d, "slice_index", None), otypes=[object]
    )(devices)
    # Backends without slices put all devices, of any number of processes, in one.
    if None not in slices and len(set(slices.flat)) > 1:
        return slices.astype(int)
    return np.vectorize(lambda d: d.process_index, otypes=[int])(devices)


def axis_names(axis_name: AxisName) -> tuple[Hashable, ...]:
    """The axes that a name, or a sequence of names, stands for."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def server_labels(mesh: Any, axis_name: AxisName) -> np.ndarray:
    """Which server each device of the axis is in: one row for each position of the other axes."""
    if not hasattr(mesh, "axis_names"):
        raise TopologyError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}.")
    names = axis_names(axis_name)
    missing = [n for n in names if n not in mesh.axis_names]
    if missing:
        raise TopologyError(f"the mesh has axes {mesh.axis_names}, not {missing[0]!r}.")
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise TopologyError("an AbstractMesh has no devices; pass the Mesh itself.")
    return _servers_of(lines(mesh.devices, [mesh.axis_names.index(n) for n in names]))
