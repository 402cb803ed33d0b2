"""Exchanges between processes: right in each, whatever the shape of the job."""

import atexit
import contextlib
import functools
import re
import time
import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
import reference
from exchange_checks.backends import same, spread
from exchanges import exchange
from jax.sharding import PartitionSpec as P
from spmd import mesh_of, spmd

import fastjax
from fastjax.traced import plan_spec

GROUPS = {"all": [[0, 1, 2, 3]], "halves": [[0, 1], [2, 3]], "strided": [[0, 2], [1, 3]]}


def lowered(order):
    """What exchanges of some groups become, and what came of lowering them.

    How often the network was wanted, whether a warning came, and whether one did or the topology
    was another than that of the mesh where the mesh was set.
    """
    mesh = mesh_of((4,), order=order)
    sizes = jax.ShapeDtypeStruct((16,), jnp.int32)
    args = (*[jax.ShapeDtypeStruct((32, 4), jnp.float32)] * 2, *[sizes] * 4)
    texts, opened, warned, wrong = {}, {}, {}, {}
    known = fastjax.Topology.from_mesh(mesh, "x")
    for name, groups in GROUPS.items():
        local = functools.partial(exchange, axis_index_groups=groups)
        f = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
        given = jax.jit(
            jax.shard_map(
                functools.partial(local, topology=known),
                mesh=mesh,
                in_specs=P("x"),
                out_specs=P("x"),
            )
        )
        with (
            mock.patch.object(fastjax.network, "ensure_open") as ensure_open,
            warnings.catch_warnings(record=True) as found,
        ):
            warnings.simplefilter("always")
            texts[name] = f.lower(*args).as_text()
            opened[name] = ensure_open.call_count
            warned[name] = [w.category.__name__ for w in found]
            with jax.set_mesh(mesh):
                set_ = f.lower(*args).as_text()
            wrong[name] = len(found) > len(warned[name]) or set_ != given.lower(*args).as_text()
    return {"texts": texts, "opened": opened, "warned": warned, "wrong": wrong}


ORDERS = [0, 1, 2, 3], [3, 0, 2, 1]


def all_that_works():
    """Runs in a job."""
    partly_automatic()
    return {"nested": nested(), "lowered": [lowered(order) for order in ORDERS]}


@functools.cache
def two_processes():
    return multiprocess.run(__file__, "all_that_works", processes=2, devices=2)


