"""The time of a layer of experts in chunks, and the best number of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fastjax.checks import check_row_bytes, check_topology
from fastjax.chunking import prices
from fastjax.chunking.prices import Tokens
from fastjax.chunking.resources import LayerTimes, Parts, schedule
from fastjax.errors import ArgumentError
from fastjax.topology import Topology
from fastjax.traffic import checks

CANDIDATES = (1, 2, 3, 4, 6, 8)
"""Numbers of chunks that are compared by default."""

CHUNK_OVERHEAD = 20e-6
"""Seconds that a chunk costs the experts by default, beyond its rows. It is an assumption.

It stands for what does not shrink with the rows: launches of a handful of kernels, and the last
wave of each matrix product, which leaves processors idle.
"""

LEAST_GAIN = 0.03
"""The share of the time that chunks must save; else a layer has one."""

BACKWARD = 2.0
"""How long experts work on the way back, as a multiple of forward: each product has two there."""

_ALIKE = 0.01  # of numbers of chunks this near to the fastest, the least is taken
_MOST_CHUNKS = 256
_MOST_SECONDS = 1e5


def expert_seconds(
    rows: int, seconds_per_row: float, chunk_overhead: float = CHUNK_OVERHEAD
) -> float:
    """How long experts work on the rows of a chunk; not at all where there are none."""
    return rows * seconds_per_row + chunk_overhead if rows else 0.0


def in_passes(chunks: Sequence[Parts], *, deduplicated: bool, backward: bool) -> LayerTimes:
    """Runs the chunks of a layer: forward, and then, if asked for, backward.

    Cotangents go where rows came from, by the same plans.
    """
    forward = schedule(chunks, deduplicated=deduplicated)
    if not backward:
        return forward
    back = [Parts(0.0, p.back, p.sums, BACKWARD * p.experts, p.copies, p.out) for p in chunks]
    return forward.then(schedule(back))


def sizes(tokens: int, chunks: int) -> list[int]:
    """Tokens of each chunk: as equal as can be, the larger first."""
    least, more = divmod(tokens, chunks)
    return [least + (chunk < more) for chunk in range(chunks)]


def layer_time(
    topology: Topology,
    tokens: int,
    top_k: int,
    row_bytes: int,
    num_experts: int,
    *,
    seconds_per_row: float,
    chunks: int | None = None,
    deduplicate: bool | None = None,
    candidates: Iterable[int] = CANDIDATES,
    crossing_bytes: int | None = None,
    chunk_overhead: float = CHUNK_OVERHEAD,
    scheduler: str = "auto",
    backward: bool = False,
) -> LayerTimes:
    """Predicts the time of a layer: dispatch, experts and combine, in chunks of its tokens.

    Exchanges are priced by the cost model (docs/design/cost_model.md), for experts that are equally
    popular. NICs, links inside servers and experts work at once, each on one chunk at a time
    (docs/design/simulator.md). Nothing is measured, and every host predicts the same.

    Args:
      topology: the fabric.
      tokens: of a device.
      top_k: experts of a token.
      row_bytes: bytes of a token's row.
      num_experts: of all devices together, a multiple of the devices.
      seconds_per_row: that an expert works on one row.
      chunks: that the tokens of a device are split into, up to 256 and no more than there are
        tokens. By default the best number: the fewest chunks that come within 1 % of the fastest,
        and one where chunks save less than 3 %, or with one server, since what moves there is
        copied by the processors that the experts need.
      deduplicate: whether a token crosses once to each server, which makes no difference with one
        server. By default the faster of both.
      candidates: numbers of chunks to compare with 1 for the best; those above the tokens are left
        out.
      crossing_bytes: bytes of a row that crosses once; by default of one with its experts' numbers
        and weights, as `fastjax.moe` packs it.
      chunk_overhead: seconds that a chunk costs the experts beyond its rows.
      scheduler: that plans what crosses.
      backward: whether a backward pass follows, with as much to send, in which experts, and the
        overhead of their chunks, take twice as long.

    Returns:
      The times.

    Raises:
      ArgumentError: a number is not in its range.
      OptionError: there is no such scheduler, or it needs NICs that have failed.
    """
    check_topology(topology)
    tokens = checks.integer("tokens", tokens, 0, 2**31 - 1)
    experts = checks.integer("num_experts", num_experts, 1, 2**31 - 1)
    if experts % topology.num_devices:
        raise ArgumentError(
            f"num_experts must divide over the {topology.num_devices} devices, got {experts}."
        )
    top_k = checks.integer("top_k", top_k, 1, experts)
    check_row_bytes(row_bytes)
    if crossing_bytes is None:
        of_server = experts // topology.servers
        crossing_bytes = prices.crossing_row_bytes(int(row_bytes), top_k, of_server)
    check_row_bytes(crossing_bytes)
    seconds_per_row = checks.real("seconds_per_row", seconds_per_row, 0, _MOST_SECONDS)
    if tokens * top_k * seconds_per_row > _MOST_SECONDS:
        raise ArgumentError(
            f"seconds_per_row must leave the {tokens * top_k} rows of a device no more than "
            f"{_MOST_SECONDS:g} s, got {seconds_per_row!r}."
        )
    overhead = checks.real("chunk_overhead, in seconds,", chunk_overhead, 0, _MOST_SECONDS)
    fabric = dataclasses.replace(topology, placement=None)

    def time(count: int, *, deduplicated: bool) -> LayerTimes:
        parts = []
        for size in sizes(tokens, count):
            of_chunk = Tokens(size, top_k, int(row_bytes), int(crossing_bytes))
            layer = prices.even, fabric, experts, of_chunk, scheduler
            moves = prices.predicted(*layer, deduplicated=deduplicated)
            work = expert_seconds(size * top_k, seconds_per_row, overhead)
            parts.append(dataclasses.replace(moves, experts=work))
        return in_passes(parts, deduplicated=deduplicated, backward=backward)

    if chunks is None:
        counts = {1, *(checks.integer("candidates", c, 1, _MOST_CHUNKS) for c in candidates)}
        counts = {c for c in counts if c == 1 or c <= tokens} if topology.servers > 1 else {1}
    else:
        counts = {checks.integer("chunks", chunks, 1, min(_MOST_CHUNKS, max(1, tokens)))}
    ways = (False, True) if deduplicate is None else (bool(deduplicate),)
    if topology.servers == 1:
        ways = (False,)
    found = [fewest_of([time(c, deduplicated=way) for c in sorted(counts)]) for way in ways]
    # In whole nanoseconds, as `fastjax.moe` compares them.
    return min(found, key=lambda times: round(times.total * 1e9))


def fewest_of(times: Sequence[LayerTimes]) -> LayerTimes:
    """The best of these: one chunk if others gain little, or the fewest of those about as fast."""
    least = min(found.total for found in times)
    for found in times:
        if found.chunks == 1 and found.total - least < LEAST_GAIN * found.total:
            return found
    near = [found for found in times if found.total <= least * (1 + _ALIKE)]
    return min(near, key=lambda found: found.chunks)
