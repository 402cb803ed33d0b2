"""Which devices are in a group: what the mesh says, and where it says nothing."""

import types

import jax
import numpy as np
import pytest

import fastjax
from fastjax import jax_compat


def test_processes_of_a_mesh(monkeypatch):
    """Devices are numbered inside their process by id, also where a mesh leaves some out."""
    devices = [
        types.SimpleNamespace(id=2048 * (i // 4) + i % 4, process_index=i // 4, platform="cpu")
        for i in range(8)
    ]
    monkeypatch.setattr(jax, "devices", lambda _: devices[::-1])
    mesh = types.SimpleNamespace(devices=np.array([devices[i] for i in (0, 3, 6, 4)]).reshape(2, 2))
    ctx = types.SimpleNamespace(
        module_context=types.SimpleNamespace(axis_context=types.SimpleNamespace(mesh=mesh))
    )
    within, across = np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2).T
    assert jax_compat.device_processes(ctx, across) is None  # there is one process
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert jax_compat.device_processes(ctx, within) is None
    for groups in (across, np.array([[0, 1, 2, 3]])):
        processes, rails = jax_compat.device_processes(ctx, groups)
        assert (processes.tolist(), rails.tolist()) == ([0, 0, 1, 1], [0, 3, 2, 0])
        assert processes.dtype == rails.dtype == np.int64
    ctx.module_context.axis_context.mesh = jax.sharding.AbstractMesh((4,), ("x",))
    with pytest.raises(fastjax.errors.UnsupportedError, match="which process each device is in"):
        jax_compat.device_processes(ctx, across)


def test_an_axis_that_no_mesh_binds_is_refused():
    ctx = types.SimpleNamespace(module_context=types.SimpleNamespace(axis_context=None))
    with pytest.raises(fastjax.errors.UnsupportedError, match="not bound by a mesh"):
        jax_compat.replica_groups(ctx, ("x",), None)
