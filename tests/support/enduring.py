"""Many exchanges in one job, and many jobs: nothing is ever wrong, and nothing piles up.

What runs in the processes of a job, and what the process that starts jobs looks at. For
test_endurance.py, in short, and for benchmarks/endurance.py.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
import reference
from exchange_checks.backends import SCHEDULERS, same, spread
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

import fastjax

DTYPES = (np.float32, np.uint8, jnp.bfloat16, np.complex64, np.int32, jnp.int4)
TRAILING = ((3,), (), (2, 5), (67,), (700,))


class Program:
    """A compiled exchange of random kind; sizes and rows are its arguments.

    Args:
      rng: the same in every process.
      processes, devices: of the job, and of each.
      number: of the program, for its name.
    """

    def __init__(
        self, rng: np.random.Generator, processes: int, devices: int, number: int = 0
    ) -> None:
        everywhere = np.arange(processes * devices)
        self._members, order = self._draw_members(rng, everywhere.reshape(processes, devices))
        self._mesh = mesh_of((len(order),), order=order)
        self._entries = int(rng.integers(1, 4)) * len(self._members[0])
        self._most = int(rng.choice([1, 5, 40]))
        self._rows = self._entries * self._most + 3
        self._trailing = TRAILING[rng.integers(len(TRAILING))]
        self._dtype = DTYPES[rng.integers(len(DTYPES))]
        options: dict[str, Any] = {
            "axis_name": "x",
            "axis_index_groups": self._members if len(self._members) > 1 else None,
            "scheduler": str(rng.choice(SCHEDULERS)),
        }
        size = len(order)
        servers = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
        if rng.integers(2) and len(self._members) == 1:
            options["topology"] = fastjax.Topology(servers, size // servers)
        self.about = (
            f"{len(order)} devices in {len(self._members)} groups, {options['scheduler']}, "
            f"{np.dtype(self._dtype).name}{list(self._trailing)}, {self._entries} sizes"
        )
        self._call = self._compiled(f"exchange_{number}", options)

    def _compiled(self, name: str, options: dict[str, Any]) -> Any:
        spec = P("x")

        def local(*args: Any) -> Any:
            result = fastjax.fast_ragged_all_to_all(*(a[0] for a in args), **options)
            return result[None]

        local.__name__ = name  # by which errors name the program, and processes its launches
        return jax.jit(jax.shard_map(local, mesh=self._mesh, in_specs=spec, out_specs=spec))

    @staticmethod
    def _draw_members(
        rng: np.random.Generator, grid: np.ndarray
    ) -> tuple[list[list[int]], list[int]]:
        """Groups of positions, and the device at each position."""
        order = grid.reshape(-1).tolist()
        positions = np.arange(grid.size).reshape(grid.shape)
        match int(rng.integers(5)):
            case 0:
                groups = positions.T  # a device of each process
            case 1:
                groups = rng.permutation(grid.size).reshape(2, -1)
            case 2:
                order = rng.permutation(grid.size).tolist()
                groups = positions.reshape(1, -1)
            case 3 if grid.shape[1] > 1:
                order = grid[:, 1:].reshape(-1).tolist()
                groups = np.arange(len(order))[None]
            case _:
                groups = positions.reshape(1, -1)
        return groups.tolist(), order

    def launch(self, rng: np.random.Generator) -> Exchange:
        """With random sizes and rows; without waiting for it."""
        devices = self._mesh.size
        sizes = reference.random_sizes(rng, devices, self._entries, self._most)
        meta = reference.packed(sizes, self._members)
        shape = (2, devices, self._rows, *self._trailing)
        operand, output = rng.integers(-8, 8, shape).astype(self._dtype)
        result = self._call(*spread(self._mesh, (operand, output, *meta.arrays())))
        moved = int(sizes.sum()) * operand[0, 0].nbytes
        return Exchange(result, operand, output, meta, self._members, moved)


@dataclasses.dataclass
class Exchange:
    """One that was launched."""

    result: jax.Array
    operand: np.ndarray
    output: np.ndarray
    meta: reference.Metadata
    members: Sequence[Sequence[int]]
    moved: int

    def check(self) -> None:
        same(self.result, reference.exchange(self.operand, self.output, self.meta, self.members))


class _Allocations(ctypes.Structure):
    """What glibc's mallinfo2 returns: uordblks and hblkhd are bytes that malloc gave out."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def usage() -> dict[str, int]:
    """What this process holds of the system."""
    gc.collect()
    library = ctypes.CDLL(None)
    library.malloc_trim(0)  # what glibc keeps for later is not lost
    library.mallinfo2.restype = _Allocations
    allocations = library.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss": pages * resource.getpagesize(),
        "allocated": allocations.uordblks + allocations.hblkhd,
        "descriptors": _entries("/proc/self/fd"),
        "threads": _entries("/proc/self/task"),
        "maps": Path("/proc/self/maps").read_text().count("\n"),
        "arrays": len(jax.live_arrays()),
    }


