"""Programs of several processes that are launched without waiting for each other.

Every program returns its rows, its number and the step that it was launched for, so that a test can
tell whose rows it got. How long a launch computes before it exchanges is drawn anew in each
process, so launches come to the network in any order.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import multiprocess
import numpy as np
from exchange_checks.backends import spread
from jax.experimental import serialize_executable
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

import fastjax
from fastjax import moe

AXIS = "x"
_BUSY = 12  # multiplications before an exchange, at most;
_LONG = 4000  # of the first launch, so that the next programs are compiled before it exchanges
_ROUNDS = 3  # of loops
_EXPERTS = 2  # of a device


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is in flight.

    Attributes:
      kinds: of the programs, by number; see `KINDS`.
      same_name, same_shape: whether programs have the same names, and rows of the same width.
      same_function: whether all programs are the same module, compiled once for each.
      late: how many seconds a process sleeps, once,
      late_at: before so many of its launches,
      who: and which one does.
      inspects: whether process 0 compiles each program once more, to look at it.
      forgets: which processes forget their programs after half of the steps, while launches are
        under way: "all", "one" or "none".
      steps: how often each program is launched.
    """

    kinds: tuple[str, ...]
    same_name: bool = True
    same_shape: bool = True
    same_function: bool = False
    late: float = 0
    late_at: int = 0
    who: int = 1
    inspects: bool = False
    forgets: str = "none"
    steps: int = 4


def _exchange(rows: jax.Array, plan: bool = False) -> jax.Array:
    """Device s sends its row d to device d, which puts it at s."""
    size = jax.lax.axis_size(AXIS)
    one, at = jnp.ones(size, jnp.int32), jnp.arange(size, dtype=jnp.int32)
    mine = jnp.full(size, jax.lax.axis_index(AXIS))
    made = fastjax.plan_ragged_all_to_all(one, axis_name=AXIS) if plan else None
    return fastjax.fast_ragged_all_to_all(
        rows, jnp.zeros_like(rows), at, one, mine, one, axis_name=AXIS, plan=made
    )


def _loop(rows: jax.Array) -> jax.Array:
    """There and back, and there again."""
    return jax.lax.fori_loop(0, _ROUNDS, lambda _, r: _exchange(r), rows)


def _branch(rows: jax.Array) -> jax.Array:
    """By a number that all devices have, in every second launch."""
    odd = jnp.int32(jax.lax.pmax(rows[0, 1], AXIS)) % 2 == 1
    return jax.lax.cond(odd, _exchange, lambda r: _exchange(r, plan=True), rows)


def _copies(rows: jax.Array) -> jax.Array:
    """A function that JAX lowers once and XLA puts in each place where it is called."""
    inner = jax.jit(_exchange)
    return inner(inner(inner(rows)))


def _layer(rows: jax.Array, chunks: int = 1) -> jax.Array:
    """Token d of a device goes to an expert of device d, which adds one, and comes back."""
    size = jax.lax.axis_size(AXIS)
    ids = _EXPERTS * jnp.arange(size, dtype=jnp.int32)[:, None]
    back = moe.layer(
        rows,
        ids,
        None,
        None,
        expert_fn=lambda given, _: given + 1,
        num_experts=_EXPERTS * size,
        axis_name=AXIS,
        chunks=chunks,
    )
    return _exchange(back - 1)


KINDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "fused": _exchange,
    "planned": lambda rows: _exchange(rows, plan=True),
    "loop": _loop,
    "branch": _branch,
    "copies": _copies,
    "layer": _layer,
    "chunks": lambda rows: _layer(rows, chunks=2),
}
"""Each exchanges its rows an odd number of times, after all."""


class Program:
    """A jitted program, and what it must return.

    Args:
      scenario: that it is part of.
      number: its own.
      unlike: of the scenario; modules of different scenarios differ.
    """

    def __init__(self, scenario: Scenario, number: int, unlike: int) -> None:
        self._number = 0 if scenario.same_function else number
        self._width = 4 if scenario.same_shape else 4 + number
        kind = KINDS[scenario.kinds[number]]
        factor = 1.0 + self._number + 8 * unlike
        self._factor = factor

        def local(rows: jax.Array, busy: jax.Array) -> jax.Array:
            eye = jnp.eye(96)
            worked = jax.lax.fori_loop(0, busy[0, 0], lambda _, a: jnp.sin(a @ a.T), eye)
            return factor * kind(rows + 0 * worked[0, 1])

        local.__name__ = "step" if scenario.same_name else f"step_{number}"
        self._mesh = mesh_of((jax.device_count(),), (AXIS,))
        mapped = jax.shard_map(local, mesh=self._mesh, in_specs=P(AXIS), out_specs=P(AXIS))
        self._run = jax.jit(mapped)

    def _rows(self, step: int, wanted: bool = False) -> np.ndarray:
        """By device and place there: the other device, the step, the device, and zeros."""
        size = self._mesh.size
        rows = np.zeros((size, size, self._width), np.float32)
        of, at = np.meshgrid(range(size), range(size), indexing="ij")
        rows[..., 0], rows[..., 1] = (at, step)
        rows[..., 2] = of
        if wanted:
            rows = self._factor * np.swapaxes(rows, 0, 1)
        return rows.reshape(-1, self._width)

    def arguments(self, step: int, busy: int = 0) -> tuple[jax.Array, jax.Array]:
        work = np.full((self._mesh.size, 1), busy, np.int32)
        return spread(self._mesh, (self._rows(step), work))

    def launch(self, step: int, busy: int = 0) -> jax.Array:
        return self._run(*self.arguments(step, busy))

    def launch_failing(self, step: int) -> jax.Array:
        """Launches it with arguments that this process could not make."""
        rows, busy = self.arguments(step)
        return self._run(_that_fail(rows), busy)

    def lower(self) -> jax.stages.Lowered:
        return self._run.lower(*self.arguments(0))

    def inspect(self) -> None:
        self.lower().compile().as_text()

    def verdict(self, step: int, result: jax.Array) -> str:
        """What is to be said of a launch's result: "right", "wrong: ..." or the error."""
        try:
            parts = [(part.index, np.asarray(part.data)) for part in result.addressable_shards]
        except jax.errors.JaxRuntimeError as error:
            return str(error)
        wanted = self._rows(step, wanted=True)
        wrong = [part[:2].tolist() for index, part in parts if not (part == wanted[index]).all()]
        return f"wrong: {wrong}" if wrong else "right"


