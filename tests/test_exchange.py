"""Values: every exchange equals the numpy reference, row for row."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_problems import SCHEDULERS
from spmd import mesh_of, spmd

import fastjax

TOPOLOGIES = [fastjax.Topology(n, m) for n, m in ((1, 8), (2, 4), (4, 2), (8, 1))]


def exchange_with(topology=None, scheduler=None, **spmd_options):
    return spmd(
        lambda *args: fastjax.fast_ragged_all_to_all(
            *args, axis_name="x", topology=topology, scheduler=scheduler
        ),
        **spmd_options,
    )


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "topology", TOPOLOGIES, ids=lambda t: f"{t.servers}x{t.devices_per_server}"
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("updates", [1, 3])
def test_every_scheduler_on_every_topology(rng, topology, scheduler, updates):
    run = exchange_with(topology, scheduler)
    for most in (5, 40):
        meta = reference.packed(reference.random_sizes(rng, 8, 8 * updates, most), gap=1)
        operand, output = reference.data(rng, meta)
        got = run(operand, output, *meta.arrays())
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


# One compiled program for all examples: only the numbers in it change.
ROWS = 96
_programs = {}


def program(topology, scheduler):
    key = (topology, scheduler)
    if key not in _programs:
        _programs[key] = exchange_with(topology, scheduler)
    return _programs[key]


@st.composite
def traffic(draw):
    """Sizes of two updates a peer, of every shape: empty, one flow, skewed, hot receiver, dense."""
    kind = draw(st.sampled_from(["any", "flow", "receiver", "sender", "local", "empty"]))
    sizes = np.zeros((8, 16), int)
    row = st.lists(st.integers(0, 6), min_size=16, max_size=16)
    if kind == "any":
        sizes[:] = [draw(row) for _ in range(8)]
    elif kind == "flow":
        sizes[draw(st.integers(0, 7)), draw(st.integers(0, 15))] = draw(st.integers(1, ROWS))
    elif kind == "receiver":
        peer = draw(st.integers(0, 7))
        sizes[:, 2 * peer : 2 * peer + 2] = draw(st.integers(1, 6))
    elif kind == "sender":
        sizes[draw(st.integers(0, 7))] = draw(row)
    elif kind == "local":
        for i in range(8):
            sizes[i, 2 * (i ^ 1)] = draw(st.integers(0, 6))
    return sizes


@settings(max_examples=60)
@given(
    sizes=traffic(),
    topology=st.sampled_from(TOPOLOGIES),
    scheduler=st.sampled_from(SCHEDULERS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_traffic(sizes, topology, scheduler, seed):
    rng = np.random.default_rng(seed)
    meta = reference.packed(sizes)
    operand, output = rng.normal(size=(2, 8, ROWS, 2)).astype(np.float32)
    got = program(topology, scheduler)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize(
    "dtype",
    [
        *("int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"),
        *("float16", "bfloat16", "float32", "complex64"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3", "float8_e3m4"),
        *("int4", "uint4", "int2", "uint2", "float4_e2m1fn"),
    ],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_every_data_type(rng, dtype, servers):
    dtype = jnp.dtype(getattr(ml_dtypes, dtype, dtype))
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    operand, output = (np.asarray(jnp.asarray(x).astype(dtype)) for x in (operand, output))
    run = exchange_with(fastjax.Topology(servers, 8 // servers))
    got = run(operand, output, *meta.arrays())
    assert got.dtype == dtype
    expected = reference.exchange(operand, output, meta)
    np.testing.assert_array_equal(np.asarray(got).astype("c16"), expected.astype("c16"))


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64", "uint64"])
def test_wide_data_types(rng, dtype):
    with jax.enable_x64(True):
        meta = reference.packed(reference.random_sizes(rng, 8, 8))
        operand, output = (x.astype(dtype) for x in reference.data(rng, meta))
        got = exchange_with()(operand, output, *meta.arrays(np.int64))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32"])
def test_every_metadata_type(rng, dtype):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 3))
    operand, output = reference.data(rng, meta)
    got = exchange_with(fastjax.Topology(2, 4))(operand, output, *meta.arrays(dtype))
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_metadata_of_mixed_types(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 3))
    operand, output = reference.data(rng, meta)
    mixed = [
        a.astype(t) for a, t in zip(meta.arrays(), ("int8", "uint16", "int32", "u1"), strict=True)
    ]
    got = exchange_with()(operand, output, *mixed)
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("trailing", [(), (1,), (2, 3, 4), (0,), (5, 0), (257,)])
@pytest.mark.parametrize("servers", [1, 4])
def test_every_trailing_shape(rng, trailing, servers):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta, trailing)
    got = exchange_with(fastjax.Topology(servers, 8 // servers))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_operand_without_rows(rng):
    meta = reference.packed(np.zeros((8, 8), int))
    operand, output = np.zeros((8, 0, 3), np.float32), rng.normal(size=(8, 4, 3)).astype("f4")
    np.testing.assert_array_equal(exchange_with()(operand, output, *meta.arrays()), output)


def test_overlapping_input_slices(rng):
    """One slice sent to every peer, as MaxText's combine of a replicated batch does."""
    sizes = np.full((8, 8), 4)
    meta = reference.packed(sizes)
    meta.input_offsets[:] = 0
    operand, output = reference.data(rng, meta)
    for topology in TOPOLOGIES:
        got = exchange_with(topology)(operand, output, *meta.arrays())
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_offsets_of_empty_slices_do_not_matter(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    expected = reference.exchange(operand, output, meta)
    meta.input_offsets[meta.send_sizes == 0] = 10**9
    meta.output_offsets[meta.send_sizes == 0] = -7
    got = exchange_with(fastjax.Topology(2, 4))(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("jit", [True, False])
def test_axis_types_vma_and_jit(rng, axis_types, check_vma, jit):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    mesh = mesh_of(explicit=axis_types == "explicit")
    run = exchange_with(mesh=mesh, check_vma=check_vma, jit=jit)
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
def test_every_number_of_devices(rng, devices):
    meta = reference.packed(reference.random_sizes(rng, devices, 2 * devices))
    operand, output = reference.data(rng, meta)
    run = exchange_with(fastjax.Topology(devices, 1), mesh=mesh_of((devices,)))
    got = run(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_devices_in_any_order(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8))
    operand, output = reference.data(rng, meta)
    mesh = mesh_of(order=[5, 2, 7, 0, 3, 6, 1, 4])
    topology = fastjax.Topology(2, 4, placement=(5, 2, 7, 0, 3, 6, 1, 4))
    for scheduler in SCHEDULERS:
        got = exchange_with(topology, scheduler, mesh=mesh)(operand, output, *meta.arrays())
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.sanitize
def test_large_exchange_runs_on_the_copy_pool(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 300, zeros=0.1))
    operand, output = reference.data(rng, meta, (517,))
    for topology in TOPOLOGIES:
        got = exchange_with(topology, "fast")(operand, output, *meta.arrays())
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
