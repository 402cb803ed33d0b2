"""All ranks of an exchange on one device, over the emulated GPU, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import fastjax
from fastjax import loopback

SCHEDULERS = ("auto", "fast", "spreadout", "rails", "direct")


def play(operand, output, meta, **options):
    return loopback.loopback_ragged_all_to_all(operand, output, *meta.arrays(), **options)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (4, 2), (5, 1)])
@pytest.mark.parametrize("updates", [1, 3])
def test_every_scheduler(rng, scheduler, shape, updates):
    ranks = shape[0] * shape[1]
    meta = reference.packed(reference.random_sizes(rng, ranks, ranks * updates))
    operand, output = reference.data(rng, meta)
    got = play(operand, output, meta, topology=fastjax.Topology(*shape), scheduler=scheduler)
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


@pytest.mark.parametrize(
    "dtype", ["bool", "int4", "int8", "bfloat16", "float16", "float64", "complex64"]
)
def test_types_and_rows_of_any_size(rng, dtype):
    meta = reference.packed(reference.random_sizes(rng, 6, 6))
    with jax.enable_x64(True):
        operand, output = reference.data(rng, meta, trailing=(3, 5))
        operand, output = (np.asarray(jnp.asarray(a).astype(dtype)) for a in (operand, output))
        got = play(operand, output, meta, topology=fastjax.Topology(3, 2))
        np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))


def test_inside_a_loop(rng):
    meta = reference.packed(reference.random_sizes(rng, 4, 4))
    operand, output = reference.data(rng, meta)
    topology = fastjax.Topology(2, 2)

    @jax.jit
    def rounds(operand, output):
        def body(base, factor):
            return play(operand * factor, base, meta, topology=topology), None

        return jax.lax.scan(body, output, jnp.arange(1.0, 4.0))[0]

    expected = output
    for factor in (1.0, 2.0, 3.0):
        expected = reference.exchange(operand * np.float32(factor), expected, meta)
    np.testing.assert_array_equal(rounds(operand, output), expected)


def test_devices_beside_each_other(rng):
    """Each device plays an exchange of its own, with as many ranks as make them overlap."""
    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("d",))
    meta = reference.packed(reference.random_sizes(rng, 64, 64))
    operand, output = reference.data(rng, meta)
    factors = [np.float32(device + 1) for device in range(devices)]
    spread = jax.jit(
        jax.shard_map(
            lambda *arrays: loopback.loopback_ragged_all_to_all(
                *arrays, topology=fastjax.Topology(16, 4), scheduler="direct"
            ),
            mesh=mesh,
            in_specs=jax.P("d"),
            out_specs=jax.P("d"),
            check_vma=False,
        )
    )
    rows = [np.concatenate([rows * factor for factor in factors]) for rows in (operand, output)]
    arrays = [*rows, *(np.concatenate([array] * devices) for array in meta.arrays())]
    arrays = jax.device_put(arrays, jax.NamedSharding(mesh, jax.P("d")))
    expected = np.concatenate([reference.exchange(operand * f, output * f, meta) for f in factors])
    for _ in range(40):
        np.testing.assert_array_equal(spread(*arrays), expected)


@pytest.mark.parametrize("rank", [0, 5])
def test_a_plan_is_that_of_the_host(rng, rank):
    topology = fastjax.Topology(2, 3)
    sizes = reference.random_sizes(rng, 6, 6)
    table = np.asarray(
        loopback.loopback_plan(sizes, topology=topology, scheduler="fast", rank=rank)
    )
    plan = fastjax.make_plan(sizes, topology, scheduler="fast", row_bytes=4096)
    wanted = np.asarray(plan._made.core.table(rank))
    used = 16 + 2 * 6 + 10 * table[3]
    np.testing.assert_array_equal(table[:used], wanted[:used])


def test_mistakes_in_values(rng):
    meta = reference.packed(reference.random_sizes(rng, 4, 4))
    operand, output = reference.data(rng, meta)
    meta.recv_sizes[2, 1] += 1
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"which expects \d+ \(recv_sizes\[1\]\)"):
        jax.block_until_ready(play(operand, output, meta, topology=fastjax.Topology(2, 2)))
    sizes = np.ones((4, 4), np.int32)
    sizes[1, 3] = -1
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"send_sizes\[3\] = -1"):
        jax.block_until_ready(loopback.loopback_plan(sizes, topology=fastjax.Topology(2, 2)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"operand": np.zeros((3, 5))}, r"operand must have shape \(ranks, rows"),
        ({"output": np.zeros((4, 5), np.int8)}, "must agree in their type"),
        ({"send_sizes": np.zeros((4, 8), np.int32)}, "must have one shape"),
        ({"send_sizes": np.zeros((4, 4))}, "must be integer type"),
        ({"scheduler": "optimal"}, "plans on the host only"),
    ],
)
def test_mistakes_in_shapes(change, text):
    sizes = np.zeros((4, 4), np.int32)
    args = {
        "operand": np.zeros((4, 5), np.float32),
        "output": np.zeros((4, 5), np.float32),
        "input_offsets": sizes,
        "send_sizes": sizes,
        "output_offsets": sizes,
        "recv_sizes": sizes,
        "topology": fastjax.Topology(2, 2),
    } | change
    with pytest.raises(fastjax.errors.ArgumentError, match=text):
        loopback.loopback_ragged_all_to_all(**args)


def test_no_such_rank():
    with pytest.raises(fastjax.errors.ArgumentError, match="rank must be 0 to 3, got 4"):
        loopback.loopback_plan(np.ones((4, 4), np.int32), topology=fastjax.Topology(2, 2), rank=4)