def _that_fail(rows: jax.Array) -> jax.Array:
    """An array of the same type, which an exchange of this process's devices was to make."""
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), (AXIS,))

    def local(rows: jax.Array) -> jax.Array:
        many = jnp.full(mesh.size, len(rows) + 1, jnp.int32)
        return fastjax.fast_ragged_all_to_all(
            rows, jnp.zeros_like(rows), 0 * many, many, 0 * many, many, axis_name=AXIS
        )

    parts = np.concatenate([np.asarray(part.data) for part in rows.addressable_shards])
    failed = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS)))(parts)
    shards = [part.data for part in failed.addressable_shards]
    return jax.make_array_from_single_device_arrays(rows.shape, rows.sharding, shards)


SKIPPED = {"fails": 3, "another": 4, "leaves": 4}  # the step, by what happens


def skip(how: str) -> dict[str, Any]:
    """Runs in a job: the last process does not launch what the others do, once.

    Args:
      how: it "fails" before the launch, launches "another" program in its place, or "leaves" it
        out and ends.
    """
    last = jax.process_index() == jax.process_count() - 1
    scenario = Scenario(("fused", "fused"))
    programs = [Program(scenario, number, 0) for number in range(2)]
    for program in programs:
        program.inspect()
    multiprocess.barrier("compiled")
    verdicts = {}
    for step, number in itertools.product(range(1, 5), range(2)):
        program, name = programs[number], f"program {number}, step {step}"
        skipped = last and (step, number) == (SKIPPED[how], 0)
        if skipped and how == "fails":
            verdicts[name] = program.verdict(step, program.launch_failing(step))
        elif skipped and how == "another":
            verdicts[name] = programs[1].verdict(step, programs[1].launch(step))
        elif not skipped:
            verdicts[name] = program.verdict(step, program.launch(step))
        # Nobody waits for one that waits for the skipped launch.
        multiprocess.barrier(name)
    return verdicts


def load(folder: str, who: Sequence[int]) -> dict[str, Any]:
    """Runs in a job: some processes load an executable, the others compile it.

    Args:
      folder: where each process puts its executable if there is none.
      who: those that load.
    """
    program, path = Program(Scenario(("fused",)), 0, 0), Path(folder) / str(jax.process_index())
    lowered = program.lower()
    if jax.process_index() in who:
        run = serialize_executable.deserialize_and_load(
            path.read_bytes(), lowered.in_tree, lowered.out_tree
        )
    else:
        run = lowered.compile()
        path.write_bytes(serialize_executable.serialize(run)[0])
    multiprocess.barrier("loaded")
    verdicts = {}
    for step in range(3):
        verdicts[str(step)] = program.verdict(step, run(*program.arguments(step)))
    multiprocess.barrier("done")
    return verdicts


def fly(scenario: Scenario, unlike: int = 0) -> list[str]:
    """Runs in a job: launches everything, and returns what is not right of it."""
    process = jax.process_index()
    rng = np.random.default_rng((unlike, process))
    numbers = range(len(scenario.kinds))
    programs = [Program(scenario, number, unlike) for number in numbers]
    if scenario.inspects and process == 0:
        for program in programs:
            program.inspect()
    multiprocess.barrier(f"scenario {unlike}")
    results, launches = [], 0
    for step in range(1, scenario.steps + 1):
        for number in numbers:
            if process == scenario.who and launches == scenario.late_at:
                time.sleep(scenario.late)
            busy = int(rng.integers(_BUSY)) if launches or process == scenario.who else _LONG
            program = programs[number]
            results.append((step, number, program, program.launch(step, busy)))
            launches += 1
        if step == scenario.steps // 2 and (
            scenario.forgets == "all" or (scenario.forgets == "one" and process == 0)
        ):
            programs.clear()
            jax.clear_caches()
            gc.collect()
            programs = [Program(scenario, number, unlike) for number in numbers]
    found = []
    for step, number, program, result in results[len(numbers) :]:  # the first were to warm up
        verdict = program.verdict(step, result)
        if verdict != "right":
            found.append(f"process {process}, program {number}, step {step}: {verdict[:600]}")
    return found


def fly_all(scenarios: Sequence[dict[str, Any]], cache: str = "") -> dict[str, Any]:
    """Runs in a job: scenarios, one after the other.

    Args:
      scenarios: JSON of each.
      cache: of compiled programs, for process 0 alone.
    """
    if cache and jax.process_index() == 0:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    found = {}
    for unlike, given in enumerate(scenarios):
        scenario = Scenario(**{**given, "kinds": tuple(given["kinds"])})
        wrong = fly(scenario, unlike)
        if wrong:
            found[str(scenario)] = wrong
    return {"found": found}
