"""The process of one server: runs every scheme, checks it, and takes its times.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fastjax
from emulated_cluster import work
from emulated_cluster.fabric import Fabric
from fastjax.cli.bench.baselines import all_gather, dense
from fastjax.cli.shared.workloads import metadata
from fastjax.errors import UnsupportedError
from fastjax.traced.after import after

AXIS = "x"
Exchange = Callable[..., Any]


def mesh_of_all() -> jax.sharding.Mesh:
    """All devices of the job, along one axis."""
    types = (jax.sharding.AxisType.Auto,)
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,), axis_types=types)


def sharding(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
    """An equal part of the first axis on each device."""
    return jax.sharding.NamedSharding(mesh, jax.P(AXIS))


def placed(array: np.ndarray, mesh: jax.sharding.Mesh) -> jax.Array:
    """An array that all processes have, of which each places what is for its devices."""
    return jax.make_array_from_callback(array.shape, sharding(mesh), lambda index: array[index])


class Arrays:
    """One workload's operands, of which each process holds the rows of its own devices."""

    def __init__(self, mesh: jax.sharding.Mesh, traffic: np.ndarray, row_bytes: int):
        self.mesh, self.traffic, self.width = mesh, traffic, row_bytes // 4
        self.rows = max(1, int(traffic.sum(axis=1).max()))
        self.output_rows = max(1, int(traffic.sum(axis=0).max()))
        self._operand = jax.make_array_from_callback(
            (len(traffic) * self.rows, self.width),
            sharding(mesh),
            lambda index: work.rows_of(_first(index) // self.rows, 0, self.rows, self.width),
        )
        self._meta = [placed(array.reshape(-1), mesh) for array in metadata(traffic)]
        shape = (len(traffic) * self.output_rows, self.width)
        zeros = functools.partial(jax.numpy.zeros, shape, np.uint32)
        self._zeros = jax.jit(zeros, out_shardings=sharding(mesh))
        self._output = self._zeros()

    def compile(self, exchange: Exchange) -> Callable[..., Any]:
        """The program that runs an exchange on all devices; its output is donated."""
        mapped = jax.shard_map(
            exchange, mesh=self.mesh, in_specs=jax.P(AXIS), out_specs=jax.P(AXIS)
        )
        program = jax.jit(mapped, donate_argnums=1, keep_unused=True)
        return program.lower(self._operand, self._output, *self._meta).compile()

    def run(self, program: Callable[..., Any]) -> None:
        """Runs a program and waits for this process's devices."""
        self._output = program(self._operand, self._output, *self._meta)
        self._output.block_until_ready()

    def wrong(self, program: Callable[..., Any]) -> int:
        """Rows of this process that a program gets wrong, from an output of zeros."""
        self._output.delete()
        self._output = self._zeros()
        self.run(program)
        return sum(self._wrong_in(shard) for shard in self._output.addressable_shards)

    def _wrong_in(self, shard: Any) -> int:
        device = _first(shard.index) // self.output_rows
        want = work.expected(self.traffic, device, self.output_rows, self.width)
        return int((np.asarray(shard.data) != want).any(axis=1).sum())


def _first(index: Any) -> int:
    """The first row of a slice of an array."""
    return index[0].start or 0


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One way to exchange.

    Attributes:
      exchange: the exchange as one device calls it.
      trunk: how many NICs' rate the trunk has meanwhile.
      baseline: whether it is one that there is without fastjax.
    """

    exchange: Exchange
    trunk: int
    baseline: bool = True


def schemes(
    fabric: Fabric,
    topology: fastjax.Topology,
    traffic: np.ndarray,
    schedulers: Sequence[str],
    *,
    with_baselines: bool,
) -> dict[str, Scheme]:
    """What is compared, by name."""
    result = {
        name: Scheme(exchange_by(name, topology), fabric.rails, baseline=False)
        for name in schedulers
    }
    if with_baselines:
        padded = dense(AXIS, int(traffic.max()))
        result |= {
            "dense padded": Scheme(padded, fabric.rails),
            "all_gather": Scheme(all_gather(AXIS), fabric.rails),
            "dense padded, 1 NIC": Scheme(padded, 1),
        }
    return result


def exchange_by(scheduler: str, topology: fastjax.Topology) -> Exchange:
    """The exchange as one device calls it."""

    def exchange(*operands: Any) -> Any:
        return fastjax.fast_ragged_all_to_all(
            *operands, axis_name=AXIS, topology=topology, scheduler=scheduler
        )

    return exchange


def machine_ticks() -> tuple[int, int]:
    """Ticks of the machine's cores so far: in all, and those of work, softirqs included.

    Work at low priority is left out, since it gives way.
    """
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    user, nice, system, idle, waiting, hard, soft, stolen = map(int, fields)
    busy = user + system + hard + soft + stolen
    return busy + nice + idle + waiting, busy


def on_all_devices(layer: Callable[..., Any], mesh: jax.sharding.Mesh, *, backward: bool) -> Any:
    """A layer of tokens, their experts and weights, and more, on all devices; not yet lowered.

    With `backward` it returns gradients of all but the experts' numbers, too.
    """

    def with_gradients(x: jax.Array, ids: jax.Array, *floats: jax.Array) -> Any:
        result, back = jax.vjp(lambda x, *floats: layer(x, ids, *floats), x, *floats)
        # There is no cotangent before there is a result, as with a loss.
        return result, *back(after(jax.numpy.ones_like(result), result))

    function = with_gradients if backward else layer
    mapped = jax.shard_map(function, mesh=mesh, in_specs=jax.P(AXIS), out_specs=jax.P(AXIS))
    return jax.jit(mapped)


class Barrier:
    """All processes meet; over the trunk, by a sum of one number a device."""

    def __init__(self, mesh: jax.sharding.Mesh):
        self._one = placed(np.ones(mesh.size, np.int32), mesh)
        self._sum = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.psum(x, AXIS), mesh=mesh, in_specs=jax.P(AXIS), out_specs=jax.P()
            )
        )

    def __call__(self) -> None:
        self._sum(self._one).block_until_ready()


def sent(fabric: Fabric) -> np.ndarray:
    """Bytes of frames that each of this server's NICs, and then its trunk, has sent so far."""
    names = [fabric.nic(cable) for cable in fabric.cables]
    return np.array(
        [int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text()) for name in names]
    )


