"""Rates of a mesh axis, measured by exchanges between its devices: `Topology.measure`.

In every exchange each device sends rows to one other, of its server or at its place in the next,
and all devices send at once. A program repeats one exchange; sizes and repetitions are its data, so
that it is compiled once. An exchange of n bytes takes

    launch + latency + n / bandwidth

An exchange without rows takes the launch. The bandwidth is the slope between two large sizes, so
that it has no part in what comes once for each exchange, whatever the protocol.

All processes decide by the same numbers: the median over all devices of the times of their
processes, which are exchanged as well.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import scheduling
from fastjax.devices import AxisName, axis_names
from fastjax.errors import TopologyError
from fastjax.topology import Topology, measure_with
from fastjax.traced.exchange import fast_ragged_all_to_all

_ROW_WORDS = 1024
_ROW_BYTES = 4 * _ROW_WORDS
_FIRST_ROWS = 16
_MOST_ROWS = 4096  # 16 MiB a device
_LONG_ENOUGH = 0.1  # seconds of an exchange: TCP in both directions needs as long to fill a NIC
_SECONDS = 0.08  # of a timed run, as far as that takes one exchange or more
_RUNS = 5
_MOST_REPETITIONS = 500

_UP, _OUT = 0, 1


def _receivers(topology: Topology) -> np.ndarray:
    """The position that each sends to: in its server, and in the next one; (2, devices)."""
    rank_of = np.array(topology.placement or range(topology.num_devices))
    server, local = np.divmod(rank_of, topology.devices_per_server)
    up = server * topology.devices_per_server + (local + 1) % topology.devices_per_server
    out = (rank_of + topology.devices_per_server) % topology.num_devices
    return np.argsort(rank_of)[np.stack([up, out])]


class _Exchanges:
    """Exchanges of an axis that run, and are timed. All processes agree on the times.

    Args:
      mesh: all its devices take part, each line of the axis by itself.
      names: the axis.
      topology: that of the axis; its rates do not matter.
    """

    def __init__(
        self, mesh: jax.sharding.Mesh, names: tuple[Hashable, ...], topology: Topology
    ) -> None:
        everywhere = jax.P(mesh.axis_names)
        self._sharding = jax.NamedSharding(mesh, everywhere)
        self._devices = mesh.devices.size
        exchange = functools.partial(fast_ragged_all_to_all, scheduler=scheduling.FALLBACK)
        receivers = _receivers(topology)
        senders = np.argsort(receivers, axis=1)

        def repeat(
            operand: jax.Array, output: jax.Array, fabric: Any, rows: Any, repetitions: Any
        ) -> jax.Array:
            me = jax.lax.axis_index(names)
            nothing = jnp.zeros(topology.num_devices, jnp.int32)

            def once(_: int, output: jax.Array) -> jax.Array:
                sent, received = (
                    nothing.at[jnp.asarray(peers)[fabric, me]].set(rows)
                    for peers in (receivers, senders)
                )
                metadata = nothing, sent, nothing, received
                return exchange(operand, output, *metadata, axis_name=names, topology=topology)

            return jax.lax.fori_loop(0, repetitions, once, output)

        whole = Topology.from_mesh(mesh, mesh.axis_names)

        def gather(row: jax.Array) -> jax.Array:
            mine = jax.lax.axis_index(mesh.axis_names)
            nothing = jnp.zeros(self._devices, jnp.int32)
            output, metadata = nothing.astype(row.dtype), (nothing + 1, nothing + mine, nothing + 1)
            where = {"axis_name": mesh.axis_names, "topology": whole}
            return exchange(row, output, nothing, *metadata, **where)

        def program(function: Callable[..., Any], *specs: Any, **options: Any) -> Any:
            mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=everywhere)
            return jax.jit(mapped, **options)

        arrays = (everywhere, everywhere)
        self._repeat = program(repeat, *arrays, *(jax.P(),) * 3, donate_argnums=1)
        self._gather = program(gather, everywhere)
        shape = (self._devices * _MOST_ROWS, _ROW_WORDS)
        zeros = jax.jit(lambda: jnp.zeros(shape, jnp.float32), out_shardings=self._sharding)
        self._operand, self._output = zeros(), zeros()
        self.estimate(_UP, 0)  # compiles, and opens the connections

    def _run(self, fabric: int, rows: int, repetitions: int) -> float:
        """Seconds of one exchange, by the clock of this process."""
        start = time.perf_counter()
        numbers = map(np.int32, (fabric, rows, repetitions))
        self._output = self._repeat(self._operand, self._output, *numbers)
        self._output.block_until_ready()
        return (time.perf_counter() - start) / repetitions

    def _agreed(self, seconds: float) -> float:
        """The median of all devices' numbers, the same in all processes."""
        row = jax.make_array_from_callback(
            (self._devices,), self._sharding, lambda _: np.array([seconds], np.float32)
        )
        return statistics.median(np.asarray(self._gather(row).addressable_data(0)).tolist())

    def estimate(self, fabric: int, rows: int) -> float:
        """Seconds of one exchange, launched by itself."""
        return self._agreed(self._run(fabric, rows, 1))

    def seconds(self, fabric: int, rows: int) -> float:
        """Seconds of one exchange of many in a row."""
        estimated = max(self.estimate(fabric, rows), 1e-9)
        repetitions = min(max(round(_SECONDS / estimated), 1), _MOST_REPETITIONS)
        runs = sorted(self._run(fabric, rows, repetitions) for _ in range(_RUNS))
        return self._agreed(runs[_RUNS // 4])  # what disturbs a machine makes a run only longer


def _bandwidth_and_latency(exchanges: _Exchanges, fabric: int) -> tuple[float, float | None]:
    """Bytes/s and seconds; None for a latency that does not rise above the noise."""
    rows = _FIRST_ROWS
    while rows < _MOST_ROWS and exchanges.estimate(fabric, rows) < _LONG_ENOUGH:
        rows *= 4
    idle, small, part, whole = (exchanges.seconds(fabric, r) for r in (0, 1, rows // 4, rows))
    grows = whole > part
    sent, took = (rows - rows // 4, whole - part) if grows else (rows, whole)
    bandwidth = sent * _ROW_BYTES / took
    latency = small - idle - _ROW_BYTES / bandwidth
    return _rounded(bandwidth), _rounded(latency) if latency > 0 else None


def _rounded(value: float) -> float:
    """Three digits, which is more than is known."""
    return float(f"{value:.3g}")


def _check(mesh: Any, names: tuple[Hashable, ...], topology: Topology) -> None:
    if topology.num_devices == 1 < mesh.devices.size:
        raise TopologyError(
            f"axis {', '.join(map(repr, names))} has one device of the mesh's {mesh.devices.size}: "
            "there is nothing to measure between. Name the axes that exchanges are over."
        )
    process = jax.process_index()
    if all(device.process_index != process for device in mesh.devices.flat):
        raise TopologyError(
            f"process {process} has no device in the mesh; call Topology.measure in the processes "
            "that have, and send them all its result."
        )


def measure(mesh: Any, axis_name: AxisName) -> Topology:
    """The topology of a mesh axis, as `Topology.measure` has it."""
    topology = Topology.from_mesh(mesh, axis_name)
    names = axis_names(axis_name)
    _check(mesh, names, topology)
    if topology.num_devices == 1:
        return topology
    exchanges = _Exchanges(mesh, names, topology)
    rates: dict[str, Any] = {}
    for fabric, name, there in (
        (_UP, "scale_up", topology.devices_per_server > 1),
        (_OUT, "scale_out", topology.servers > 1),
    ):
        if there:
            bandwidth, latency = _bandwidth_and_latency(exchanges, fabric)
            rates[f"{name}_bandwidth"] = bandwidth
            if latency is not None:
                rates[f"{name}_latency"] = latency
    return dataclasses.replace(topology, **rates)


def register() -> None:
    """Has `Topology.measure` measure."""
    measure_with(measure)
