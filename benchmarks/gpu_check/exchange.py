"""`python -m gpu_check.exchange`: many ranks played on one GPU, and one rank with itself."""

from __future__ import annotations

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import reference

import fastjax
from fastjax.loopback import loopback_ragged_all_to_all
from gpu_check import measurements
from gpu_check.measurements import KIB, MIB, Loop

GOAL_US = 100.0  # of an exchange of little
EMPTY_GOAL = 0.05  # what empty slices may add


def played(topology: fastjax.Topology, scheduler: str) -> measurements.Exchange:
    return lambda *args: loopback_ragged_all_to_all(*args, topology=topology, scheduler=scheduler)


def with_itself() -> measurements.Exchange:
    return measurements.on_one_rank(
        lambda *args: fastjax.fast_ragged_all_to_all(*args, axis_name="x")
    )


def bandwidth(
    record: measurements.Record,
    shape: tuple[int, int],
    scheduler: str,
    row_bytes: int,
    total: int,
    rounds: int,
) -> None:
    """Rows to the experts of all ranks, by a popularity of 1 / rank^0.8."""
    ranks = shape[0] * shape[1]
    rng = np.random.default_rng(5)
    sizes = measurements.zipf_sizes(rng, ranks, ranks, total // ranks // row_bytes)
    meta = reference.packed(sizes)
    sent, got = (max(rows, 1) for rows in reference.rows_needed(meta))
    operand = measurements.random_rows(1, (ranks, sent, row_bytes // 2), jnp.bfloat16)
    output = jnp.zeros((ranks, got, row_bytes // 2), jnp.bfloat16)
    exchange = played(fastjax.Topology(*shape), scheduler)
    loop = Loop(exchange, 4, operand, output, meta.arrays())

    def right() -> bool:
        """Of one exchange, against a gather on the same device: there is much to compare."""
        once = Loop(exchange, 1, operand, output, loop.meta)
        once.run()
        wanted = reference.exchange_in_jax(operand, output, meta)
        return bool(jnp.array_equal(once.output, wanted))

    what = f"loopback {shape[0]}x{shape[1]}, {scheduler}, rows of {row_bytes} B"
    cases = {"exchange": loop.timed(), "copy": measurements.copies(operand, 8)}
    record.measure(what, cases, rounds, right, rows=operand)


def small(
    record: measurements.Record, what: str, exchange: Any, meta: reference.Metadata, tiny: bool
) -> None:
    """What an exchange costs that moves next to nothing."""
    ranks = len(meta.send_sizes)
    rows = reference.rows_needed(meta)
    one = ranks == 1
    shapes = [(count, 4) if one else (ranks, count, 4) for count in rows]
    operand = measurements.random_rows(2, shapes[0], jnp.float32)
    output = jnp.zeros(shapes[1], jnp.float32)
    arrays = [array[0] if one else array for array in meta.arrays()]
    times, rounds = (2, 3) if tiny else (50, 40)
    alone = Loop(exchange, 1, operand, output, arrays)
    cases = {
        "in a loop": Loop(exchange, times, operand, output, arrays).timed(),
        "program of one exchange": alone.timed(),
        "program of one addition": Loop(
            lambda _, out, *__: out + 1, 1, operand, output, arrays
        ).timed(),
    }

    def right() -> bool:
        rows_of_all = np.asarray(operand).reshape(ranks, -1, 4)
        nothing = np.zeros((ranks, rows[1], 4), np.float32)
        wanted = reference.exchange(rows_of_all, nothing, meta)
        return bool(np.array_equal(np.asarray(alone.output).reshape(wanted.shape), wanted))

    record.measure(
        what,
        cases,
        rounds,
        right,
        rows=operand,
        goal=f"at most {GOAL_US:.0f} us",
        met=lambda made: made["us"]["median"] <= GOAL_US,
    )


def one_row_each(record: measurements.Record, shape: tuple[int, int], tiny: bool) -> None:
    ranks = shape[0] * shape[1]
    meta = reference.packed(np.ones((ranks, ranks), np.int64))
    for scheduler in ("fast", "direct"):
        what = f"one row to each of {ranks} peers, {shape[0]}x{shape[1]} loopback, {scheduler}"
        small(record, what, played(fastjax.Topology(*shape), scheduler), meta, tiny)
    meta = reference.packed(np.ones((1, 1), np.int64))
    small(record, "one row, one rank", with_itself(), meta, tiny)


def empty_slices(record: measurements.Record, total: int, rounds: int) -> None:
    """256 slices of which 250 are empty, beside the six that are not: the same rows."""
    rng = np.random.default_rng(6)
    few = measurements.zipf_sizes(rng, 1, 6, total // 8192)
    many = np.zeros((1, 256), np.int64)
    many[0, np.sort(rng.permutation(256)[:6])] = few[0]
    operand = measurements.random_rows(3, (total // 8192, 4096), jnp.bfloat16)
    loops = [
        Loop(
            with_itself(),
            8,
            operand,
            jnp.zeros_like(operand),
            [array[0] for array in reference.packed(sizes).arrays()],
        )
        for sizes in (many, few)
    ]
    record.measure(
        "one rank, 256 slices, 250 of them empty",
        {
            "256 slices": loops[0].timed(),
            "6 slices": loops[1].timed(),
            "copy": measurements.copies(operand, 8),
        },
        rounds,
        lambda: all(bool(jnp.array_equal(loop.output, operand)) for loop in loops),
        rows=operand,
        goal=f"within {EMPTY_GOAL:.0%} of 6 slices",
        met=lambda made: made["ratios"]["6 slices"] >= 1 - EMPTY_GOAL,
    )


def main() -> int:
    given = measurements.arguments(__doc__)
    record = measurements.Record(given.json)
    rounds = 2 if given.tiny else 20
    total = 64 * KIB if given.tiny else 512 * MIB
    shape = (2, 2) if given.tiny else (4, 8)
    row_bytes = 256 if given.tiny else 8192
    return record.each(
        [
            lambda: one_row_each(record, shape, given.tiny),
            *(
                lambda bytes_=bytes_: empty_slices(record, bytes_, rounds)
                for bytes_ in ((MIB,) if given.tiny else (64 * MIB, 256 * MIB))
            ),
            *(
                lambda name=name, row=row: bandwidth(record, shape, name, row, total, rounds)
                for name, row in (("fast", row_bytes), ("direct", row_bytes), ("fast", 256))
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
