"""Counts of all devices, gathered by calls of ours, against numpy; and what waits for whom."""

import time

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
from exchange_checks.backends import spread
from spmd import mesh_of, spmd

import fastjax
from fastjax import handlers, moe
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.plan_spec import make_spec

P = jax.P
PAIRS = ((0, 5), (1, 4), (2, 7), (3, 6))


def group_of(axes=("x",), groups=None, scheduler=None):
    return ExchangeGroup(axes, groups, make_spec(axes, groups, None, scheduler, 1))


def gathered(counts, *of):
    return group_of(*of).gather([counts])[0]


def of_others(groups):
    """The positions of the devices in whose order a device's counts are, shape (devices, size)."""
    group_of = {device: group for group in groups for device in group}
    return np.array([group_of[device] for device in range(8)])


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("groups", [None, PAIRS])
@pytest.mark.parametrize("shape", [(3,), (2, 5)])
def test_counts(rng, shape, groups, check_vma):
    counts = rng.integers(-9, 9, (8, *shape)).astype(np.int32)  # any integers
    got = spmd(lambda c: gathered(c, ("x",), groups), check_vma=check_vma)(counts)
    np.testing.assert_array_equal(got, counts[of_others(groups or (tuple(range(8)),))])


def test_counts_over_two_axes(rng):
    counts = rng.integers(0, 9, (8, 3)).astype(np.int32)
    mesh = mesh_of((2, 4), ("a", "b"))
    run = lambda axes: spmd(lambda c: gathered(c, axes), mesh)(counts)  # noqa: E731
    np.testing.assert_array_equal(run(("a", "b")), np.broadcast_to(counts, (8, 8, 3)))
    lines = counts.reshape(2, 1, 4, 3).repeat(4, 1).reshape(8, 4, 3)
    np.testing.assert_array_equal(run(("b",)), lines)


def test_a_batch(rng):
    counts = rng.integers(0, 9, (8, 3, 2, 5)).astype(np.int32)  # 5: the batch
    got = spmd(jax.vmap(gathered, -1, -1))(counts)
    np.testing.assert_array_equal(got, np.broadcast_to(counts, (8, *counts.shape)))


@pytest.mark.parametrize("groups", [None, PAIRS])
def test_plans_are_those_of_the_sizes(rng, groups):
    size = len(groups[0]) if groups else 8
    sizes = rng.integers(0, 9, (8, 2 * size)).astype(np.int32)

    def local(sizes):
        group = group_of(("x",), groups, "fast")
        plan, gathered = group.plan_and_gather(sizes)
        return plan.table, group.plan(sizes).table, gathered

    table, alone, got = spmd(local)(sizes)
    np.testing.assert_array_equal(table, alone)
    np.testing.assert_array_equal(got, sizes[of_others(groups or (tuple(range(8)),))])


def test_a_batch_is_planned_once(rng):
    sizes = rng.integers(0, 9, (8, 3, 16)).astype(np.int32)

    run = spmd(jax.vmap(lambda sizes: group_of().plan_and_gather(sizes)[1]))
    before = fastjax.planning_count()
    np.testing.assert_array_equal(run(sizes), np.broadcast_to(sizes.swapaxes(0, 1), (8, 3, 8, 16)))
    assert fastjax.planning_count() - before <= 1
    assert run.mapped.lower(sizes).as_text().count("fastjax_plan_v2") == 1


