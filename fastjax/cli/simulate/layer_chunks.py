"""A layer in chunks: the options of its experts' work, its times, a table and the default."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastjax import chunking
from fastjax.chunking import CANDIDATES, CHUNK_OVERHEAD, LayerTimes
from fastjax.cli.shared import units
from fastjax.cli.shared.progress import Progress
from fastjax.cli.shared.text import aligned
from fastjax.cli.simulate import layers
from fastjax.cli.simulate.layer_report import ALIKE, Work
from fastjax.cli.simulate.layers import Layer
from fastjax.errors import OptionError
from fastjax.traffic import layer_traffic

_OPTIONS = ("seconds_per_row", "chunks")
_MOST_CHUNKS = 256
_MOST_SECONDS = 3600.0
_COLUMNS = (
    "a row for each",
    "chunks",
    "scheduler",
    "time",
    "x best",
    "NICs busy",
    "inside servers busy",
    "experts busy",
)
_CAPTION = """\
time: with planning and the experts. x best: by the least time of both ways. busy: of a resource,
which does one chunk at a time; a row for each choice has its whole exchange on the NICs."""


@dataclasses.dataclass(frozen=True)
class Experts:
    """The experts' work, and the chunks that are tried.

    Attributes:
      seconds_per_row: that an expert works on a row.
      chunks: numbers of chunks, rising.
      weights: seconds that links inside servers need for copied weights, before the first chunk.
      once: seconds that the first chunk's experts take more.
    """

    seconds_per_row: float
    chunks: tuple[int, ...]
    weights: float = 0.0
    once: float = 0.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the experts' work and of chunks."""
    add = parser.add_argument_group(
        "a layer in chunks, of which some cross while experts work on others"
    ).add_argument
    add("--seconds-per-row", type=float, metavar="X", help="seconds that an expert works on a row")
    shown = " ".join(map(str, CANDIDATES))
    add("--chunks", type=int, nargs="+", metavar="N", help=f"to compare with 1; default: {shown}")


def given(options: argparse.Namespace) -> str | None:
    """The first of these options that is given, as it is written."""
    names = [name for name in _OPTIONS if getattr(options, name) is not None]
    return f"--{names[0].replace('_', '-')}" if names else None


def load(options: argparse.Namespace, row_seconds: float | None = None) -> Experts | None:
    """What the options say, or None where nothing is known of the experts' work.

    Args:
      options: of the command line.
      row_seconds: what an expert takes for a row, where the options do not say.

    Raises:
      OptionError: they do not fit together, or a number is not in its range.
    """
    seconds, chunks = options.seconds_per_row, options.chunks or CANDIDATES
    seconds = row_seconds if seconds is None else seconds
    if seconds is None:
        if options.chunks is not None:
            raise OptionError("--chunks needs the experts' work: --seconds-per-row.")
        return None
    if not 0 <= seconds <= _MOST_SECONDS:
        raise OptionError(
            f"--seconds-per-row must be from 0 to {_MOST_SECONDS:g}, got {seconds!r}."
        )
    for count in chunks:
        if not 1 <= count <= _MOST_CHUNKS:
            raise OptionError(f"--chunks must be from 1 to {_MOST_CHUNKS}, got {count}.")
    return Experts(seconds, tuple(sorted({1, *chunks})))


@dataclasses.dataclass(frozen=True)
class Timed:
    """A layer in so many chunks.

    Attributes:
      scheduler: that was asked for.
      times: what it takes.
      back: what the way back through it takes.
    """

    scheduler: str
    times: LayerTimes
    back: LayerTimes

    @classmethod
    def of(cls, scheduler: str, parts: Sequence[chunking.Parts], way: bool) -> Timed:
        """Of what each chunk takes, deduplicated or not."""
        times, back = (
            LayerTimes.of(chunking.schedule(p), len(parts), deduplicated=way)
            for p in (parts, chunking.way_back(parts))
        )
        return cls(scheduler, times, back)


def simulate(work: Work, found: Sequence[Layer], experts: Experts) -> list[Timed]:
    """The layer in each number of chunks, both ways, by the scheduler that is fastest at once."""
    tokens = work.source.choices.shape[1]
    counts = [count for count in experts.chunks if count <= max(1, tokens)]
    ways = sorted({layer.deduplicated for layer in found})
    progress = Progress(len(ways) * sum(counts))
    timed = []
    try:
        for way in ways:
            of_way = (layer for layer in found if layer.deduplicated == way)
            name = min(of_way, key=lambda layer: layer.seconds).asked
            for count in counts:
                parts = list(_parts(work, experts, name, count, way, progress))
                timed.append(Timed.of(name, parts, way))
    finally:
        progress.clear()
    return timed


