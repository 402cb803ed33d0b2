"""`Topology.measure`: rates of a mesh axis, by exchanges between its devices."""

import dataclasses
import math

import jax
import multiprocess
import numpy as np
import pytest
from refusals import refusals

from fastjax import Topology, measurement
from fastjax.errors import TopologyError

RATES = [f"scale_{way}_{kind}" for way in ("up", "out") for kind in ("bandwidth", "latency")]


def mesh_of(*shape):
    return jax.make_mesh(shape, ("x", "y", "z")[: len(shape)])


def check_rates(topology):
    for name in RATES:
        assert 0 < getattr(topology, name) < math.inf, name


def without_rates(topology):
    defaults = {name: getattr(Topology, name) for name in RATES}
    return dataclasses.replace(topology, **defaults)


@pytest.mark.parametrize(
    ("shape", "axis"), [((8,), "x"), ((2, 4), "y"), ((2, 2, 2), ("z", "x"))], ids=str
)
def test_one_process(shape, axis):
    mesh = mesh_of(*shape)
    topology = Topology.measure(mesh, axis)
    check_rates(topology)
    assert without_rates(topology) == Topology.from_mesh(mesh, axis)
    assert topology.scale_up_bandwidth != Topology.scale_up_bandwidth
    assert topology.scale_out_bandwidth == Topology.scale_out_bandwidth  # there is one server


def test_one_device_has_the_defaults():
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    assert Topology.measure(mesh, "x") == Topology(1, 1)


MESHES = {((2, 2), "y"): 1, ((2, 2), ("y", "x")): 2}  # servers of each


def measured():
    """Runs in a job."""
    found = []
    for shape, axis in MESHES:
        mesh = mesh_of(*shape)
        topology = Topology.measure(mesh, axis)
        check_rates(topology)
        assert without_rates(topology) == Topology.from_mesh(mesh, axis)
        found.append(dataclasses.asdict(topology))
    return {"found": found}


def test_two_processes_get_the_same():
    here, there = multiprocess.run(__file__, "measured", processes=2, devices=2)
    assert here == there
    for found, servers in zip(here["found"], MESHES.values(), strict=True):
        assert found["servers"] == servers
        between = found["scale_out_bandwidth"] != Topology.scale_out_bandwidth
        assert between == (servers > 1)


def refused(axis, message):
    """Runs in a job whose first process alone has devices in the mesh."""
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    if jax.process_index():
        with pytest.raises(TopologyError, match=message):
            Topology.measure(mesh, axis)
    else:
        Topology.measure(mesh, axis)
    return {}


def test_a_process_without_devices_in_the_mesh_is_refused():
    arguments = {"axis": "x", "message": "process 1 has no device in the mesh"}
    multiprocess.run(__file__, "refused", processes=2, devices=2, arguments=arguments)


test_bad_meshes_and_axes = refusals(
    TopologyError,
    (lambda: Topology.measure(mesh_of(8), "y"), "the mesh has axes ('x',), not 'y'"),
    (lambda: Topology.measure(mesh_of(8, 1), "y"), "axis 'y' has one device of the mesh's 8"),
    (lambda: Topology.measure(mesh_of(8, 1, 1), ("z", "y")), "axis 'z', 'y' has one device of the"),
    (lambda: Topology.measure(mesh_of(8).abstract_mesh, "x"), "AbstractMesh has no devices"),
    (lambda: Topology.measure("x", "x"), "must be a jax.sharding.Mesh, got str"),
)


@pytest.mark.parametrize("placement", [None, (7, 3, 5, 1, 0, 2, 6, 4)])
def test_each_device_sends_to_one_of_the_fabric(placement):
    mesh, topology = mesh_of(8), Topology(2, 4, placement=placement)
    exchanges = measurement._Exchanges(mesh, ("x",), topology)
    operand = exchanges._operand
    numbers = np.repeat(np.arange(8, dtype=np.float32), operand.shape[0] // 8)
    rank_of = placement or tuple(range(8))
    for fabric in (measurement._UP, measurement._OUT):
        exchanges._operand = jax.device_put(
            np.broadcast_to(numbers[:, None], operand.shape), operand.sharding
        )
        exchanges.estimate(fabric, 3)
        got = np.asarray(exchanges._output).reshape(8, -1, operand.shape[1])[:, :3]
        for position in range(8):
            (sender,) = set(got[position].ravel().tolist())
            server, local = divmod(rank_of[position], 4)
            if fabric == measurement._UP:
                assert divmod(rank_of[int(sender)], 4) == (server, (local - 1) % 4)
            else:
                assert divmod(rank_of[int(sender)], 4) == (1 - server, local)


class Modelled:
    """Exchanges that take as long as the model says."""

    def __init__(self, launch, latency, bandwidth):
        self.launch, self.latency, self.bandwidth = launch, latency, bandwidth

    def seconds(self, fabric, rows):
        del fabric
        return self.launch + (rows > 0) * self.latency + rows * 4096 / self.bandwidth

    estimate = seconds


@pytest.mark.parametrize("bandwidth", [1e6, 12.5e6, 3e9, 450e9])
@pytest.mark.parametrize("latency", [2e-6, 1e-4, 0.02])
def test_rates_are_those_of_the_model(bandwidth, latency):
    found = measurement._bandwidth_and_latency(Modelled(5e-5, latency, bandwidth), 0)
    assert found == (pytest.approx(bandwidth, rel=5e-3), pytest.approx(latency, rel=5e-3))


def test_times_that_do_not_grow_give_a_bandwidth_and_no_latency():
    bandwidth, latency = measurement._bandwidth_and_latency(Modelled(1e-3, -1e-4, math.inf), 0)
    assert 0 < bandwidth < math.inf
    assert latency is None
