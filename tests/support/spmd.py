"""Runs a per-device function on the test's devices.

They are CPUs, or those of the platform that FASTJAX_TEST_PLATFORM names: `FASTJAX_TEST_PLATFORM=gpu
pytest tests` runs on GPUs what as many GPUs as there are can run, and skips the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

PLATFORM = os.environ.get("FASTJAX_TEST_PLATFORM", "cpu")


def mesh_of(
    shape: tuple[int, ...] = (8,),
    names: tuple[str, ...] = ("x",),
    *,
    explicit: bool = False,
    order: list[int] | None = None,
    platform: str = PLATFORM,
) -> jax.sharding.Mesh:
    """A mesh of the test's devices; `order` permutes them."""
    kind = AxisType.Explicit if explicit else AxisType.Auto
    count = int(np.prod(shape))
    found = jax.devices(platform)
    if platform != "cpu" and len(found) < max(count, *(order or [0]), 0):
        pytest.skip(f"needs {count} devices; JAX has {len(found)} of {platform}")
    devices = np.array(found)[order or slice(None)][:count]
    return jax.sharding.Mesh(devices.reshape(shape), names, axis_types=(kind,) * len(shape))


def spmd(
    fn: Callable[..., Any],
    mesh: jax.sharding.Mesh | None = None,
    *,
    check_vma: bool = True,
    jit: bool = True,
    donate: tuple[int, ...] = (),
) -> Callable[..., Any]:
    """fn on every device: takes and returns arrays with a leading dimension of devices.

    fn sees its own slice without that dimension.
    """
    mesh = mesh or mesh_of()
    spec = P(mesh.axis_names)

    def local(*args: Any) -> Any:
        results = fn(*jax.tree.map(lambda x: x[0], args))
        return jax.tree.map(lambda x: x[None], results)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    if jit:
        mapped = jax.jit(mapped, donate_argnums=donate)
    sharding = jax.sharding.NamedSharding(mesh, spec)

    def run(*args: Any) -> Any:
        return mapped(*jax.device_put(args, sharding))

    run.mapped = mapped  # pyright: ignore[reportFunctionMemberAccess]
    run.sharding = sharding  # pyright: ignore[reportFunctionMemberAccess]
    return run
