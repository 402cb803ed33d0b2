"""Groups, several mesh axes, tuple axis names."""

import types

import jax
import numpy as np
import pytest
import reference
from plan_problems import SCHEDULERS
from spmd import mesh_of, spmd

import fastjax
from fastjax import jax_compat

GROUPS = {
    "neighbours": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "strided": [[0, 2, 4, 6], [1, 3, 5, 7]],
    "shuffled": [[6, 1, 3, 0], [5, 2, 7, 4]],
    "unequal servers": [[0, 1, 2, 4], [3, 5, 6, 7]],
    "all": [[3, 1, 4, 0, 5, 7, 2, 6]],
    "singletons": [[i] for i in range(8)],
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_axis_index_groups(rng, groups, servers, scheduler):
    sizes = reference.random_sizes(rng, 8, 2 * len(groups[0]))
    meta = reference.packed(sizes, groups)
    operand, output = reference.data(rng, meta)
    run = spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(
            *args,
            axis_name="x",
            axis_index_groups=groups,
            topology=fastjax.Topology(servers, 8 // servers),
            scheduler=scheduler,
        )
    )
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta, groups))


def _axis_groups(shape, axes):
    """Positions (row-major over the mesh) that exchange, in order of the named axes."""
    ids = np.arange(np.prod(shape)).reshape(shape)
    moved = np.moveaxis(ids, axes, range(len(axes)))
    return moved.reshape(int(np.prod([shape[a] for a in axes])), -1).T.tolist()


@pytest.mark.parametrize(
    ("names", "axes"),
    [("x", (0,)), ("y", (1,)), (("x", "y"), (0, 1)), (("y", "x"), (1, 0)), (["y"], (1,))],
)
@pytest.mark.parametrize("check_vma", [True, False])
def test_axes_of_a_mesh(rng, names, axes, check_vma):
    shape = (2, 4)
    groups = _axis_groups(shape, axes)
    meta = reference.packed(reference.random_sizes(rng, 8, 2 * len(groups[0])), groups)
    operand, output = reference.data(rng, meta)
    run = spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name=names),
        mesh_of(shape, ("x", "y")),
        check_vma=check_vma,
    )
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta, groups))


def test_groups_of_a_tuple_axis(rng):
    groups = [[0, 5, 3], [1, 2, 4]]
    meta = reference.packed(reference.random_sizes(rng, 6, 3), groups)
    operand, output = reference.data(rng, meta)
    run = spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(
            *args, axis_name=("a", "b"), axis_index_groups=groups
        ),
        mesh_of((3, 2), ("a", "b")),
    )
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta, groups))


def test_exchanges_over_different_axes_in_one_program(rng):
    shape = (2, 4)
    cases = []
    for axis, names in ((0, "x"), (1, "y")):
        groups = _axis_groups(shape, (axis,))
        meta = reference.packed(reference.random_sizes(rng, 8, len(groups[0])), groups)
        cases.append((names, groups, meta, *reference.data(rng, meta)))

    def both(args):
        return [
            fastjax.fast_ragged_all_to_all(*a, axis_name=case[0])
            for a, case in zip(args, cases, strict=True)
        ]

    got = spmd(both, mesh_of(shape, ("x", "y")))([(c[3], c[4], *c[2].arrays()) for c in cases])
    for result, (_, groups, meta, operand, output) in zip(got, cases, strict=True):
        expected = reference.exchange(operand, output, meta, groups)
        np.testing.assert_array_equal(result, expected)


def test_size_one_axis(rng):
    meta = reference.packed(np.full((4, 1), 2), [[0], [1], [2], [3]])
    operand, output = reference.data(rng, meta)
    run = spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="one"),
        mesh_of((4, 1), ("x", "one")),
    )
    got = run(operand, output, *meta.arrays())
    expected = reference.exchange(operand, output, meta, [[i] for i in range(4)])
    np.testing.assert_array_equal(got, expected)


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


def test_partly_automatic_shard_map_is_refused(rng):
    from jax.sharding import PartitionSpec as P

    meta = reference.packed(reference.random_sizes(rng, 2, 2))
    operand, output = reference.data(rng, meta)
    mesh = mesh_of((2, 4), ("x", "y"))
    args = [a.reshape(-1, *a.shape[2:]) for a in (operand, output, *meta.arrays())]
    f = jax.shard_map(
        lambda *a: fastjax.fast_ragged_all_to_all(*a, axis_name="x"),
        mesh=mesh,
        axis_names={"x"},
        in_specs=P("x"),
        out_specs=P("x"),
    )
    with pytest.raises(
        fastjax.errors.UnsupportedError, match=r"leaves mesh axes \['y'\] automatic"
    ):
        jax.jit(f)(*args)
