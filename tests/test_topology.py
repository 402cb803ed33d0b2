"""Topologies: what they refuse, and how meshes and groups become one."""

import math
import types
from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from refusals import bounds, keywords, refusals

from fastjax import Topology
from fastjax.errors import TopologyError
from fastjax.topology import fit_to_groups, topology_of_words, usual_topology

RATES = {
    "scale_up_bandwidth": 300e9,
    "scale_out_bandwidth": 25e9,
    "scale_up_latency": 1e-6,
    "scale_out_latency": 5e-6,
    "transfer_overhead": 3e-6,
    "incast_loss": 0.25,
}


NAN, INF = math.nan, math.inf
BELOW_1, ABOVE_1 = math.nextafter(1, 0), math.nextafter(1, 2)
BANDWIDTHS = [0, BELOW_1, -1e9, NAN, INF, 2.0**62], [1, math.nextafter(2.0**62, 0)]
LATENCIES = [math.nextafter(0, -1), math.nextafter(3600, INF), NAN, INF], [0, 3600]


def with_nics(*nics):
    return lambda: Topology(2, 2, nic_bandwidths=nics)


COUNT = [0, -1, 2.5, 2**20], [1, 2**20 - 1]

test_bounds = bounds(
    TopologyError,
    ("servers", lambda v: Topology(v, 1), *COUNT),
    ("devices_per_server", lambda v: Topology(1, v), *COUNT),
    *keywords(
        partial(Topology, 1, 1),
        scale_up_bandwidth=BANDWIDTHS,
        scale_out_bandwidth=BANDWIDTHS,
        scale_up_latency=LATENCIES,
        scale_out_latency=LATENCIES,
        transfer_overhead=LATENCIES,
        incast_loss=([math.nextafter(0, -1), ABOVE_1, NAN, "half", None], [0, 1]),
    ),
    (
        *("nic_bandwidths", lambda v: with_nics(50e9, 50e9, v, 50e9)()),
        *([-1.0, *BANDWIDTHS[0][1:]], [0, *BANDWIDTHS[1]]),
    ),
    *keywords(
        partial(Topology, 2, 2),
        placement=([(0, 1, 2), (0, 1, 2, 2), (1, 2, 3, 4), (-1, 0, 1, 2)], [(3, 2, 1, 0)]),
    ),
)

test_refused_nics = refusals(
    TopologyError,
    (with_nics(*[50e9] * 3), "nic_bandwidths", "each of the 4 devices, got 3"),
    (with_nics(), "nic_bandwidths", "each of the 4 devices, got 0"),
    (with_nics(*["fast"] * 4), "nic_bandwidths must be bytes/s, got ('fast', 'fast'"),
    (lambda: Topology(2, 2, nic_bandwidths={1: 2}), "nic_bandwidths must be bytes/s, got {1: 2}"),
    (with_nics(50e9, 0, 0, 0), "server 1 (devices 2 to 3)", "nic_bandwidths"),
    (with_nics(0, 0, 1, 1), "server 0 (devices 0 to 1)", "nic_bandwidths"),
)


def with_rates(servers, per_server, *rates, **others):
    return Topology(servers, per_server, **dict(zip(RATES, rates, strict=True)), **others)


def test_words():
    assert Topology(3, 4).words == (3, 4, 450 * 10**9, 50 * 10**9, 2000, 10000, 1000, 500_000)
    topology = with_rates(1, 1, 2.9, 7e9, 1.6e-9, 1, 0, 1 / 3)
    assert topology.words == (1, 1, 2, 7 * 10**9, 2, 10**9, 0, 333_333)
    assert all(type(word) is int for word in Topology(np.int32(2), np.float64(3)).words)


