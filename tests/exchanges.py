"""Exchanges on the devices of a job, checked in every process: what test_processes.py runs.

Each check computes what must arrive, on all devices, with numpy, and looks at the shards of its own
process. All processes draw the same random numbers.
"""

from __future__ import annotations

import functools
import traceback
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import moe_reference
import multiprocess
import numpy as np
import reference
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax
import fastjax.moe

Check = Callable[[np.random.Generator, int, int], Any]
CHECKS: dict[str, Check] = {}
SCHEDULERS = tuple(name for name in fastjax.schedulers() if name != "optimal")


def check(function: Check) -> Check:
    """Takes (random numbers, processes, devices of each); returns what the parent looks at."""
    CHECKS[function.__name__] = function
    return function


def run_all(names: list[str]) -> dict[str, Any]:
    """Runs checks one after the other; how each went, and what it returned."""
    found = {}
    for name in names:
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        try:
            value = CHECKS[name](rng, jax.process_count(), jax.local_device_count())
            found[name] = {"error": "", "value": value}
        except Exception:  # noqa: BLE001  # the test of that name fails, the others go on
            found[name] = {"error": traceback.format_exc(), "value": None}
        # One that failed half-way must not run into the others' next check.
        multiprocess.barrier(name)
    return found


def spread(mesh: jax.sharding.Mesh, values: Any) -> Any:
    """Arrays with a leading dimension of devices, each process holding its own part."""
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, sharding, lambda at: np.asarray(x[at])),
        values,
    )


def launch(fn: Any, mesh: jax.sharding.Mesh, *args: Any, **options: Any) -> Any:
    """fn on every device, of its part of each argument."""
    return spmd(fn, mesh, **options).mapped(*spread(mesh, args))  # pyright: ignore[reportFunctionMemberAccess]


def same(result: Any, expected: Any) -> None:
    """Compares the parts that are here."""
    assert result.shape == np.shape(expected)
    for shard in result.addressable_shards:
        np.testing.assert_array_equal(shard.data, np.asarray(expected)[shard.index])


def exchanged(
    rng: np.random.Generator,
    mesh: jax.sharding.Mesh,
    *,
    groups: Any = None,
    members: Any = None,
    most: int = 5,
    trailing: tuple[int, ...] = (3,),
    dtype: Any = np.float32,
    **options: Any,
) -> None:
    """One exchange of random sizes over all of a mesh, or groups of its positions."""
    members = members or groups or [list(range(mesh.size))]
    sizes = reference.random_sizes(rng, mesh.size, 2 * len(members[0]), most)
    meta = reference.packed(sizes, members)
    operand, output = (np.asarray(8 * a).astype(dtype) for a in reference.data(rng, meta, trailing))
    options = {"axis_name": mesh.axis_names, "axis_index_groups": groups} | options
    result = launch(
        lambda *a: fastjax.fast_ragged_all_to_all(*a, **options),
        mesh,
        operand,
        output,
        *meta.arrays(),
    )
    same(result, reference.exchange(operand, output, meta, members))


@check
def every_scheduler(rng: np.random.Generator, n: int, m: int) -> None:
    mesh = mesh_of((n * m,))
    for scheduler in SCHEDULERS:
        exchanged(rng, mesh, scheduler=scheduler, topology=fastjax.Topology(n, m))


