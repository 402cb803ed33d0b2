"""A layer in chunks, with its experts' work: its times, a table and the default."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastjax.chunking.resources import LayerTimes, Parts, schedule
from fastjax.chunking.times import CHUNK_OVERHEAD, fewest_of, layer_time, way_back
from fastjax.cli.shared import text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import layers
from fastjax.cli.simulate.layer_report import compared, way_name
from fastjax.cli.simulate.layer_work import Work
from fastjax.cli.simulate.layers import Layer
from fastjax.traffic import LayerTraffic

_COLUMNS: text.Columns = {
    "a row for each": way_name,
    "chunks": lambda entry: str(entry["chunks"]),
    "scheduler": lambda entry: entry["scheduler"],
    "time": lambda entry: text.microseconds(entry["time_us"]),
    "x best": lambda entry: text.number(entry["by_best"]),
    "NICs busy": lambda entry: text.microseconds(entry["network_us"]),
    "inside servers busy": lambda entry: text.microseconds(entry["inside_us"]),
    "experts busy": lambda entry: text.microseconds(entry["experts_us"]),
}
_CAPTION = """\
time: with planning and the experts. x best: by the least time of both ways. busy: of a resource,
which does one chunk at a time; a row for each choice has its whole exchange on the NICs."""


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
    def of(cls, scheduler: str, parts: Sequence[Parts], way: bool) -> Timed:
        """Of what each chunk takes, deduplicated or not."""
        times, back = (schedule(p, deduplicated=way) for p in (parts, way_back(parts)))
        return cls(scheduler, times, back)


def expert_seconds(work: Work, traffic: LayerTraffic) -> float:
    """How long the experts of the busiest device work on a chunk; 0 if nobody says."""
    rows = int(traffic.each.sum(0).max())
    if work.seconds_per_row is None or not rows:
        return 0.0
    return rows * work.seconds_per_row + CHUNK_OVERHEAD


def simulate(
    work: Work, found: Sequence[Layer], weights: float = 0.0, once: float = 0.0
) -> list[Timed]:
    """The layer in each number of chunks, both ways, by the scheduler that is fastest at once.

    Args:
      work: the layer.
      found: it with each scheduler.
      weights: seconds that links inside servers need for copied weights, before the first chunk.
      once: seconds that the first chunk's experts take more.
    """
    tokens = work.choices.shape[1]
    counts = [count for count in work.chunks if count <= max(1, tokens)]
    ways = sorted({layer.deduplicated for layer in found})
    timed = []
    with Progress(len(ways) * sum(counts)) as progress:
        for way in ways:
            of_way = (layer for layer in found if layer.deduplicated == way)
            name = min(of_way, key=lambda layer: layer.seconds).asked
            for count in counts:
                first, *others = _parts(work, name, count, way, progress)
                copies, experts = first.copies + weights, first.experts + once
                first = dataclasses.replace(first, copies=copies, experts=experts)
                timed.append(Timed.of(name, [first, *others], way))
    return timed


def _parts(
    work: Work, scheduler: str, count: int, way: bool, progress: Progress
) -> Iterator[Parts]:
    """What each chunk takes."""
    exchange = layers.once if way else layers.each_choice
    for number, choices in enumerate(np.array_split(work.choices, count, axis=1), 1):
        with progress.step(f"{scheduler}, chunk {number} of {count}"):
            traffic = work.traffic_of(choices)
            layer = exchange(scheduler, traffic, work.topology, work.fabric, work.row_bytes)
            yield layer.parts(expert_seconds(work, traffic))


def best_of(timed: Sequence[Timed]) -> Timed:
    """The faster way, in the fewest chunks that are as good as any."""
    ways = {t.times.deduplicated for t in timed}
    best = [fewest_of([t.times for t in timed if t.times.deduplicated == way]) for way in ways]
    least = min(best, key=lambda times: (times.total, times.deduplicated))
    return next(t for t in timed if t.times is least)


def to_draw(timed: Sequence[Timed]) -> list[LayerTimes]:
    """Both ways, in one chunk and in the best number of them."""
    shown = []
    for way in sorted({t.times.deduplicated for t in timed}):
        of_way = [t.times for t in timed if t.times.deduplicated == way]
        best = fewest_of(of_way)
        shown += [times for times in of_way if times.chunks == 1 or times is best]
    return shown


def record(work: Work, timed: Sequence[Timed]) -> dict[str, Any]:
    """All of it: times in µs."""
    best, chosen = best_of(timed), predicted(work, timed)
    least = min(t.times.total for t in timed)
    return {
        "row_us": (work.seconds_per_row or 0.0) * 1e6,
        "chunk_overhead_us": CHUNK_OVERHEAD * 1e6,
        "times": [_entry(t, least) for t in timed],
        "best": _entry(best, least),
        "predicted_best": _entry(chosen, least),
        "verdict": [_of_default(best.times, chosen.times)],
    }


def predicted(work: Work, timed: Sequence[Timed]) -> Timed:
    """The cost model's best for a forward and a backward pass, which `moe.layer` goes by.

    The model does not know how popular experts are.
    """
    assert work.seconds_per_row is not None
    _, tokens, top_k = work.choices.shape
    best = layer_time(
        work.topology,
        tokens,
        top_k,
        work.row_bytes.row,
        work.num_experts,
        seconds_per_row=work.seconds_per_row,
        candidates=work.chunks,
        crossing_bytes=work.row_bytes.crossing,
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
    row, overhead = (text.microseconds(record[f"{name}_us"]) for name in ("row", "chunk_overhead"))
    title = f"in chunks; experts: {row} a row, {overhead} a chunk"
    return text.table(title, _COLUMNS, record["times"], _CAPTION)


def _of_default(best: LayerTimes, chosen: LayerTimes) -> str:
    """Which number of chunks the library would take."""
    more = chosen.total / best.total - 1 if best.total else 0.0
    way = "deduplicated" if chosen.deduplicated else "a row for each choice"
    named = f"{way}, {chosen.chunks} chunk{'s' * (chosen.chunks > 1)}"
    return f"For training, moe.layer takes by default: {named}{compared(more)}"
