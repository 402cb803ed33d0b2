"""`python -m gpu_check.exchange`: many ranks played on one GPU, and one rank with itself."""

from __future__ import annotations

from functools import partial
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
    return partial(loopback_ragged_all_to_all, topology=topology, scheduler=scheduler)


def with_itself() -> measurements.Exchange:
    return measurements.on_one_rank(fastjax.fast_ragged_all_to_all)


def bandwidth(
    record: measurements.Record,
    topology: fastjax.Topology,
    scheduler: str,
    row_bytes: int,
    total: int,
    rounds: int,
) -> None:
    """Rows to the experts of all ranks, by a popularity of 1 / rank^0.8."""
    ranks = topology.servers * topology.devices_per_server
    rng = np.random.default_rng(5)
    sizes = measurements.zipf_sizes(rng, ranks, ranks, total // ranks // row_bytes)
    meta = reference.packed(sizes)
    sent, got = (max(rows, 1) for rows in reference.rows_needed(meta))
    operand = measurements.random_rows(1, (ranks, sent, row_bytes // 2), jnp.bfloat16)
    output = jnp.zeros((ranks, got, row_bytes // 2), jnp.bfloat16)
    exchange = played(topology, scheduler)
    loop = Loop(exchange, 4, operand, output, meta.arrays())

    def right() -> bool:
        """Of one exchange, against a gather on the same device: there is much to compare."""
        once = Loop(exchange, 1, operand, output, meta.arrays())
        wanted = reference.exchange_in_jax(operand, output, meta)
        return bool(jnp.array_equal(once.run(), wanted))

    what = f"loopback {name_of(topology)}, {scheduler}, rows of {row_bytes} B"
    cases = {"exchange": loop, "copy": measurements.copies(operand, 8)}
    record.measure(what, cases, rounds, right, rows=operand)


def name_of(topology: fastjax.Topology) -> str:
    return f"{topology.servers}x{topology.devices_per_server}"


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
        "in a loop": Loop(exchange, times, operand, output, arrays),
        "program of one exchange": alone,
        "program of one addition": Loop(lambda _, out, *__: out + 1, 1, operand, output, arrays),
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


def empty_slices(record: measurements.Record, total: int, rounds: int) -> None:
    """256 slices of which 250 are empty, beside the six that are not: the same rows."""
    rng = np.random.default_rng(6)
    few = measurements.zipf_sizes(rng, 1, 6, total // 8192)
    many = np.zeros((1, 256), np.int64)
    many[0, np.sort(rng.permutation(256)[:6])] = few[0]
    operand = measurements.random_rows(3, (total // 8192, 4096), jnp.bfloat16)

    def loop(sizes: np.ndarray) -> Loop:
        arrays = [array[0] for array in reference.packed(sizes).arrays()]
        return Loop(with_itself(), 8, operand, jnp.zeros_like(operand), arrays)

    loops = {"256 slices": loop(many), "6 slices": loop(few)}
    record.measure(
        "one rank, 256 slices, 250 of them empty",
        {**loops, "copy": measurements.copies(operand, 8)},
        rounds,
        lambda: all(bool(jnp.array_equal(each.output, operand)) for each in loops.values()),
        rows=operand,
        goal=f"within {EMPTY_GOAL:.0%} of 6 slices",
        met=lambda made: made["ratios"]["6 slices"] >= 1 - EMPTY_GOAL,
    )


def steps(record: measurements.Record, tiny: bool) -> list[Any]:
    rounds, total = (2, 64 * KIB) if tiny else (20, 512 * MIB)
    topology, row_bytes = (fastjax.Topology(2, 2), 256) if tiny else (fastjax.Topology(4, 8), 8192)
    ranks = topology.servers * topology.devices_per_server
    to_all, to_one = (reference.packed(np.ones((n, n), np.int64)) for n in (ranks, 1))
    to_peers = f"one row to each of {ranks} peers, {name_of(topology)} loopback"
    return [
        *(
            partial(small, record, f"{to_peers}, {name}", played(topology, name), to_all, tiny)
            for name in ("fast", "direct")
        ),
        partial(small, record, "one row, one rank", with_itself(), to_one, tiny),
        *(
            partial(empty_slices, record, of_all, rounds)
            for of_all in ((MIB,) if tiny else (64 * MIB, 256 * MIB))
        ),
        *(
            partial(bandwidth, record, topology, name, row, total, rounds)
            for name, row in (("fast", row_bytes), ("direct", row_bytes), ("fast", 256))
        ),
    ]


if __name__ == "__main__":
    measurements.main(__doc__, steps)