def timed(fabric: Fabric, barrier: Barrier, run: Callable[[], Any]) -> dict[str, Any]:
    """One run, from the moment the processes have met: clock, ticks, and what was sent.

    The clock is the machine's: the same in all processes.
    """
    before = sent(fabric)
    barrier()
    ticks, cpu, start = machine_ticks(), time.process_time(), time.monotonic()
    jax.block_until_ready(run())
    end, used, after = time.monotonic(), time.process_time() - cpu, machine_ticks()
    barrier()  # what was sent has arrived
    moved = (sent(fabric) - before).tolist()
    return {"start": start, "end": end, "cpu": used, "ticks": [ticks, after], "sent": moved}


def serve(
    fabric: dict[str, Any],
    topology: dict[str, Any],
    traffic: dict[str, list[list[int]]],
    row_bytes: int,
    schedulers: list[str],
    baselines: bool,
    rounds: int,
    baseline_rounds: int,
    seed: int,
) -> dict[str, Any]:
    """What this process saw, by workload and scheme: wrong rows and runs; or why there are none.

    Args:
      fabric: keyword arguments of Fabric; there is a process for each server.
      topology: keyword arguments of fastjax.Topology.
      traffic: matrices of rows by workload.
      row_bytes: of a row, a multiple of 4.
      schedulers: of ours.
      baselines: whether to run what there is without fastjax.
      rounds: times that each scheme runs, in turn with the others.
      baseline_rounds: the same for baselines: in the first so many of the rounds.
      seed: of the order within rounds.
    """
    network, told = Fabric(**fabric), fastjax.Topology(**topology)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    found: dict[str, Any] = {}
    for workload, matrix in traffic.items():
        arrays = Arrays(mesh, np.array(matrix, np.int64), row_bytes)
        compared = schemes(network, told, arrays.traffic, schedulers, with_baselines=baselines)
        results: dict[str, dict[str, Any]] = {}
        programs: dict[str, Callable[..., Any]] = {}
        for name, scheme in compared.items():
            try:
                programs[name] = arrays.compile(scheme.exchange)
            except UnsupportedError as error:
                results[name] = {"skipped": str(error)}
                continue
            barrier()
            results[name] = {"wrong": arrays.wrong(programs[name]), "runs": []}
        rng = np.random.default_rng(seed)
        for number in range(rounds):
            for name in rng.permutation(list(programs)).tolist():
                if compared[name].baseline and number >= baseline_rounds:
                    continue
                network.widen_trunk(jax.process_index(), compared[name].trunk)
                run = functools.partial(arrays.run, programs[name])
                results[name]["runs"].append(timed(network, barrier, run))
        found[workload] = results
    return found