@check
def every_topology(rng: np.random.Generator, n: int, m: int) -> None:
    """Also such that are not those of the processes: planned less well, but right."""
    mesh = mesh_of((n * m,))
    for servers in (d for d in range(1, n * m + 1) if n * m % d == 0):
        topology = fastjax.Topology(servers, n * m // servers)
        exchanged(rng, mesh, scheduler="fast", topology=topology)


@check
def without_any_option(rng: np.random.Generator, n: int, m: int) -> None:
    exchanged(rng, mesh_of((n * m,)))


@check
def many_rows(rng: np.random.Generator, n: int, m: int) -> None:
    mesh = mesh_of((n * m,))
    for scheduler in ("fast", "direct"):
        options = {"scheduler": scheduler, "topology": fastjax.Topology(n, m)}
        exchanged(rng, mesh, most=200, trailing=(513,), **options)


@check
def data_types(rng: np.random.Generator, n: int, m: int) -> None:
    mesh = mesh_of((n * m,))
    for dtype in (np.uint8, np.bool_, jnp.bfloat16, np.complex64, jnp.int4):
        exchanged(rng, mesh, dtype=dtype)
    exchanged(rng, mesh, trailing=())


@check
def nothing_to_send(rng: np.random.Generator, n: int, m: int) -> None:
    exchanged(rng, mesh_of((n * m,)), most=0)


@check
def groups_inside_and_across(rng: np.random.Generator, n: int, m: int) -> None:
    mesh = mesh_of((n * m,))
    positions = np.arange(n * m)
    for groups in (
        positions.reshape(n, m),  # inside each process
        positions.reshape(n, m).T,  # a device of each
        rng.permutation(positions).reshape(2, -1),
        rng.permutation(positions).reshape(1, -1),
        positions[:, None],
    ):
        for scheduler in ("fast", "direct"):
            exchanged(rng, mesh, groups=groups.tolist(), scheduler=scheduler)


@check
def axes_of_a_mesh(rng: np.random.Generator, n: int, m: int) -> None:
    mesh = mesh_of((n, m), ("process", "device"))
    rows = np.arange(n * m).reshape(n, m)
    for name, members in (
        ("process", rows.T),
        ("device", rows),
        (("device", "process"), rows.T.reshape(1, -1)),
    ):
        for topology in (None, fastjax.Topology.from_mesh(mesh, name)):
            options = {"axis_name": name, "topology": topology}
            exchanged(rng, mesh, members=members.tolist(), **options)


@check
def topology_that_nobody_gave(rng: np.random.Generator, n: int, m: int) -> None:
    """It is that of the mesh, though only the shape of the mesh is known where it is needed."""
    mesh = mesh_of((n, m), ("process", "device"))
    for name in ("process", "device", ("process", "device"), ("device", "process")):
        specs = []

        def plan(sizes: Any, name: Any = name, specs: Any = specs) -> Any:
            plan = fastjax.plan_ragged_all_to_all(sizes, axis_name=name)
            specs.append(plan.spec)
            return plan.table

        f = jax.shard_map(plan, mesh=mesh, in_specs=P(), out_specs=P(mesh.axis_names))
        jax.make_jaxpr(f)(np.zeros(n * m, np.int32))
        known = fastjax.Topology.from_mesh(mesh, name)
        ranks = known.placement or tuple(range(known.num_devices))
        assert specs[0].topology.words[:2] == known.words[:2]
        assert specs[0].rank_of == ranks


@check
def devices_in_any_order(rng: np.random.Generator, n: int, m: int) -> None:
    order = np.arange(n * m).reshape(n, m).T.reshape(-1)
    for devices in (order, rng.permutation(n * m)):
        mesh = mesh_of((n * m,), order=devices.tolist())
        topology = fastjax.Topology.from_mesh(mesh, "x")
        for scheduler in ("fast", "rails"):
            exchanged(rng, mesh, scheduler=scheduler, topology=topology)


@check
def part_of_the_devices(rng: np.random.Generator, n: int, m: int) -> None:
    """Every process takes part, with all of its devices but the last."""
    if m > 1:
        devices = [p * m + d for p in range(n) for d in range(m - 1)]
        exchanged(rng, mesh_of((len(devices),), order=devices))


@check
def part_of_the_processes(rng: np.random.Generator, n: int, m: int) -> None:
    """The first and the last; the others have nothing to do with it."""
    if n > 2 and jax.process_index() in {0, n - 1}:
        exchanged(rng, mesh_of((2 * m,), order=[*range(m), *range((n - 1) * m, n * m)]))


@check
def planned_reused_and_transposed(rng: np.random.Generator, n: int, m: int) -> None:
    """Out and back: what comes back is what was sent."""
    size = n * m
    mesh = mesh_of((size,))
    meta = reference.packed(reference.random_sizes(rng, size, size))
    operand, output = reference.data(rng, meta)
    home = np.zeros_like(operand)
    back = reference.Metadata(
        *(
            _swapped(a)
            for a in (meta.output_offsets, meta.recv_sizes, meta.input_offsets, meta.send_sizes)
        )
    )
    back.send_sizes, back.recv_sizes = meta.recv_sizes, meta.send_sizes

    def there_and_back(operand: Any, output: Any, home: Any, out: Any, back: Any) -> Any:
        plan = fastjax.plan_ragged_all_to_all(out[1], axis_name="x", scheduler="fast")
        first = fastjax.fast_ragged_all_to_all(operand, output, *out, axis_name="x", plan=plan)
        again = fastjax.fast_ragged_all_to_all(2 * operand, first, *out, axis_name="x", plan=plan)
        way_back = plan.transpose()
        home = fastjax.fast_ragged_all_to_all(again, home, *back, axis_name="x", plan=way_back)
        return first, again, home

    first, again, returned = launch(
        there_and_back, mesh, operand, output, home, meta.arrays(), back.arrays()
    )
    expected = reference.exchange(operand, output, meta)
    same(first, expected)
    expected = reference.exchange(2 * operand, expected, meta)
    same(again, expected)
    same(returned, reference.exchange(expected, home, back))


def _swapped(offsets: np.ndarray) -> np.ndarray:
    """What each device would get of these in an all_to_all."""
    return np.ascontiguousarray(offsets.T)


@check
def gradients(rng: np.random.Generator, n: int, m: int) -> None:
    size = n * m
    mesh = mesh_of((size,))
    meta = reference.packed(reference.random_sizes(rng, size, 2 * size))
    operand, output = (np.round(8 * a) for a in reference.data(rng, meta))
    cotangent = rng.integers(-9, 10, output.shape).astype(np.float32)

    def local(operand: Any, output: Any, cotangent: Any, arrays: Any) -> Any:
        result, back = jax.vjp(
            lambda *data: fastjax.fast_ragged_all_to_all(*data, *arrays, axis_name="x"),
            operand,
            output,
        )
        return result, *back(cotangent)

    got = launch(local, mesh, operand, output, cotangent, meta.arrays())
    result, back = jax.vjp(lambda *a: reference.exchange_in_jax(*a, meta), operand, output)
    for one, expected in zip(got, (result, *back(cotangent)), strict=True):
        same(one, expected)


@check
def several_in_one_program(rng: np.random.Generator, n: int, m: int) -> None:
    """With collectives of XLA between them, whose order is not ours."""
    size = n * m
    mesh = mesh_of((size,))
    metas = [reference.packed(reference.random_sizes(rng, size, size)) for _ in range(3)]
    data = [reference.data(rng, meta) for meta in metas]

    def local(data: Any, arrays: Any) -> Any:
        results = [
            fastjax.fast_ragged_all_to_all(*d, *a, axis_name="x", scheduler=scheduler)
            for d, a, scheduler in zip(data, arrays, ("fast", "direct", "rails"), strict=True)
        ]
        return results, [jax.lax.psum(d[0].sum(), "x")[None] for d in data]

    results, sums = launch(local, mesh, data, [meta.arrays() for meta in metas])
    for result, d, meta in zip(results, data, metas, strict=True):
        same(result, reference.exchange(*d, meta))
    for total, d in zip(sums, data, strict=True):
        for shard in total.addressable_shards:
            np.testing.assert_allclose(shard.data, d[0].sum(dtype=float), rtol=1e-3, atol=1e-2)


@check
def scan(rng: np.random.Generator, n: int, m: int) -> None:
    size, steps = n * m, 5
    mesh = mesh_of((size,))
    metas = [reference.packed(reference.random_sizes(rng, size, size)) for _ in range(steps)]
    rows = max(max(reference.rows_needed(meta)) for meta in metas)
    operand, output = rng.integers(-9, 10, (2, size, rows, 2)).astype(np.float32)
    stacked = [np.stack(a, 1) for a in zip(*(meta.arrays() for meta in metas), strict=True)]

    def local(operand: Any, output: Any, arrays: Any) -> Any:
        def step(carried: Any, now: Any) -> Any:
            result = fastjax.fast_ragged_all_to_all(
                operand + carried, carried, *now, axis_name="x", scheduler="fast"
            )
            return result, None

        return jax.lax.scan(step, output, arrays)[0]

    result = launch(local, mesh, operand, output, stacked)
    expected = output
    for meta in metas:
        expected = reference.exchange(operand + expected, expected, meta)
    same(result, expected)


@check
def programs_in_flight(rng: np.random.Generator, n: int, m: int) -> None:
    """Two programs, launched by turns without waiting; one process has other things to do too."""
    size = n * m
    mesh = mesh_of((size,))
    cases = []
    for scheduler in ("fast", "direct"):
        meta = reference.packed(reference.random_sizes(rng, size, size, 40))
        data = reference.data(rng, meta, (16,))
        run = spmd(
            lambda *a, s=scheduler: fastjax.fast_ragged_all_to_all(*a, axis_name="x", scheduler=s),
            mesh,
        )
        cases.append((run.mapped, spread(mesh, (*data, *meta.arrays())), data, meta))  # pyright: ignore[reportFunctionMemberAccess]
    results = []
    for turn in range(6):
        if jax.process_index() == turn % n:
            jax.jit(lambda x, t=turn: x * t)(np.ones(3))
        results += [(run(*args), data, meta) for run, args, data, meta in cases]
    for result, data, meta in results:
        same(result, reference.exchange(*data, meta))


@check
def an_error_everywhere(rng: np.random.Generator, n: int, m: int) -> str:
    """Every process raises the same; the next exchange works."""
    size = n * m
    mesh = mesh_of((size,))
    meta = reference.packed(reference.random_sizes(rng, size, size))
    operand, output = reference.data(rng, meta)
    run = spmd(lambda *a: fastjax.fast_ragged_all_to_all(*a, axis_name="x"), mesh).mapped  # pyright: ignore[reportFunctionMemberAccess]
    arrays = meta.arrays()
    arrays[1][size - 1, 0] = -1
    try:
        jax.block_until_ready(run(*spread(mesh, (operand, output, *arrays))))
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    else:
        raise AssertionError("a negative size was accepted")
    same(
        run(*spread(mesh, (operand, output, *meta.arrays()))),
        reference.exchange(operand, output, meta),
    )
    return text[text.index("fast_ragged_all_to_all over axis") :].splitlines()[0]


@check
def expert_parallel_layer(rng: np.random.Generator, n: int, m: int) -> int:
    """A layer and its gradients against one device; how many plans each process made."""
    size = n * m
    mesh = mesh_of((size,))
    x, router, experts = moe_reference.problem(rng, size, 12, 2 * size)
    spread_out = jax.tree.map(lambda a: a.reshape(size, 2, *a.shape[1:]), experts)
    routers = np.broadcast_to(router, (size, *router.shape))

    def local(x: Any, router: Any, experts: Any) -> Any:
        def loss(x: Any, router: Any, experts: Any) -> Any:
            result, _ = moe_reference.layer(
                x,
                router,
                experts,
                2,
                functools.partial(fastjax.moe.dispatch, num_experts=2 * size, axis_name="x"),
                fastjax.moe.combine,
                jax.lax.ragged_dot,
            )
            return jnp.sum(result**2), result

        (_, result), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, router, experts)
        return result, *grads

    before = fastjax.planning_count()
    got = jax.block_until_ready(launch(local, mesh, x, routers, spread_out))
    planned = fastjax.planning_count() - before

    def dense(x: Any, routers: Any, experts: Any) -> Any:
        one = functools.partial(moe_reference.dense, experts=experts, top_k=2)
        result = jax.vmap(one)(x, routers)
        return jnp.sum(result**2), result

    (_, result), grads = jax.value_and_grad(dense, (0, 1, 2), has_aux=True)(x, routers, experts)
    of_experts = jax.tree.map(lambda a, b: a.reshape(b.shape), grads[2], spread_out)
    for one, wanted in zip(
        jax.tree.leaves(got), jax.tree.leaves((result, *grads[:2], of_experts)), strict=True
    ):
        for shard in one.addressable_shards:
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(shard.data / scale, wanted[shard.index] / scale, atol=1e-5)
    return planned


@check
def state_of_the_network(rng: np.random.Generator, n: int, m: int) -> dict[str, Any]:
    """Of what was exchanged so far, here."""
    exchanged(rng, mesh_of((n * m,)))
    state = fastjax._core.network_state()
    return {name: repr(value) if name != "open" else value for name, value in state.items()}
