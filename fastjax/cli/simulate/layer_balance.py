"""A layer whose experts are levelled inside servers, beside other ways: a table and a verdict."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastjax.chunking import levelling
from fastjax.chunking.levelling import Levelling
from fastjax.cli.shared import text
from fastjax.cli.simulate import layer_chunks, placements
from fastjax.cli.simulate.layer_chunks import Timed
from fastjax.cli.simulate.layer_work import PLATFORM, Work
from fastjax.cli.simulate.layers import Layer

_MOST_TOKENS = 2**20
_COLUMNS: text.Columns = {
    "experts": lambda way: way["experts"],
    "slowest / mean": lambda way: f"{way['slowest_by_mean']:.3f}",
    "copies": lambda way: f"{way['copies']}, {way['most_copies']}" if way["copies"] else "0",
    "weights moved": lambda way: text.size(way["bytes_of_weights"]),
    "rows inside servers": lambda way: text.size(way["bytes_of_rows_inside"]),
    "chunks": lambda way: str(way["chunks"]),
    "time": lambda way: text.microseconds(way["time_us"]),
    "x at home": lambda way: f"{way['by_home']:.3f}",
}
_CAPTION = """\
slowest / mean: of devices' rows. copies: of experts, in all and the most on a device. Bytes are of
all devices, rows' of both ways and without staging. time: with planning, in the best number of
chunks; levelled, with the way of the copies' weights and what joins them to the device's own."""


def record(work: Work, found: Sequence[Layer], home: Timed) -> dict[str, Any]:
    """The layer with experts at home, levelled, and placed by history; times in µs.

    Args:
      work: the layer.
      found: it with each scheduler; each way is planned by its fastest.
      home: the best of the layer with experts at home.
    """
    assert work.seconds_per_row is not None
    options = (work.copies, work.expert_bytes, work.seconds_per_row)
    model = Levelling(work.topology, *options, PLATFORM)
    counts = work.counts
    slots, rows = model.deal(counts)
    levelled = _moved(work, placements.dealt(slots, rows, len(counts)))
    weights, once = model.weights_seconds(slots, len(counts)), model.fixed_seconds(len(counts))
    history = counts if work.history is None else work.history
    placed = _moved(work, placements.by_history(history, counts, work.topology.num_devices))
    by = "popularity known" if work.history is None else "by earlier steps"
    ways = [
        _way("at home", work, home),
        _way("levelled", levelled, _best(levelled, found, weights, once), slots),
        _way(f"{by}, as EPLB", placed, _best(placed, found)) | {"ours": False},
    ]
    for way in ways:
        way["by_home"] = way["time_us"] / ways[0]["time_us"]
    _, tokens, top_k = work.choices.shape
    default = levelling.pays(work.topology, tokens, top_k, len(counts), *options, platform=PLATFORM)
    least = break_even(model, counts, tokens)
    return {
        "copies": work.copies,
        "expert_bytes": work.expert_bytes,
        "row_us": work.seconds_per_row * 1e6,
        "ways": ways,
        "break_even_tokens": least,
        "balanced_by_default": default,
        "verdict": _verdict(ways, least, default),
    }


def _moved(work: Work, quotas: np.ndarray) -> Work:
    """The same as of one expert for each device, chosen by the rows that the device computes."""
    owners = placements.devices_of(work.choices, quotas)
    return dataclasses.replace(work, choices=owners, num_experts=len(owners))


def _best(work: Work, found: Sequence[Layer], weights: float = 0.0, once: float = 0.0) -> Timed:
    return layer_chunks.best_of(layer_chunks.simulate(work, found, weights, once))


def _way(name: str, work: Work, timed: Timed, slots: np.ndarray | None = None) -> dict[str, Any]:
    loads = work.traffic.each.sum(0)
    used = np.zeros(1, int) if slots is None else (slots >= 0).sum(1)
    rows = work.traffic.inside if timed.times.deduplicated else work.traffic.each
    server = np.arange(len(loads)) // work.topology.devices_per_server
    inside = rows[server[:, None] == server].sum() - rows.trace()
    return {
        "experts": name,
        "ours": True,
        "loads": loads.tolist(),
        "slowest_by_mean": float(loads.max() / max(loads.mean(), 1)),
        "copies": int(used.sum()),
        "most_copies": int(used.max()),
        "bytes_of_weights": int(used.sum()) * work.expert_bytes,
        "bytes_of_rows_inside": 2 * int(inside) * work.row_bytes.row,
        "chunks": timed.times.chunks,
        "time_us": timed.times.total * 1e6,
        "training_us": (timed.times.total + timed.back.total) * 1e6,
    }


def break_even(model: Levelling, counts: np.ndarray, tokens: int) -> int | None:
    """The fewest tokens of a device with which levelling gains, for the same popularity.

    Args:
      model: the experts.
      counts: rows of each.
      tokens: of a device, that chose them.

    Returns:
      How many, up to 2**20; None if there is no gain with as many.
    """

    def gains(many: int) -> bool:
        return model.gain(np.rint(counts * (many / max(1, tokens))).astype(np.int64)) > 0

    most = min(_MOST_TOKENS, (2**31 - 1 - len(counts)) * tokens // max(1, int(counts.sum())))
    least = bisect.bisect_left(range(1, most + 1), True, key=gains) + 1
    return least if least <= most else None


def _verdict(ways: Sequence[Mapping[str, Any]], least: int | None, default: bool) -> list[str]:
    pays = "does not pay" if least is None else f"pays from {least:,} tokens a device"
    before, after = (f"{way['slowest_by_mean']:.2f}" for way in ways[:2])
    return [
        f"Levelled, the slowest device has {after} x the mean rows in place of {before} x.",
        f"The layer takes {ways[1]['by_home']:.2f} x as long.",
        f"With experts as popular, and apart from exchanges, that {pays}.",
        f"By default moe.layer {'levels' if default else 'does not level'} experts here.",
    ]


def table(record: Mapping[str, Any]) -> str:
    """A line for each way."""
    row = text.microseconds(record["row_us"])
    title = f"experts of {text.size(record['expert_bytes'])}, {row} a row"
    return text.table(title, _COLUMNS, record["ways"], _CAPTION)