def test_equal_topologies_have_equal_hashes():
    """They are part of jit's cache key."""
    one = Topology(2, 2, nic_bandwidths=(50e9,) * 4, placement=(0, 2, 1, 3))
    other = Topology(
        np.int64(2), 2.0, nic_bandwidths=np.full((2, 2), 50e9), placement=np.array([0, 2, 1, 3])
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one != Topology(2, 2)
    with pytest.raises(AttributeError):
        one.servers = 3


def test_rates_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        Topology(2, 2, 450e9)


def fake_mesh(processes, axis_names, slices=None, platform="cuda"):
    """A mesh of devices that know their process, and their slice if told."""
    processes = np.array(processes)
    devices = np.empty(processes.shape, object)
    for at, process in np.ndenumerate(processes):
        devices[at] = types.SimpleNamespace(process_index=int(process), platform=platform)
        if slices is not None:
            devices[at].slice_index = np.array(slices, object)[at]
    return types.SimpleNamespace(axis_names=axis_names, devices=devices)


def shape_of(topology):
    return topology.servers, topology.devices_per_server, topology.placement


@pytest.mark.parametrize(
    ("processes", "servers", "per_server", "placement"),
    [
        ([0, 0, 1, 1], 2, 2, None),
        ([5, 5, 3, 3], 2, 2, None),
        ([0, 1, 2], 3, 1, None),
        ([4, 4, 4], 1, 3, None),
        ([0, 1, 0, 1], 2, 2, (0, 2, 1, 3)),
        ([7, 2, 2, 7], 2, 2, (0, 2, 3, 1)),
        ([0, 1, 2, 0, 1, 2], 3, 2, (0, 2, 4, 1, 3, 5)),
        ([0, 0, 1, 1, 0, 1], 2, 3, (0, 1, 3, 4, 2, 5)),
        ([0, 0, 0, 1], 4, 1, None),
        ([0, 1, 1, 0, 0, 1, 2], 7, 1, None),
    ],
)
def test_from_mesh(processes, servers, per_server, placement):
    topology = Topology.from_mesh(fake_mesh(processes, ("x",)), "x")
    assert shape_of(topology) == (servers, per_server, placement)


@pytest.mark.parametrize("name", ["servers", "devices_per_server", "placement"])
def test_from_mesh_finds_where_devices_are(name):
    with pytest.raises(TypeError, match=name):
        Topology.from_mesh(fake_mesh((0, 0, 1, 1), ("x",)), "x", **{name: 2})


@hypothesis.given(st.data())
def test_placement_of_any_order(data):
    n, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    processes = data.draw(st.permutations(np.repeat(np.arange(n), m).tolist()))
    topology = Topology.from_mesh(fake_mesh(processes, ("x",)), "x")
    assert (topology.servers, topology.devices_per_server) == (n, m)
    ranks = topology.placement or tuple(range(n * m))
    assert sorted(ranks) == list(range(n * m))
    assert topology.placement != tuple(range(n * m))
    # Positions of one process, and only those, share a server.
    together = np.equal.outer(processes, processes)
    np.testing.assert_array_equal(together, np.equal.outer(*[np.array(ranks) // m] * 2))


def test_processes_are_servers_where_all_devices_are_in_one_slice():
    """As on CPU, whose devices all have slice_index 0."""
    mesh = fake_mesh([0, 0, 1, 1], ("x",), slices=[0, 0, 0, 0])
    assert Topology.from_mesh(mesh, "x").words[:2] == (2, 2)


def test_slices_are_servers_where_devices_have_them():
    mesh = fake_mesh([0, 1, 2, 3], ("x",), slices=[0, 0, 1, 1])
    assert shape_of(Topology.from_mesh(mesh, "x")) == (2, 2, None)
    mesh = fake_mesh([0, 1, 2, 3], ("x",), slices=[None] * 4)
    assert shape_of(Topology.from_mesh(mesh, "x")) == (4, 1, None)


def test_processes_of_one_host_are_servers_of_their_own():
    mesh = fake_mesh([0, 0, 1, 1, 2, 2, 3, 3], ("x",), slices=[0] * 4 + [1] * 4, platform="cpu")
    assert shape_of(Topology.from_mesh(mesh, "x")) == (4, 2, None)


def test_axis_of_a_larger_mesh():
    processes = np.arange(4)[:, None].repeat(2, 1)  # a process for each position of "data"
    mesh = fake_mesh(processes, ("data", "model"))
    assert shape_of(Topology.from_mesh(mesh, "data")) == (4, 1, None)
    assert shape_of(Topology.from_mesh(mesh, "model")) == (1, 2, None)


def test_several_axes_count_in_the_order_given():
    processes = np.arange(2)[:, None, None] + np.zeros((2, 3, 2), int)
    mesh = fake_mesh(processes, ("a", "b", "c"))
    assert shape_of(Topology.from_mesh(mesh, ("a", "c"))) == (2, 2, None)
    assert shape_of(Topology.from_mesh(mesh, ("c", "a"))) == (2, 2, (0, 2, 1, 3))
    assert shape_of(Topology.from_mesh(mesh, ["b", "a"])) == (2, 3, (0, 3, 1, 4, 2, 5))
    assert shape_of(Topology.from_mesh(mesh, ("b",))) == (1, 3, None)


@hypothesis.given(st.data())
def test_the_usual_topology_is_that_of_a_mesh_in_the_usual_order(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    devices = math.prod(shape)
    one_each = st.lists(st.integers(0, 3), min_size=devices, max_size=devices)
    local = data.draw(st.sampled_from([d for d in range(1, 65) if devices % d == 0]))
    alike = st.just([device // local for device in range(devices)])
    processes = data.draw(alike | one_each.map(sorted))
    names = tuple("abc"[: len(shape)])
    axes = tuple(data.draw(st.permutations(names)))[: data.draw(st.integers(1, len(shape)))]
    mesh = fake_mesh(np.array(processes).reshape(shape), names)
    sizes = dict(zip(names, shape, strict=True))
    assert usual_topology(sizes, axes, processes) == Topology.from_mesh(mesh, axes)


@pytest.mark.parametrize(
    ("processes", "wanted"),
    [
        ([[0, 0, 1, 1], [3, 3, 2, 2]], (2, 2, None)),
        ([[0, 0, 1, 1], [0, 1, 0, 1]], (4, 1, None)),
        ([[0, 0, 0, 0], [0, 0, 1, 1]], (4, 1, None)),
    ],
)
def test_rows_of_a_mesh(processes, wanted):
    """They have servers where all rows have the same."""
    assert shape_of(Topology.from_mesh(fake_mesh(processes, ("y", "x")), "x")) == wanted


@pytest.mark.parametrize("processes", [[0, 1, 0, 1], [0, 0, 0, 1], [[0, 0], [0, 1]]])
def test_rates_reach_the_topology(processes):
    names = ("y", "x")[-np.ndim(processes) :]
    topology = Topology.from_mesh(fake_mesh(processes, names), "x", **RATES)
    assert {rate: getattr(topology, rate) for rate in RATES} == RATES


def test_from_a_mesh_of_one_process():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    assert Topology.from_mesh(mesh, "b") == Topology(1, 4)
    assert Topology.from_mesh(mesh, ("b", "a")) == Topology(1, 8)


LINE_OF_TWO = fake_mesh([[0, 1]], ("x", "y"))


test_refused_meshes = refusals(
    TopologyError,
    (lambda: Topology.from_mesh(LINE_OF_TWO, "z"), "('x', 'y'), not 'z'"),
    (lambda: Topology.from_mesh(LINE_OF_TWO, ("x", "z")), "('x', 'y'), not 'z'"),
    (lambda: Topology.from_mesh(AbstractMesh((2,), ("x",)), "x"), "an AbstractMesh has no devices"),
    (lambda: Topology.from_mesh("x", LINE_OF_TWO), "mesh must be", "got str"),
)


def test_no_groups():
    topology = Topology(2, 2, **RATES, nic_bandwidths=(25e9,) * 4)
    fitted, rank_of = fit_to_groups(topology, 4, None)
    assert fitted == topology
    assert fitted.words == Topology(2, 2, **RATES).words
    assert rank_of == (0, 1, 2, 3)


def test_placement_becomes_the_rank_of_each_position():
    fitted, rank_of = fit_to_groups(Topology(2, 2, placement=(0, 2, 1, 3)), 4, None)
    assert fitted == Topology(2, 2)
    assert rank_of == (0, 2, 1, 3)


@pytest.mark.parametrize(
    ("placement", "groups", "servers", "per_server", "rank_of"),
    [
        (None, ((0, 1, 2, 3), (4, 5, 6, 7)), 1, 4, (0, 1, 2, 3)),
        (None, ((0, 1, 4, 5), (2, 3, 6, 7)), 2, 2, (0, 1, 2, 3)),
        (None, ((0, 4, 1, 5), (6, 2, 7, 3)), 2, 2, (0, 2, 1, 3)),
        (None, ((0, 4), (1, 5), (2, 6), (3, 7)), 2, 1, (0, 1)),
        (None, ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)), 1, 1, (0,)),
        # One group inside a server, the other across both.
        (None, ((0, 1), (2, 4), (3, 5), (6, 7)), 2, 1, (0, 1)),
        # Three devices of one server and one of the other.
        (None, ((0, 1, 2, 4), (5, 6, 7, 3)), 4, 1, (0, 1, 2, 3)),
        # Position 0 is on server 0, position 1 on server 1, and so on.
        ((0, 4, 1, 5, 2, 6, 3, 7), ((0, 2, 4, 6), (1, 3, 5, 7)), 1, 4, (0, 1, 2, 3)),
        ((0, 4, 1, 5, 2, 6, 3, 7), ((0, 1, 2, 3), (4, 5, 6, 7)), 2, 2, (0, 2, 1, 3)),
    ],
)
def test_groups(placement, groups, servers, per_server, rank_of):
    topology = Topology(2, 4, **RATES, placement=placement, nic_bandwidths=(25e9,) * 8)
    fitted, ranks = fit_to_groups(topology, 8, groups)
    nics = (25e9,) * (servers * per_server)
    assert fitted == Topology(servers, per_server, **RATES, nic_bandwidths=nics)
    assert ranks == rank_of


@pytest.mark.parametrize("nics", [None, (3e9, 0.0, 5e9, 7e9, 11e9, 13e9)])
def test_words_have_every_field(nics):
    topology = with_rates(2, 3, 4e9, 5e9, 6e-9, 7e-9, 8e-9, 9e-6, nic_bandwidths=nics)
    assert topology.words == (2, 3, 4 * 10**9, 5 * 10**9, 6, 7, 8, 9, *map(int, nics or ()))
    assert topology_of_words(topology.words) == topology
