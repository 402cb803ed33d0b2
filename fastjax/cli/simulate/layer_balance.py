"""A layer whose experts are levelled inside servers, beside other ways: a table and a verdict."""

from __future__ import annotations

import argparse
import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastjax.chunking import levelling
from fastjax.chunking.levelling import Levelling
from fastjax.cli.shared import units
from fastjax.cli.shared.text import aligned
from fastjax.cli.simulate import layer_chunks, placements
from fastjax.cli.simulate.layer_chunks import Experts, Timed
from fastjax.cli.simulate.layer_report import Work
from fastjax.cli.simulate.layer_source import LayerSource
from fastjax.cli.simulate.layers import Layer
from fastjax.errors import OptionError

_DEFAULT_COPIES = 4  # as `moe.layer`'s
_MOST_COPIES = 256
_MOST_BYTES = 2**40
_MOST_TOKENS = 2**20
_PLATFORM = "gpu"
_COLUMNS = (
    "experts",
    "slowest / mean",
    "copies",
    "weights moved",
    "rows inside servers",
    "chunks",
    "time",
    "x at home",
)
_CAPTION = """\
slowest / mean: of devices' rows. copies: of experts, in all and the most on a device. Bytes are of
all devices, rows' of both ways and without staging. time: with planning, in the best number of
chunks; levelled, with the way of the copies' weights and what joins them to the device's own."""


@dataclasses.dataclass(frozen=True)
class Copies:
    """What the options say.

    Attributes:
      most: copies on a device.
      expert_bytes: of an expert's parameters.
    """

    most: int
    expert_bytes: int

    @property
    def row_seconds(self) -> float:
        """What an expert takes for a row, where nobody says."""
        return levelling.row_seconds(self.expert_bytes, _PLATFORM)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of levelling."""
    add = parser.add_argument_group(
        "a layer whose popular experts are computed by several devices of their server"
    ).add_argument
    add("--balance", action="store_true", help="compare that with experts that stay at home")
    shown = f"of experts on a device, at most; default: {_DEFAULT_COPIES}"
    add("--copies", type=int, metavar="N", help=shown)
    add(
        "--expert-bytes", type=int, metavar="N", help="of an expert's parameters; a --model says it"
    )


def given(options: argparse.Namespace) -> str | None:
    """The first of these options that is given, as it is written."""
    names = {"--balance": options.balance or None, "--copies": options.copies}
    names["--expert-bytes"] = options.expert_bytes
    return next((name for name, value in names.items() if value is not None), None)


def load(options: argparse.Namespace, source: LayerSource) -> Copies | None:
    """What the options say, or None where they do not ask for levelling.

    Raises:
      OptionError: they do not fit together, or a number is not in its range.
    """
    if not options.balance:
        if (first := given(options)) is not None:
            raise OptionError(f"{first} is of levelled experts; want --balance too.")
        return None
    copies = _DEFAULT_COPIES if options.copies is None else options.copies
    size = source.expert_bytes if options.expert_bytes is None else options.expert_bytes
    if not 1 <= copies <= _MOST_COPIES:
        raise OptionError(f"--copies must be from 1 to {_MOST_COPIES}, got {copies}.")
    if size is None:
        raise OptionError("--balance needs the bytes of an expert: --expert-bytes, or a --model.")
    if not 1 <= size <= _MOST_BYTES:
        raise OptionError(f"--expert-bytes must be from 1 to 2**40, got {size}.")
    return Copies(copies, size)


def record(
    work: Work, found: Sequence[Layer], experts: Experts, home: Timed, copies: Copies
) -> dict[str, Any]:
    """The layer with experts at home, levelled, and placed by history; times in µs.

    Args:
      work: the layer.
      found: it with each scheduler; each way is planned by its fastest.
      experts: their work, and the chunks that are tried.
      home: the best of the layer with experts at home.
      copies: what the options say.
    """
    source, seconds = work.source, experts.seconds_per_row
    _, tokens, top_k = source.choices.shape
    model = Levelling(work.topology, copies.most, copies.expert_bytes, seconds, _PLATFORM)
    counts = np.bincount(source.choices[source.choices >= 0], minlength=source.num_experts)
    slots, rows = model.deal(counts)
    levelled = _moved(work, placements.dealt(slots, rows, len(counts)))
    more = dataclasses.replace(
        experts,
        weights=model.weights_seconds(slots, len(counts)),
        once=model.fixed_seconds(len(counts)),
    )
    history = counts if source.history is None else source.history
    placed = _moved(work, placements.by_history(history, counts, work.topology.num_devices))
    time = lambda work, experts: layer_chunks.best_of(  # noqa: E731
        layer_chunks.simulate(work, found, experts)
    )
    by = "popularity known" if source.history is None else "by earlier steps"
    ways = [
        _way("at home", work, home),
        _way("levelled", levelled, time(levelled, more), slots, copies.expert_bytes),
        _way(f"{by}, as EPLB", placed, time(placed, experts)) | {"ours": False},
    ]
    for way in ways:
        way["by_home"] = way["time_us"] / ways[0]["time_us"]
    asked = (copies.most, copies.expert_bytes, seconds)
    default = levelling.pays(work.topology, tokens, top_k, len(counts), *asked, platform=_PLATFORM)
    least = break_even(model, counts, tokens)
    return {
        "copies": copies.most,
        "expert_bytes": copies.expert_bytes,
        "row_us": seconds * 1e6,
        "ways": ways,
        "break_even_tokens": least,
        "balanced_by_default": default,
        "verdict": _verdict(ways, least, default),
    }


def _moved(work: Work, quotas: np.ndarray) -> Work:
    """The same as of one expert for each device, chosen by the rows that the device computes."""
    owners = placements.devices_of(work.source.choices, quotas)
    source = dataclasses.replace(work.source, choices=owners, num_experts=len(owners))
    return dataclasses.replace(work, source=source)


def _way(
    name: str, work: Work, timed: Timed, slots: np.ndarray | None = None, expert_bytes: int = 0
) -> dict[str, Any]:
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
        "bytes_of_weights": int(used.sum()) * expert_bytes,
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
    rows = [_COLUMNS, *map(_cells, record["ways"])]
    row = units.seconds(record["row_us"] * 1e-6)
    head = f"experts of {units.size(record['expert_bytes'])}, {row} a row"
    return "\n".join([head, *aligned(rows), _CAPTION])


def _cells(way: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        way["experts"],
        f"{way['slowest_by_mean']:.3f}",
        f"{way['copies']}, {way['most_copies']}" if way["copies"] else "0",
        units.size(way["bytes_of_weights"]),
        units.size(way["bytes_of_rows_inside"]),
        str(way["chunks"]),
        units.seconds(way["time_us"] * 1e-6),
        f"{way['by_home']:.3f}",
    )


__all__ = ["Copies", "add_options", "break_even", "given", "load", "record", "table"]
