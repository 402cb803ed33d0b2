"""Exchanges of one program that do not depend on each other are in flight at once."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import pytest
import reference
from exchange_checks.backends import same, spread
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

import fastjax


def told_by(run, position, waits_for=()):
    """Runs on the host: says that a device has come here in this run, once others have come."""
    folder = multiprocess.folder()
    while not all((folder / f"{run}: ended {other}").exists() for other in waits_for):
        time.sleep(0.001)
    (folder / f"{run}: ended {position}").touch()


def through_host(function, x, *names):
    """What was given, once the function has returned on the host, which gets the device's place."""
    position = jax.lax.axis_index(names)

    def call(position, x):
        function(int(position))
        return x

    return jax.pure_callback(call, x, position, x)


def work(x):
    """What XLA runs beside them: it takes a program of few operations one after the other."""
    for _ in range(12):
        x = jnp.sin(x @ x)
    return x


def overlapping():
    """Runs in a job."""
    for first in ("wide", "narrow"):
        overtaken(first)
    return {}


def overtaken(first):
    """An exchange over all devices, and one over the last axis, between two.

    The last device begins the former when the latter has ended between the first two. So there
    the latter overtakes the former, which was begun before it or after it.
    """
    mesh = mesh_of((2, 2), ("p", "q"))
    rng = np.random.default_rng(0)
    wide = reference.packed(reference.random_sizes(rng, 4, 4))
    narrow = reference.packed(reference.random_sizes(rng, 2, 2))
    wide_data = reference.data(rng, wide, (256,))
    narrow_data = reference.data(rng, narrow, (256,))
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), (*narrow_data, *narrow.arrays()))

    def gate(position):
        if position == 3:
            told_by(first, position, waits_for=(0, 1))

    def local(matrix, wide, narrow):
        matrix, wide, narrow = jax.tree.map(lambda x: x[0], (matrix, wide, narrow))
        results = {"work": work(matrix)}

        def over_all():
            operand = through_host(gate, wide[0], "p", "q")
            results["wide"] = fastjax.fast_ragged_all_to_all(
                operand, *wide[1:], axis_name=("p", "q"), topology=fastjax.Topology(2, 2)
            )

        def over_two():
            result = fastjax.fast_ragged_all_to_all(*narrow, axis_name="q")
            results["narrow"] = through_host(partial(told_by, first), result, "p", "q")

        for exchange in (over_all, over_two) if first == "wide" else (over_two, over_all):
            exchange()
        return jax.tree.map(lambda x: x[None], results)

    spec = P(("p", "q"))
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    args = (np.zeros((4, 64, 64), np.float32), (*wide_data, *wide.arrays()), twice)
    results = run(*spread(mesh, args))
    same(results["wide"], reference.exchange(*wide_data, wide))
    each = reference.exchange(*narrow_data, narrow)
    same(results["narrow"], np.concatenate([each, each]))


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)], ids=["memory", "network"])
def test_one_overtakes_another(processes, devices):
    multiprocess.run(
        __file__,
        "overlapping",
        processes=processes,
        devices=devices,
        environment={"FASTJAX_TIMEOUT": "200"},
    )
