"""The devices that tests of the GPU path run on: a GPU, and a CPU, where loopback emulates one."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

PLATFORMS = ("cpu", pytest.param("gpu", marks=pytest.mark.gpu))


def device_of(platform: str) -> jax.Device:
    """The first device of a platform.

    Skips the test if there is none, unless JAX_PLATFORMS asks for GPUs, as `make gpu` does.
    """
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:
        if "cuda" in os.environ.get("JAX_PLATFORMS", ""):
            raise
        pytest.skip(f"JAX has no {platform} here: {str(error).splitlines()[0]}")


def mesh_of_one(device: jax.Device) -> jax.sharding.Mesh:
    """The axis "x", of one device."""
    return jax.sharding.Mesh(np.array([device]), ("x",), axis_types=(AxisType.Auto,))
