"""`python -m gpu_check.exchange`: many ranks played on one GPU, and one rank with itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import reference

import fastjax
from fastjax.loopback import loopback_ragged_all_to_all
from gpu_check import measurements, programs

GOAL_US = 100.0  # of an exchange of little
EMPTY_GOAL = 0.05  # what empty slices may add
KIB, MIB = 1 << 10, 1 << 20


def played(topology: fastjax.Topology, scheduler: str) -> programs.Exchange:
    return lambda *args: loopback_ragged_all_to_all(*args, topology=topology, scheduler=scheduler)


def is_right(loop: programs.Loop, meta: reference.Metadata, exchange: Any, output: Any) -> bool:
    """Of one exchange, against a gather on the same device: there is much to compare."""
    once = programs.Loop(exchange, 1, loop.operand, output, loop.meta)
    once.run()
    wanted = reference.exchange_in_jax(loop.operand, output, meta)
    return bool(jnp.array_equal(once.output, wanted))


def bandwidth(
    record: measurements.Record,
    shape: tuple[int, int],
    scheduler: str,
    row_bytes: int,
    total: int,
    rounds: int,
) -> None:
    """Rows to the experts of all ranks, by a popularity of 1 / rank^0.8."""
    topology = fastjax.Topology(*shape)
    ranks = shape[0] * shape[1]
    rng = np.random.default_rng(5)
    meta = reference.packed(programs.zipf_sizes(rng, ranks, ranks, total // ranks // row_bytes))
    sent, got = programs.room(meta)
    elements = row_bytes // 2
    operand = programs.random_rows(1, (ranks, sent, elements), jnp.bfloat16)
    output = jnp.zeros((ranks, got, elements), jnp.bfloat16)
    exchange = played(topology, scheduler)
    times = 4
    loop = programs.Loop(exchange, times, operand, output, meta.arrays())
    series = measurements.interleaved(
        {"exchange": loop.timed(), "copy": programs.copies(operand, 8)}, rounds
    )
    made = measurements.measurement(
        f"loopback {shape[0]}x{shape[1]}, {scheduler}, rows of {row_bytes} B",
        series,
        "exchange",
        bytes=int(operand.nbytes),
        dtype="bfloat16",
        moved=measurements.moved(loop.timed()),
    )
    made.right = is_right(loop, meta, exchange, output)
    record.add(made)


def small(
    record: measurements.Record, what: str, exchange: Any, meta: reference.Metadata, tiny: bool
) -> None:
    """What an exchange costs that moves next to nothing."""
    ranks = len(meta.send_sizes)
    sent, got = programs.room(meta)
    one = ranks == 1
    shapes = [(sent, 4), (got, 4)] if one else [(ranks, sent, 4), (ranks, got, 4)]
    operand = programs.random_rows(2, shapes[0], jnp.float32)
    output = jnp.zeros(shapes[1], jnp.float32)
    arrays = [array[0] if one else array for array in meta.arrays()]
    times, rounds = (2, 3) if tiny else (50, 40)
    loop = programs.Loop(exchange, times, operand, output, arrays)
    alone = programs.Loop(exchange, 1, operand, output, arrays)
    nothing = programs.Loop(lambda _, out, *__: out + 1, 1, operand, output, arrays)
    series = measurements.interleaved(
        {
            "in a loop": loop.timed(),
            "program of one exchange": alone.timed(),
            "program of one addition": nothing.timed(),
        },
        rounds,
    )
    made = measurements.measurement(
        what,
        series,
        "in a loop",
        bytes=int(operand.nbytes),
        dtype="float32",
        moved=measurements.moved(loop.timed()),
    )
    wanted = reference.exchange(
        np.asarray(operand).reshape(ranks, sent, 4), np.zeros((ranks, got, 4), np.float32), meta
    )
    made.right = bool(np.array_equal(np.asarray(alone.output).reshape(wanted.shape), wanted))
    record.add(measurements.at_most(made, GOAL_US))


def one_row_each(record: measurements.Record, shape: tuple[int, int], tiny: bool) -> None:
    ranks = shape[0] * shape[1]
    for scheduler in ("fast", "direct"):
        small(
            record,
            f"one row to each of {ranks} peers, {shape[0]}x{shape[1]} loopback, {scheduler}",
            played(fastjax.Topology(*shape), scheduler),
            reference.packed(np.ones((ranks, ranks), np.int64)),
            tiny,
        )
    exchange = programs.on_one_rank(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="x")
    )
    small(record, "one row, one rank", exchange, reference.packed(np.ones((1, 1), np.int64)), tiny)


def empty_slices(record: measurements.Record, total: int, rounds: int) -> None:
    """256 slices of which 250 are empty, beside the six that are not: the same rows."""
    exchange = programs.on_one_rank(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="x")
    )
    rng = np.random.default_rng(6)
    few = programs.zipf_sizes(rng, 1, 6, total // 8192)
    many = np.zeros((1, 256), np.int64)
    many[0, np.sort(rng.permutation(256)[:6])] = few[0]
    operand = programs.random_rows(3, (total // 8192, 4096), jnp.bfloat16)
    loops = {}
    right = True
    for name, sizes in (("256 slices", many), ("6 slices", few)):
        meta = reference.packed(sizes)
        loop = programs.Loop(
            exchange, 8, operand, jnp.zeros_like(operand), [a[0] for a in meta.arrays()]
        )
        loop.run()
        right = right and bool(jnp.array_equal(loop.output, operand))
        loops[name] = loop.timed()
    series = measurements.interleaved({**loops, "copy": programs.copies(operand, 8)}, rounds)
    made = measurements.measurement(
        "one rank, 256 slices, 250 of them empty",
        series,
        "256 slices",
        bytes=int(operand.nbytes),
        dtype="bfloat16",
        moved=measurements.moved(loops["256 slices"]),
        goal=f"within {EMPTY_GOAL:.0%} of 6 slices",
        right=right,
    )
    made.met = made.ratios["6 slices"] >= 1 - EMPTY_GOAL
    record.add(made)


def main() -> int:
    given = measurements.arguments(__doc__)
    record = measurements.Record(given.json)
    rounds = 2 if given.tiny else 20
    total = 64 * KIB if given.tiny else 512 * MIB
    shape = (2, 2) if given.tiny else (4, 8)
    row_bytes = 256 if given.tiny else 8192
    steps: list[Callable[[], None]] = [lambda: one_row_each(record, shape, given.tiny)]
    steps += [
        lambda bytes_=bytes_: empty_slices(record, bytes_, rounds)
        for bytes_ in ((MIB,) if given.tiny else (64 * MIB, 256 * MIB))
    ]
    steps += [
        lambda scheduler=scheduler, row=row: bandwidth(record, shape, scheduler, row, total, rounds)
        for scheduler, row in (("fast", row_bytes), ("direct", row_bytes), ("fast", 256))
    ]
    return record.each(steps)


if __name__ == "__main__":
    sys.exit(main())
