"""A layer's gain over rows for each choice, sent at once, and over DeepEP: table and verdict."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from fastjax import scheduler_traits
from fastjax.chunking import CHUNK_OVERHEAD
from fastjax.cli.shared import units
from fastjax.cli.shared.text import aligned
from fastjax.cli.simulate import layer_chunks, layers
from fastjax.cli.simulate.layer_chunks import Experts, Timed
from fastjax.cli.simulate.layer_report import ALIKE, Work
from fastjax.cli.simulate.layers import Layer
from fastjax.errors import OptionError

_MOST_LAYERS = 2**20
_TODAY = "today: all at once"
_FORWARDED = "two-tier, as DeepEP: at least"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the option of a step's layers."""
    parser.add_argument(
        "--layers", type=int, metavar="N", help="of a model: shows what they take in a step, too"
    )


def given(options: argparse.Namespace) -> str | None:
    """The option, if it is given, as it is written."""
    return None if options.layers is None else "--layers"


def check(options: argparse.Namespace) -> None:
    """Refuses a number that is not in its range.

    Raises:
      OptionError: it is not.
    """
    if options.layers is not None and not 1 <= options.layers <= _MOST_LAYERS:
        raise OptionError(f"--layers must be from 1 to {_MOST_LAYERS}, got {options.layers}.")


def record(
    work: Work,
    found: Sequence[Layer],
    experts: Experts | None,
    timed: Sequence[Timed],
    levelled: Sequence[Mapping[str, Any]],
    count: int | None,
) -> dict[str, Any]:
    """Each way, the usual ones first, and sentences; times in µs.

    Args:
      work: the layer.
      found: it with each scheduler.
      experts: their work, if it is known.
      timed: the layer in chunks, with it.
      levelled: the ways of `layer_balance.record` that do not leave experts at home.
      count: of the layers of a step.
    """
    seconds = 0.0
    if experts is not None:
        rows = int(work.traffic.each.sum(0).max())
        seconds = rows * experts.seconds_per_row + CHUNK_OVERHEAD if rows else 0.0
    ways = _peers(work, seconds)
    for deduplicated in (False, True):
        of_way = [layer for layer in found if layer.deduplicated == deduplicated]
        if of_way:
            best = min(of_way, key=lambda layer: layer.seconds)
            how = ", deduplicated" if deduplicated else ""
            ways.append(_way(f"{best.taken}{how}", _in_one_chunk(best, seconds)))
    if timed:
        best = layer_chunks.best_of(timed)
        how = ", deduplicated" if best.times.deduplicated else ""
        if best.times.chunks > 1:
            ways.append(_way(f"{best.scheduler}{how}, {best.times.chunks} chunks", best))
    ways += [
        {"way": way["experts"], **{name: way[name] for name in ("time_us", "training_us", "ours")}}
        for way in levelled
    ]
    today = ways[0]["time_us"] if ways[0]["way"] == _TODAY else None
    for way in ways:
        way["by_today"] = way["time_us"] / today if today else None
        way["step_us"] = count and count * way["training_us"]
    return {"layers": count, "ways": ways, "verdict": _verdict(ways, count)}


def _peers(work: Work, seconds: float) -> list[dict[str, Any]]:
    """The usual ways; none where NICs have failed, which they cannot avoid."""
    if work.topology.failed_nics:
        return []
    direct = scheduler_traits.FALLBACK
    each = layers.each_choice(direct, work.traffic, work.topology, work.fabric, work.row_bytes)
    ways = [_way(_TODAY, _in_one_chunk(each, seconds, planned=False), ours=False)]
    if work.topology.servers > 1:
        source = work.source
        handed_on = layers.forwarded(
            source.choices, work.topology, source.num_experts, work.fabric, work.row_bytes
        )
        ways.append(_way(_FORWARDED, _in_one_chunk(handed_on, seconds, planned=False), ours=False))
    return ways


def _in_one_chunk(layer: Layer, experts: float, *, planned: bool = True) -> Timed:
    return Timed.of(layer.taken, [layer.parts(experts, planned=planned)], layer.deduplicated)


def _way(name: str, timed: Timed, *, ours: bool = True) -> dict[str, Any]:
    forward, both = timed.times.total, timed.times.total + timed.back.total
    return {"way": name, "time_us": forward * 1e6, "training_us": both * 1e6, "ours": ours}


def _verdict(ways: Sequence[Mapping[str, Any]], count: int | None) -> list[str]:
    """Whether it gains anything: sentences."""
    shown = "step_us" if count else "time_us"
    best = min((way for way in ways if way["ours"]), key=lambda way: way[shown])
    of = f"a step of {count} layers" if count else "a layer"
    words = [f"Best of fastjax: {best['way']}, {units.seconds(best[shown] * 1e-6)} {of}."]
    said = {
        _TODAY: "sent all at once, as today, it takes",
        _FORWARDED: "DeepEP's way takes at least",
    }
    for way in ways:
        if way["way"] not in said:
            continue
        theirs = f"{said[way['way']]} {units.seconds(way[shown] * 1e-6)}"
        ratio = way[shown] / best[shown] if best[shown] else 1.0
        if ratio <= 1 + ALIKE:
            words.append(f"That gains nothing: {theirs}.")
        else:
            words.append(f"{theirs[0].upper()}{theirs[1:]}, {ratio:.2f} x as long.")
    return words


def table(record: Mapping[str, Any], *, experts: bool) -> str:
    """A line for each way."""
    ways = record["ways"]
    count = record["layers"]
    head = ["way", "x today", *([f"{count} layers, a step"] if count else []), "a layer"]
    rows = [head]
    for way in ways:
        by = "-" if way["by_today"] is None else f"{way['by_today']:.3f}"
        step = [units.seconds(way["step_us"] * 1e-6)] if count else []
        rows.append([way["way"], by, *step, units.seconds(way["time_us"] * 1e-6)])
    what = "dispatch, experts and combine" if experts else "dispatch and combine"
    caption = [
        f"today: a row for each choice, as NCCL and jax.lax send it. a layer: {what}, forward."
    ]
    if count:
        caption.append("a step: forward and backward, without recomputation.")
    return "\n".join(["what it gains", *aligned(rows), *caption])


__all__ = ["add_options", "check", "given", "record", "table"]