@pytest.mark.parametrize("order", ORDERS)
def test_attributes_are_the_same_in_every_process(order):
    results = [result["lowered"][ORDERS.index(order)] for result in two_processes()]
    assert results[0] == results[1]
    texts, opened, warned, wrong = results[0].values()
    assert not any(wrong.values())
    # By partition: the process of the device there, and its number inside its process.
    processes, rails = [d // 2 for d in order], [d % 2 for d in order]
    for name, text in texts.items():
        spans = any(len({processes[i] for i in group}) > 1 for group in GROUPS[name])
        assert opened[name] == spans
        # In order, servers are as assumed; groups across them are planned as such in any order.
        falsely = spans and order != sorted(order)
        assert warned[name] == ["TopologyWarning"] * falsely
        found = re.findall(r"(processes|rails) = dense<(\[.*?\])>", text)
        assert found == [("processes", str(processes)), ("rails", str(rails))] * spans


@pytest.mark.parametrize(
    ("counts", "sizes", "wanted"),
    [
        ([4, 4], (8,), (2, 4)),
        ([2, 6], (8,), (8, 1)),
        ([2, 6], (2, 4), (4, 1)),  # the axes are y and x
        ([4, 8], (8,), (8, 1)),  # some devices are left out
        ([8, 8], (8,), (1, 8)),
    ],
)
def test_processes_of_any_numbers_of_devices_plan_alike(counts, sizes, wanted, monkeypatch):
    """By what every process knows, and not by how many devices it has itself."""
    processes = [process for process, count in enumerate(counts) for _ in range(count)]
    devices = [mock.Mock(process_index=process) for process in processes]
    mesh, seen = mesh_of(sizes, ("y", "x")[-len(sizes) :]), []

    def local(x):
        with monkeypatch.context() as patch:
            patch.setattr(jax, "process_count", lambda: len(counts))
            patch.setattr(jax, "devices", lambda: devices)
            for count in counts:
                patch.setattr(jax, "local_device_count", lambda count=count: count)
                seen.append(plan_spec.make_spec(("x",), None, None, None, 1).topology)
        return x

    jax.eval_shape(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")), jnp.ones(8))
    assert [(topology.servers, topology.devices_per_server) for topology in seen] == [wanted] * 2


def nested():
    """A shard_map inside another has no devices to ask."""
    mesh = mesh_of((4, 1), ("x", "y"))
    inner = jax.shard_map(
        exchange, axis_names={"x", "y"}, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    sizes = jax.ShapeDtypeStruct((16,), jnp.int32)
    args = (*[jax.ShapeDtypeStruct((32, 4), jnp.float32)] * 2, *[sizes] * 4)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        try:
            jax.jit(inner).trace(*args).lower(lowering_platforms=("cpu",))
        except fastjax.errors.UnsupportedError as error:
            return str(error)
    return "lowered"


def test_a_mesh_without_devices_is_refused():
    for result in two_processes():
        assert "cannot tell inside a nested shard_map" in result["nested"]
        assert "jax.set_mesh" in result["nested"]


def partly_automatic():
    """Exchanges whose shard_map leaves an axis to XLA, and inside a second one."""
    rng = np.random.default_rng(0)
    for shape, names in (((2, 2), ("x", "d")), ((2, 2), ("d", "x"))):
        mesh = mesh_of(shape, names)
        meta = reference.packed(reference.random_sizes(rng, 2, 2))
        data = reference.data(rng, meta, (4,))
        flat = [a.reshape(-1, *a.shape[2:]) for a in (*data, *meta.arrays())]
        sharding = jax.NamedSharding(mesh, P("x"))
        args = [jax.make_array_from_callback(a.shape, sharding, lambda i, a=a: a[i]) for a in flat]
        wide = P(None, "d")
        second = jax.shard_map(
            exchange, axis_names={"d"}, in_specs=(wide, wide, *[P()] * 4), out_specs=wide
        )
        expected = reference.exchange(*data, meta).reshape(-1, 4)
        for f in (exchange, second):
            mapped = jax.shard_map(
                f, mesh=mesh, axis_names={"x"}, in_specs=P("x"), out_specs=P("x")
            )
            with jax.set_mesh(mesh) if f is second else contextlib.nullcontext():
                got = jax.jit(mapped)(*args)
            for shard in got.addressable_shards:
                np.testing.assert_array_equal(shard.data, expected[shard.index])


def test_axes_that_are_left_to_xla():
    assert len(two_processes()) == 2


def leaving(how):
    """Runs in a job: process 0 ends right after a launch that process 1 comes to only then."""
    at_its_end = multiprocess.folder() / "at its end"
    rng = np.random.default_rng(0)
    mesh = mesh_of((jax.device_count(),))
    meta = reference.packed(reference.random_sizes(rng, mesh.size, mesh.size))
    data = reference.data(rng, meta)
    args, expected = spread(mesh, (*data, *meta.arrays())), reference.exchange(*data, meta)
    run = spmd(exchange, mesh).mapped
    # At exit, what was registered last runs first: this comes when fastjax has closed its network.
    if jax.process_index() == 0 and how == "raises":
        atexit.register(at_its_end.touch)
    same(run(*args), expected)
    if jax.process_index() == 0:
        run(*args)  # nobody keeps it
        if how == "ends":
            atexit.register(at_its_end.touch)  # and this before fastjax waits for the exchange
            return {}
        while fastjax._core.network_unfinished() < jax.local_device_count():
            time.sleep(0.001)
        raise ValueError("a mistake of the program's")
    while not at_its_end.exists():
        time.sleep(0.001)
    try:
        same(run(*args), expected)
    except jax.errors.JaxRuntimeError as error:
        return {"text": str(error)}
    return {"text": "right"}


def test_the_end_waits_for_an_exchange_that_nobody_kept():
    results = multiprocess.run(
        __file__, "leaving", processes=2, devices=2, arguments={"how": "ends"}
    )
    assert results[1]["text"] == "right"


def test_an_exception_ends_the_process_and_its_exchanges():
    """Not only the others' part: XLA waits, in the end, for its own devices."""
    with multiprocess.Job(
        __file__, "leaving", processes=2, devices=2, arguments={"how": "raises"}
    ) as job:
        ended = job.wait()
    assert [(one.status, one.hung) for one in ended] == [(1, False), (0, False)]
    assert "a mistake of the program's" in ended[0].output
    assert re.search(r"UNAVAILABLE: .*process 0 .*closed its network", ended[1].result["text"])