def _parts(
    work: Work, experts: Experts, scheduler: str, count: int, way: bool, progress: Progress
) -> Iterator[chunking.Parts]:
    """What each chunk takes; the busiest device's rows are what its experts work on."""
    for number, choices in enumerate(np.array_split(work.source.choices, count, axis=1), 1):
        progress.begin(f"{scheduler}, chunk {number} of {count}")
        traffic = layer_traffic(
            choices,
            servers=work.source.servers,
            num_experts=work.source.num_experts,
            nic_bandwidths=work.topology.nic_bandwidths,
        )
        rows = int(traffic.each.sum(0).max())
        seconds = rows * experts.seconds_per_row + CHUNK_OVERHEAD if rows else 0.0
        exchange = layers.once if way else layers.each_choice
        layer = exchange(scheduler, traffic, work.topology, work.fabric, work.row_bytes)
        parts = layer.parts(seconds)
        if number == 1:
            copies, seconds = parts.copies + experts.weights, parts.experts + experts.once
            parts = dataclasses.replace(parts, copies=copies, experts=seconds)
        yield parts
        progress.end()


def best_of(timed: Sequence[Timed]) -> Timed:
    """The faster way, in the fewest chunks that are as good as any."""
    ways = {t.times.deduplicated for t in timed}
    best = [
        chunking.fewest_of([t.times for t in timed if t.times.deduplicated == way]) for way in ways
    ]
    least = min(best, key=lambda times: (times.total, times.deduplicated))
    return next(t for t in timed if t.times is least)


def to_draw(timed: Sequence[Timed]) -> list[LayerTimes]:
    """Both ways, in one chunk and in the best number of them."""
    shown = []
    for way in sorted({t.times.deduplicated for t in timed}):
        of_way = [t.times for t in timed if t.times.deduplicated == way]
        best = chunking.fewest_of(of_way)
        shown += [times for times in of_way if times.chunks == 1 or times is best]
    return shown


def record(work: Work, experts: Experts, timed: Sequence[Timed]) -> dict[str, Any]:
    """All of it: times in µs."""
    best, chosen = best_of(timed), predicted(work, experts, timed)
    least = min(t.times.total for t in timed)
    return {
        "row_us": experts.seconds_per_row * 1e6,
        "chunk_overhead_us": CHUNK_OVERHEAD * 1e6,
        "times": [_entry(t, least) for t in timed],
        "best": _entry(best, least),
        "predicted_best": _entry(chosen, least),
        "verdict": [_of_default(best, chosen)],
    }


def predicted(work: Work, experts: Experts, timed: Sequence[Timed]) -> Timed:
    """The cost model's best for a forward and a backward pass, which `moe.layer` goes by.

    The model does not know how popular experts are.
    """
    _, tokens, top_k = work.source.choices.shape
    size = work.row_bytes
    best = chunking.layer_time(
        work.topology,
        tokens,
        top_k,
        size.row,
        work.source.num_experts,
        seconds_per_row=experts.seconds_per_row,
        candidates=experts.chunks,
        crossing_bytes=size.crossing,
        backward=True,
    )
    asked = (best.chunks, best.deduplicated)
    return next(t for t in timed if (t.times.chunks, t.times.deduplicated) == asked)


def _entry(timed: Timed, least: float) -> dict[str, Any]:
    times = timed.times
    busy = {name: getattr(times, name) for name in ("planning", "network", "inside", "experts")}
    return {
        "deduplicated": times.deduplicated,
        "chunks": times.chunks,
        "scheduler": timed.scheduler,
        "time_us": times.total * 1e6,
        "by_best": times.total / least if least else None,
        **{f"{name}_us": seconds * 1e6 for name, seconds in busy.items()},
    }


def table(record: Mapping[str, Any]) -> str:
    """A line for each way and number of chunks."""
    rows = [_COLUMNS, *map(_cells, record["times"])]
    overhead = units.seconds(record["chunk_overhead_us"] * 1e-6)
    head = f"in chunks; experts: {units.seconds(record['row_us'] * 1e-6)} a row, {overhead} a chunk"
    return "\n".join([head, *aligned(rows), _CAPTION])


def _cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    busy = (entry[f"{name}_us"] * 1e-6 for name in ("network", "inside", "experts"))
    return (
        "server" if entry["deduplicated"] else "choice",
        str(entry["chunks"]),
        entry["scheduler"],
        units.seconds(entry["time_us"] * 1e-6),
        "-" if entry["by_best"] is None else f"{entry['by_best']:.3f}",
        *map(units.seconds, busy),
    )


def _of_default(best: Timed, chosen: Timed) -> str:
    """Which number of chunks the library would take."""
    more = chosen.times.total / best.times.total - 1 if best.times.total else 0.0
    said = (
        f", which is as good, within {ALIKE:.0%}"
        if more <= ALIKE
        else f", which takes {more:.0%} more"
    )
    return f"For training, moe.layer takes by default: {_named(chosen.times)}{said}."


def _named(times: LayerTimes) -> str:
    way = "deduplicated" if times.deduplicated else "a row for each choice"
    return f"{way}, {times.chunks} chunk{'s' * (times.chunks > 1)}"


__all__ = [
    "Experts",
    "Timed",
    "add_options",
    "best_of",
    "given",
    "load",
    "predicted",
    "record",
    "simulate",
    "table",
    "to_draw",
]
