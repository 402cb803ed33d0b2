"""Run by test_gpu.py, apart since XLA reads its flags once: `python gpu_programs.py PLATFORM`.

Exchanges in a scan, beside collectives of XLA's and work that XLA may put into command buffers.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import reference
from gpu_support import device_of, mesh_of_one
from spmd import spmd

import fastjax
from fastjax.loopback import loopback_ragged_all_to_all

STEPS = 4


def one_rank(device: jax.Device, rng: np.random.Generator) -> None:
    meta = reference.packed(reference.random_sizes(rng, 1, 6, 9))
    operand, output = reference.data(rng, meta)

    def local(operand: jax.Array, output: jax.Array, *arrays: jax.Array) -> jax.Array:
        def step(carried: jax.Array, _: None) -> tuple[jax.Array, None]:
            total = jax.lax.psum(carried.sum(), "x") * 0
            rows = jax.lax.all_gather(operand, "x")[0] + jnp.tanh(total)
            result = fastjax.fast_ragged_all_to_all(rows, carried, *arrays, axis_name="x")
            return jnp.sin(result) + total, None

        return jax.lax.scan(step, output, None, STEPS)[0]

    got = spmd(local, mesh_of_one(device))(operand, output, *meta.arrays())
    expected = output
    for _ in range(STEPS):
        expected = np.sin(reference.exchange(operand, expected, meta))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def many_ranks(device: jax.Device, rng: np.random.Generator) -> None:
    topology = fastjax.Topology(2, 4)
    meta = reference.packed(reference.random_sizes(rng, 8, 16))
    operand, output = reference.data(rng, meta)

    @jax.jit
    def steps(operand: jax.Array, output: jax.Array) -> jax.Array:
        def step(carried: jax.Array, factor: jax.Array) -> tuple[jax.Array, None]:
            result = loopback_ragged_all_to_all(
                operand * factor, carried, *meta.arrays(), topology=topology, scheduler="fast"
            )
            return result * 2, None

        return jax.lax.scan(step, output, 2.0 ** jnp.arange(STEPS))[0]

    got = steps(*jax.device_put((operand, output), device))
    expected = output
    for factor in 2.0 ** np.arange(STEPS, dtype=np.float32):
        expected = 2 * reference.exchange(operand * factor, expected, meta)
    np.testing.assert_array_equal(got, expected)


if __name__ == "__main__":
    with jax.default_device(device_of(sys.argv[1])):
        one_rank(device_of(sys.argv[1]), np.random.default_rng(1))
        many_ranks(device_of(sys.argv[1]), np.random.default_rng(2))
    sys.stdout.write("as numpy does\n")