def _entries(folder: str) -> int:
    return len(list(Path(folder).iterdir()))


class Sampler:
    """What this process holds of the system, at some times of a long run.

    Args:
      first, total: how much has been done at the first sample, and at the last.
      samples: how many.
    """

    def __init__(self, first: int, total: int, samples: int) -> None:
        self.found: list[dict[str, Any]] = []
        self._at = np.linspace(first, total, samples).astype(int).tolist()
        self._start = time.perf_counter()

    def take(self, done: int) -> None:
        """Takes the samples that are due."""
        while self._at and done >= self._at[0]:
            self._at.pop(0)
            seconds = round(time.perf_counter() - self._start, 1)
            self.found.append({"done": done, "seconds": seconds} | usage())
            sys.stdout.write(f"{self.found[-1]}\n")
            sys.stdout.flush()


def exchange_on_and_on(exchanges: int, programs: int, seed: int, samples: int) -> dict[str, Any]:
    """Runs in a job: that many exchanges by that many programs, up to four in flight.

    Every process draws the same. The first exchanges are those that compile: one of each program.
    """
    rng = np.random.default_rng(seed)
    shape = jax.process_count(), jax.local_device_count()
    kinds = [Program(rng, *shape, number) for number in range(programs)]
    turns = [*range(programs), *rng.integers(programs, size=exchanges - programs)]
    sampler = Sampler(programs, exchanges, samples)
    moved = done = 0
    while done < exchanges:
        now = turns[done : done + int(rng.integers(1, 5))]
        launched = [(k, kinds[k].launch(rng)) for k in now]
        while launched:
            number, exchange = launched.pop(0)
            try:
                exchange.check()
            except AssertionError as error:
                raise AssertionError(f"exchange {done}: {kinds[number].about}: {error}") from None
            moved += exchange.moved
            done += 1
        del exchange
        sampler.take(done)
    return {
        "samples": sampler.found,
        "moved": moved,
        "programs": [kind.about for kind in kinds],
        "refused": fastjax._core.network_state()["refused"],
    }


# ---- endings


def ending_job(how: str, processes: int, **environment: str) -> multiprocess.Job:
    """A job that ends so."""
    return multiprocess.Job(
        __file__,
        "end_by",
        processes=processes,
        devices=2,
        arguments={"how": how},
        environment={"FASTJAX_TIMEOUT": "20", **environment},
        initialize={"shutdown_timeout_seconds": 5, "heartbeat_timeout_seconds": 10},
    )


def end_by(how: str) -> dict[str, Any]:
    """Runs in a job: some exchanges, and then process 1 ends as it should not, or all end well.

    Not process 0: that one serves `jax.distributed`, which ends all others if it is gone.
    """
    rng = np.random.default_rng(0)
    program = Program(rng, jax.process_count(), jax.local_device_count())
    for _ in range(3):
        program.launch(rng).check()
    if how == "well":
        return {}
    if jax.process_index() == 1:
        ENDINGS[how](program, rng)
        return {}
    if how in WAITED_FOR:
        program.launch(rng).check()
        return {}
    try:
        while True:
            program.launch(rng).check()
    except jax.errors.JaxRuntimeError as error:
        sys.stdout.write(f"the others: {error}\n")
        return {"error": str(error)}


def _raise(program: Program, rng: np.random.Generator) -> None:
    raise ValueError("as asked")


def _exit_in_atexit(program: Program, rng: np.random.Generator) -> None:
    atexit.register(sys.exit, 3)


def _raise_with_an_exchange_in_flight(program: Program, rng: np.random.Generator) -> None:
    program.launch(rng)
    raise ValueError("as asked")


def _leave_at_once(program: Program, rng: np.random.Generator) -> None:
    os._exit(4)


def _without_waiting(program: Program, rng: np.random.Generator) -> None:
    _KEPT.append(program.launch(rng))


def _without_waiting_and_forgotten(program: Program, rng: np.random.Generator) -> None:
    program.launch(rng)


def _daemon_threads_in_flight(program: Program, rng: np.random.Generator) -> None:
    begun = threading.Event()

    def on_and_on() -> None:
        while True:
            exchange = program.launch(rng)
            begun.set()
            exchange.check()

    threading.Thread(target=on_and_on, daemon=True).start()
    begun.wait()


_KEPT: list[Exchange] = []
ENDINGS = {
    function.__name__.strip("_"): function
    for function in (
        _raise,
        _exit_in_atexit,
        _raise_with_an_exchange_in_flight,
        _leave_at_once,
        _without_waiting,
        _without_waiting_and_forgotten,
        _daemon_threads_in_flight,
    )
}
# Its last exchange is everybody's last.
WAITED_FOR = ("without_waiting", "without_waiting_and_forgotten")
