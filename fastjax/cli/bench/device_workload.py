"""A benchmark's devices, the arrays that it exchanges there, and the programs that do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.cli.shared import workloads
from fastjax.errors import OptionError

AXIS = "x"
DTYPE = np.dtype("float32")
"""Of the rows' elements."""

Exchange = Callable[..., jax.Array]


def start_backend(devices: int) -> None:
    """Starts JAX with that many CPU devices.

    Raises:
      OptionError: it has been started otherwise before.
    """
    with contextlib.suppress(RuntimeError):  # it has started; whether it fits shows below
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_platforms", "cpu")
    found = jax.devices()
    if len(found) < devices or found[0].platform != "cpu":
        raise OptionError(
            f"this needs {devices} CPU devices, but JAX has started with {len(found)} of "
            f"{found[0].platform}. Run it in a process of its own."
        )


def make_mesh(devices: int) -> jax.sharding.Mesh:
    """A mesh of one axis over the first devices."""
    return jax.make_mesh(
        (devices,),
        (AXIS,),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=jax.devices()[:devices],
    )


class DeviceWorkload:
    """One workload: operand, offsets and sizes, the right result, and one output that all share.

    The output is donated to every exchange and comes back as its result, so that what is timed is
    the exchange and no copy of the output.

    Args:
      mesh: from `make_mesh`.
      traffic: rows device i sends to device j.
      row_bytes: bytes of a row.
      seed: of the rows' values.
    """

    def __init__(self, mesh: jax.sharding.Mesh, traffic: np.ndarray, row_bytes: int, seed: int):
        self.mesh = mesh
        devices = traffic.shape[0]
        self.rows = max(1, int(traffic.sum(axis=1).max()))
        self.output_rows = max(1, int(traffic.sum(axis=0).max()))
        self._sharding = jax.sharding.NamedSharding(mesh, jax.P(AXIS))
        width = row_bytes // DTYPE.itemsize
        rng = np.random.default_rng(seed)
        # Above 0, which marks rows that nobody sends to.
        values = rng.integers(1, 100, (devices, self.rows, width), np.uint8).astype(DTYPE)
        meta = workloads.metadata(traffic)
        untouched = np.zeros((devices, self.output_rows, width), DTYPE)
        self._want = workloads.reference(values, untouched, meta)
        self._operand = self._put(values)
        self._meta = [self._put(m) for m in meta]
        self._output = self._put(untouched)
        self._reset = jax.jit(jnp.zeros_like, donate_argnums=0, out_shardings=self._sharding)

    def _put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array.reshape(-1, *array.shape[2:]), self._sharding)

    def program(self, exchange: Exchange, **shard_map_options: Any) -> Exchange:
        """Compiles an exchange, written for one device, for all; its output is donated."""
        mapped = jax.shard_map(
            exchange,
            mesh=self.mesh,
            in_specs=jax.P(AXIS),
            out_specs=jax.P(AXIS),
            **shard_map_options,
        )
        return jax.jit(mapped, donate_argnums=1, keep_unused=True)

    @property
    def send_sizes(self) -> jax.Array:
        """Rows that each device sends to each, one device's after the other's."""
        return self._meta[1]

    def run(self, program: Exchange, *more: object) -> None:
        """Runs a program on the arrays, and waits for it."""
        self._output = program(self._operand, self._output, *self._meta, *more)
        self._output.block_until_ready()

    def count_wrong(self, program: Exchange) -> int:
        """Rows that a program gets wrong when it starts from an output of zeros."""
        self._output = self._reset(self._output)
        self.run(program)
        # Views are dropped again at once: memory that numpy still sees is not reused.
        return sum(self._wrong_in(shard) for shard in self._output.addressable_shards)

    def _wrong_in(self, shard: jax.Shard) -> int:
        device = (shard.index[0].start or 0) // self.output_rows
        return workloads.wrong_rows(np.asarray(shard.data), self._want[device])