def test_inside_a_shard_map_that_leaves_an_axis(rng):
    counts = rng.integers(0, 9, (4, 3)).astype(np.int32)
    mesh = mesh_of((4, 2), ("x", "d"))

    def local(counts):
        sizes = jnp.repeat(counts[0, :1], 4)
        plan, of_all = group_of().plan_and_gather(sizes)
        return gathered(counts[0])[None], of_all[None], plan.table[None]

    mapped = jax.shard_map(local, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x"))
    got, of_all, _ = jax.jit(mapped)(counts)
    np.testing.assert_array_equal(got, np.broadcast_to(counts, (4, 4, 3)))
    np.testing.assert_array_equal(
        of_all, np.broadcast_to(counts[:, :1, None], (4, 4, 1, 4))[:, :, 0]
    )


def layer(x, ids, **options):
    matrices = jnp.ones((1, 4, 4))
    return moe.layer(
        *(x, ids, None, matrices),
        expert_fn=lambda rows, matrix: rows @ matrix,
        num_experts=jax.lax.axis_size("x"),
        axis_name="x",
        **options,
    )


OPTIONS = [
    {"deduplicate": False},
    {"deduplicate": False, "buffer_factor": 1.0},
    {"deduplicate": True, "chunks": 2, "buffer_factor": 1.0},
]


@pytest.mark.skipif(handlers.emulates_gpus(), reason="GPUs gather by JAX's all_gather")
@pytest.mark.parametrize("options", OPTIONS)
def test_layers_have_no_collective_of_xla(options):
    """Those wait without limit, or end the process, where another device stays away."""

    def loss(x, ids):
        f = lambda x, ids: layer(x, ids, topology=fastjax.Topology(4, 2), **options)  # noqa: E731
        mapped = jax.shard_map(f, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
        return (mapped(x, ids) ** 2).sum()

    shapes = jax.ShapeDtypeStruct((32, 4), jnp.float32), jax.ShapeDtypeStruct((32, 2), jnp.int32)
    lowered = jax.jit(jax.grad(loss)).trace(*shapes).lower(lowering_platforms=("cpu",))
    text = lowered.as_text()
    assert "fastjax_plan_v2" in text
    for collective in ("all_gather", "all_to_all", "all_reduce", "collective_permute"):
        assert f"stablehlo.{collective}" not in text
    others = jax.jit(jax.grad(loss)).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.all_gather" in others
    assert "fastjax" not in others


@pytest.mark.parametrize("options", OPTIONS[1:2])
def test_a_device_that_fails_is_an_error_on_all(options):
    """In a callback before the layer; then the layer works again, at once."""
    fails = [False]

    def load(x, device):
        if fails[0] and device == 3:
            raise ValueError("a bad batch")
        return np.asarray(x)

    def local(x, ids):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = jax.experimental.io_callback(load, shape, x, jax.lax.axis_index("x"))
        return layer(x, ids, topology=fastjax.Topology(4, 2), **options)

    x, ids = np.ones((32, 4), np.float32), np.zeros((32, 2), np.int32)
    with fastjax.options(timeout=4):
        mapped = jax.shard_map(
            local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
        run = jax.jit(mapped)
        told = [" waited "]
        while " waited " in told[-1] and len(told) < 4:  # as on a busy machine
            fails[0] = True
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
                jax.block_until_ready(run(x, ids))
            fails[0] = False
            told.append(error_of(run(x, ids)))
        assert told[-1] == "", told


def layers_that_differ(pairs):
    """Runs in a job: processes have other options in layers, all at once; and then the same."""
    mesh = mesh_of((jax.device_count(),))
    arguments = spread(mesh, (np.ones((4, 8, 4), np.float32), np.zeros((4, 8, 2), np.int32)))
    programs = []
    for number, mine in enumerate([*(pair[jax.process_index()] for pair in pairs), {}]):

        def local(x, ids, mine=mine):
            return layer(x[0], ids[0], topology=fastjax.Topology(2, 2), **mine)[None]

        local.__name__ = f"layer_{number}"
        run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
        programs.append(run.lower(*arguments).compile())
    multiprocess.barrier("compiled")
    began = time.monotonic()
    told = [error_of(result) for result in [run(*arguments) for run in programs[:-1]]]
    multiprocess.barrier("told")
    assert error_of(programs[-1](*arguments)) == ""
    assert time.monotonic() - began < 60
    return {"told": told}


def error_of(result):
    try:
        jax.block_until_ready(result)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return ""


def test_processes_whose_layers_differ_are_told():
    differences = {
        ("deduplicate=True", "deduplicate=False"): ({"deduplicate": True}, {"deduplicate": False}),
        ("chunks=1", "chunks=2"): ({"chunks": 1}, {"chunks": 2}),
        ("room for 16 rows", "room for 64 rows"): (
            {"buffer_factor": 1.0},
            {"buffer_factor": None},
        ),
    }
    results = multiprocess.run(
        __file__,
        "layers_that_differ",
        processes=2,
        devices=2,
        arguments={"pairs": list(differences.values())},
        environment={"FASTJAX_TIMEOUT": "3"},
    )
    for number, words in enumerate(differences):
        told = [result["told"][number] for result in results]
        assert all(told)
        for word in words:
            assert any(word in text for text in told), told
