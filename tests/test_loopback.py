"""What loopback has to itself; what it exchanges, test_exchange_checks.py looks at."""

from functools import partial

import jax
import numpy as np
import pytest
import reference
from refusals import refusals

import fastjax
from fastjax import loopback


def test_devices_beside_each_other(rng):
    """Each device executes an exchange of its own, with as many ranks as make them overlap."""
    devices = len(jax.devices())
    mesh = jax.make_mesh((devices,), ("d",))
    meta = reference.packed(reference.random_sizes(rng, 64, 64))
    operand, output = reference.data(rng, meta)
    factors = [np.float32(device + 1) for device in range(devices)]
    options = {"topology": fastjax.Topology(16, 4), "scheduler": "direct"}
    local = partial(loopback.loopback_ragged_all_to_all, **options)
    specs = {"in_specs": jax.P("d"), "out_specs": jax.P("d"), "check_vma": False}
    spread = jax.jit(jax.shard_map(local, mesh=mesh, **specs))
    rows = [np.concatenate([rows * factor for factor in factors]) for rows in (operand, output)]
    arrays = [*rows, *(np.concatenate([array] * devices) for array in meta.arrays())]
    arrays = jax.device_put(arrays, jax.NamedSharding(mesh, jax.P("d")))
    expected = np.concatenate([reference.exchange(operand * f, output * f, meta) for f in factors])
    for _ in range(40):
        np.testing.assert_array_equal(spread(*arrays), expected)


def test_a_negative_size_in_planning():
    sizes = np.ones((4, 4), np.int32)
    sizes[1, 3] = -1
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"send_sizes\[3\] = -1"):
        jax.block_until_ready(loopback.loopback_plan(sizes, topology=fastjax.Topology(2, 2)))


FIELDS = "input_offsets", "send_sizes", "output_offsets", "recv_sizes"
GOOD = dict.fromkeys(("operand", "output"), np.zeros((4, 5), np.float32))
GOOD |= dict.fromkeys(FIELDS, np.zeros((4, 4), np.int32))


def exchanged(**changed):
    options = {"topology": fastjax.Topology(2, 2)}
    return partial(loopback.loopback_ragged_all_to_all, **GOOD | options | changed)


test_refused = refusals(
    fastjax.errors.ArgumentError,
    (exchanged(operand=np.zeros((3, 5))), "operand must have shape (ranks, rows"),
    (exchanged(output=np.zeros((4, 5), np.int8)), "must agree in their type"),
    (exchanged(send_sizes=np.zeros((4, 8), np.int32)), "must have one shape"),
    (exchanged(send_sizes=np.zeros((4, 4))), "must be integer type"),
    (exchanged(scheduler="optimal"), "plans on the host only"),
    (
        lambda: loopback.loopback_plan(
            np.ones((4, 4), np.int32), topology=fastjax.Topology(2, 2), rank=4
        ),
        "rank must be 0 to 3, got 4",
    ),
)
