"""The process of one server: runs every scheme, checks it, and takes its times.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fastjax
from emulated_cluster import work
from emulated_cluster.fabric import Fabric
from fastjax.cli.bench import baselines
from fastjax.cli.shared.workloads import metadata
from fastjax.errors import UnsupportedError

AXIS = "x"
Exchange = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Task:
    """What all processes do; the same for each.

    Attributes:
      fabric: keyword arguments of Fabric; there is a process for each server.
      traffic: matrices of rows by workload.
      row_bytes: of a row, a multiple of 4.
      schedulers: of ours.
      baselines: whether to run what there is without fastjax.
      rounds: times that each scheme runs, in turn with the others.
      baseline_rounds: the same for baselines: in the first so many of the rounds.
      topology: keyword arguments of fastjax.Topology.
      seed: of the order within rounds.
    """

    fabric: dict[str, Any]
    traffic: dict[str, list[list[int]]]
    row_bytes: int
    schedulers: tuple[str, ...]
    baselines: bool
    rounds: int
    baseline_rounds: int
    topology: dict[str, Any]
    seed: int


class Arrays:
    """One workload's operands, of which each process holds the rows of its own devices."""

    def __init__(self, mesh: jax.sharding.Mesh, traffic: np.ndarray, row_bytes: int):
        self.mesh, self.traffic, self.width = mesh, traffic, row_bytes // 4
        self.rows = max(1, int(traffic.sum(axis=1).max()))
        self.output_rows = max(1, int(traffic.sum(axis=0).max()))
        self._sharding = jax.sharding.NamedSharding(mesh, jax.P(AXIS))
        self._operand = self._make(
            self.rows, lambda device: work.rows_of(device, 0, self.rows, self.width)
        )
        self._meta = [self._metadata(array) for array in metadata(traffic)]
        self._output = self._make(self.output_rows, self._untouched)
        self._clear = jax.jit(jax.numpy.zeros_like, donate_argnums=0, out_shardings=self._sharding)

    def _untouched(self, device: int) -> np.ndarray:  # noqa: ARG002
        return np.zeros((self.output_rows, self.width), np.uint32)

    def _make(self, rows: int, of: Callable[[int], np.ndarray]) -> jax.Array:
        shape = (len(self.traffic) * rows, self.width)
        return jax.make_array_from_callback(
            shape, self._sharding, lambda index: of(_first(index) // rows)
        )

    def _metadata(self, array: np.ndarray) -> jax.Array:
        flat = array.reshape(-1)
        return jax.make_array_from_callback(flat.shape, self._sharding, lambda index: flat[index])

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
        self._output = self._clear(self._output)
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


def schemes(task: Task, fabric: Fabric, traffic: np.ndarray) -> dict[str, Scheme]:
    """What is compared, by name."""
    topology = fastjax.Topology(fabric.servers, fabric.rails, **task.topology)
    result = {
        name: Scheme(exchange_by(name, topology), fabric.rails, baseline=False)
        for name in task.schedulers
    }
    if task.baselines:
        dense = baselines.dense(AXIS, int(traffic.max()))
        result |= {
            "dense padded": Scheme(dense, fabric.rails),
            "all_gather": Scheme(baselines.all_gather(AXIS), fabric.rails),
            "dense padded, 1 NIC": Scheme(dense, 1),
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


def mesh_of_all() -> jax.sharding.Mesh:
    """All devices of the job, along one axis."""
    types = (jax.sharding.AxisType.Auto,)
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,), axis_types=types)


class Barrier:
    """All processes meet; over the trunk, by a sum of one number a device."""

    def __init__(self, mesh: jax.sharding.Mesh):
        sharding = jax.sharding.NamedSharding(mesh, jax.P(AXIS))
        self._one = jax.make_array_from_callback(
            (mesh.size,), sharding, lambda _: np.ones(1, np.int32)
        )
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


def timed(fabric: Fabric, barrier: Barrier, run: Callable[[], None]) -> dict[str, Any]:
    """One run, from the moment the processes have met: clock, ticks, and what was sent.

    The clock is the machine's: the same in all processes.
    """
    before = sent(fabric)
    barrier()
    ticks, cpu, start = machine_ticks(), time.process_time(), time.monotonic()
    run()
    end, used, after = time.monotonic(), time.process_time() - cpu, machine_ticks()
    barrier()  # what was sent has arrived
    moved = (sent(fabric) - before).tolist()
    return {"start": start, "end": end, "cpu": used, "ticks": [ticks, after], "sent": moved}


def measure(
    task: Task, fabric: Fabric, arrays: Arrays, barrier: Barrier
) -> dict[str, dict[str, Any]]:
    """All schemes of a workload: rows that are wrong, runs; or why there are none."""
    results: dict[str, dict[str, Any]] = {}
    programs: dict[str, Callable[..., Any]] = {}
    compared = schemes(task, fabric, arrays.traffic)
    for name, scheme in compared.items():
        try:
            programs[name] = arrays.compile(scheme.exchange)
        except UnsupportedError as error:
            results[name] = {"skipped": str(error)}
            continue
        barrier()
        results[name] = {"wrong": arrays.wrong(programs[name]), "runs": []}
    rng = np.random.default_rng(task.seed)
    for number in range(task.rounds):
        for name in rng.permutation(list(programs)).tolist():
            scheme = compared[name]
            if scheme.baseline and number >= task.baseline_rounds:
                continue
            fabric.widen_trunk(jax.process_index(), scheme.trunk)
            run = functools.partial(arrays.run, programs[name])
            results[name]["runs"].append(timed(fabric, barrier, run))
    return results


def serve(**task: Any) -> dict[str, Any]:
    """Runs a task; returns what this process saw, by workload and scheme."""
    return run(Task(**task))


def run(task: Task) -> dict[str, Any]:
    fabric = Fabric(**task.fabric)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    results = {}
    for workload, traffic in task.traffic.items():
        arrays = Arrays(mesh, np.array(traffic, np.int64), task.row_bytes)
        results[workload] = measure(task, fabric, arrays, barrier)
    return results
