"""`python -m gpu_check.against_jax`: a GPU's exchange with itself, beside XLA's.

Where XLA does not carry out its own, as on CPUs, only fastjax is timed, and a note says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import reference

import fastjax
from gpu_check import measurements
from gpu_check.measurements import KIB, MIB, Loop, Timed

UPDATES = 8
MANY_UPDATES = 256
FALLBACK = "--xla_gpu_allow_ragged_all_to_all_nccl_send_recv_fallback=true"
ROW_ELEMENTS = 4096
WAYS = {"fastjax": fastjax.fast_ragged_all_to_all, "jax.lax": jax.lax.ragged_all_to_all}


def problem(size: int, slices: int) -> tuple[Any, Any, reference.Metadata]:
    """Rows, what they are written over, and where they go: each slice has a row at least.

    The slices lie side by side, in the output in another order.
    """
    elements = min(ROW_ELEMENTS, max(1, size // 2 // 32))
    rows = max(slices, size // 2 // elements)
    rng = np.random.default_rng(size)
    sizes = measurements.zipf_sizes(rng, 1, slices, rows - slices) + 1
    meta = reference.packed(sizes)
    order = rng.permutation(slices)
    meta.output_offsets[0, order] = np.cumsum(sizes[0, order]) - sizes[0, order]
    operand = measurements.random_rows(1, (rows, elements), jnp.bfloat16)
    return operand, jnp.zeros_like(operand), meta


def try_xla() -> None:
    operand, output, meta = problem(MIB, UPDATES)
    exchange = measurements.on_one_rank(jax.lax.ragged_all_to_all)
    arrays = [array[0] for array in meta.arrays()]
    Loop(exchange, 1, operand, output, arrays).microseconds()


def why_not() -> str:
    """What XLA says of an exchange of its own; empty if it carries it out.

    Tried in a process of its own, which may crash or hang, before this one has a device. Newer XLAs
    want to be asked for what always works; if that is all there is, this process asks for it.
    """
    said = ""
    command = [sys.executable, "-c", "from gpu_check import against_jax as a; a.try_xla()"]
    for flags in ("", FALLBACK):
        # XLA takes a blank for the name of a file with flags.
        asked = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        environment = {**os.environ, **({"XLA_FLAGS": asked} if asked else {})}
        # Both are to end well within the part's time; JAX starts in a third of this.
        limits: Any = {"env": environment, "timeout": 30}
        try:
            tried = subprocess.run(command, capture_output=True, text=True, check=False, **limits)
        except subprocess.TimeoutExpired:
            said = said or "it hangs"
            continue
        if tried.returncode == 0:
            os.environ.update(environment)
            return ""
        lines = tried.stderr.splitlines()
        lines = [line for line in lines if "Error: " in line] or lines
        said = said or (lines[-1][:300] if lines else f"exit status {tried.returncode}")
    return said


class Compared(NamedTuple):
    """What is timed of each way, and whether it has done right."""

    what: str
    rows: jax.Array
    cases: dict[str, Timed]
    right: Callable[[str], bool]


def values(size: int, slices: int, times: int, ways: list[str]) -> Compared:
    operand, output, meta = problem(size, slices)
    arrays = [array[0] for array in meta.arrays()]
    exchanges = {name: measurements.on_one_rank(WAYS[name]) for name in ways}
    loops = {name: Loop(e, times, operand, output, arrays) for name, e in exchanges.items()}
    wanted = reference.exchange_in_jax(operand[None], output[None], meta)[0]
    right = lambda name: bool(jnp.array_equal(loops[name].output, wanted))  # noqa: E731
    return Compared(f"one rank, {slices} slices", operand, {**loops}, right)


def gradients(size: int, ways: list[str]) -> Compared:
    """Value and gradients with respect to operand and output, in one program."""
    operand, output, meta = problem(size, UPDATES)
    arrays = [jax.device_put(array[0], measurements.device()) for array in meta.arrays()]
    cotangent = measurements.random_rows(2, output.shape, output.dtype)

    def program(way: Any) -> Any:
        exchange = measurements.on_one_rank(way)

        def run(operand: Any, output: Any) -> Any:
            value, back = jax.vjp(lambda *data: exchange(*data, *arrays), operand, output)
            return value, *back(cotangent)

        return jax.jit(run)

    programs = {name: program(WAYS[name]) for name in ways}
    value, back = jax.vjp(
        lambda op, out: reference.exchange_in_jax(op, out, meta), operand[None], output[None]
    )
    wanted = (value, *back(cotangent[None]))

    def right(name: str) -> bool:
        got = programs[name](operand, output)
        return all(bool(jnp.array_equal(a, b[0])) for a, b in zip(got, wanted, strict=True))

    what = f"value and gradients, one rank, {UPDATES} slices"
    cases = {name: Timed(partial(run, operand, output)) for name, run in programs.items()}
    return Compared(what, operand, cases, right)


def compare(
    record: measurements.Record,
    runs: bool,
    rounds: int,
    copies: int,
    make: Callable[[list[str]], Compared],
) -> None:
    """Measures both, or fastjax alone where XLA's does not run, or turns out to fail.

    Wrong is only what fastjax does wrong; of XLA a note is taken.
    """

    def measure(ways: list[str]) -> None:
        made = make(ways)
        cases = {**made.cases, "copy": measurements.copies(made.rows, copies)}
        right = partial(made.right, "fastjax")
        record.measure(made.what, cases, rounds, right, rows=made.rows)
        if "jax.lax" in ways and not made.right("jax.lax"):
            what = f"{made.what}, {made.rows.nbytes} bytes"
            record.note(f"jax.lax.ragged_all_to_all is wrong: {what}")

    if runs:
        try:
            return measure([*WAYS])
        except jax.errors.JaxRuntimeError as error:
            record.note(f"one of both failed: {str(error)[:300]}; next, fastjax alone")
    return measure(["fastjax"])


def steps(record: measurements.Record, tiny: bool) -> list[Any]:
    wrong = why_not()
    if wrong:
        record.note(f"jax.lax.ragged_all_to_all does not run here: {wrong}")
    rounds = 2 if tiny else 20
    # Bytes, slices, and how many exchanges are one program.
    shapes = [(KIB, UPDATES, 2), (64 * KIB, UPDATES, 2), (MIB, MANY_UPDATES, 2)]
    if not tiny:
        shapes = [(KIB, UPDATES, 32), (64 * KIB, UPDATES, 32), (MIB, UPDATES, 32)]
        shapes += [(16 * MIB, UPDATES, 16), (128 * MIB, UPDATES, 16), (1024 * MIB, UPDATES, 4)]
        shapes += [(128 * MIB, MANY_UPDATES, 16)]
    each = [(times, partial(values, size, slices, times)) for size, slices, times in shapes]
    each.append((8, partial(gradients, 64 * KIB if tiny else 128 * MIB)))
    return [partial(compare, record, not wrong, rounds, *of) for of in each]


if __name__ == "__main__":
    measurements.main(__doc__, steps)
