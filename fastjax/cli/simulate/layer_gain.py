"""A layer's gain over rows for each choice, sent at once, and over DeepEP: table and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastjax import scheduling
from fastjax.cli.shared import text
from fastjax.cli.simulate import layer_chunks, layers
from fastjax.cli.simulate.layer_chunks import Timed
from fastjax.cli.simulate.layer_report import ALIKE
from fastjax.cli.simulate.layer_work import Work
from fastjax.cli.simulate.layers import Layer

_TODAY = "today: all at once"
_FORWARDED = "two-tier, as DeepEP: at least"


def record(
    work: Work,
    found: Sequence[Layer],
    timed: Sequence[Timed],
    levelled: Sequence[Mapping[str, Any]],
    count: int | None,
) -> dict[str, Any]:
    """Each way, the usual ones first, and sentences; times in µs.

    Args:
      work: the layer.
      found: it with each scheduler.
      timed: the layer in chunks, if the experts' work is known.
      levelled: the ways of `layer_balance.record` that do not leave experts at home.
      count: of the layers of a step.
    """
    experts = layer_chunks.expert_seconds(work, work.traffic)
    ways = _peers(work, experts)
    for deduplicated, how in ((False, ""), (True, ", deduplicated")):
        of_way = [layer for layer in found if layer.deduplicated == deduplicated]
        if of_way:
            best = min(of_way, key=lambda layer: layer.seconds)
            ways.append(_way(f"{best.taken}{how}", _in_one_chunk(best, experts)))
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


def _peers(work: Work, experts: float) -> list[dict[str, Any]]:
    """The usual ways; none where NICs have failed, which they cannot avoid."""
    if work.topology.failed_nics:
        return []
    where = (work.topology, work.fabric, work.row_bytes)
    known = {_TODAY: layers.each_choice(scheduling.FALLBACK, work.traffic, *where)}
    if work.topology.servers > 1:
        known[_FORWARDED] = layers.forwarded(work.choices, work.num_experts, *where)
    return [
        _way(name, _in_one_chunk(layer, experts, planned=False)) | {"ours": False}
        for name, layer in known.items()
    ]


def _in_one_chunk(layer: Layer, experts: float, *, planned: bool = True) -> Timed:
    return Timed.of(layer.taken, [layer.parts(experts, planned=planned)], layer.deduplicated)


def _way(name: str, timed: Timed) -> dict[str, Any]:
    forward, both = timed.times.total, timed.times.total + timed.back.total
    return {"way": name, "time_us": forward * 1e6, "training_us": both * 1e6, "ours": True}


def _verdict(ways: Sequence[Mapping[str, Any]], count: int | None) -> list[str]:
    """Whether it gains anything: sentences."""
    shown = "step_us" if count else "time_us"
    best = min((way for way in ways if way["ours"]), key=lambda way: way[shown])
    of = f"a step of {count} layers" if count else "a layer"
    words = [f"Best of fastjax: {best['way']}, {text.microseconds(best[shown])} {of}."]
    said = {
        _TODAY: "sent all at once, as today, it takes",
        _FORWARDED: "DeepEP's way takes at least",
    }
    for way in ways:
        if way["way"] not in said:
            continue
        theirs = f"{said[way['way']]} {text.microseconds(way[shown])}"
        ratio = way[shown] / best[shown] if best[shown] else 1.0
        if ratio <= 1 + ALIKE:
            words.append(f"That gains nothing: {theirs}.")
        else:
            words.append(f"{theirs[0].upper()}{theirs[1:]}, {ratio:.2f} x as long.")
    return words


def table(record: Mapping[str, Any], *, experts: bool) -> str:
    """A line for each way."""
    count = record["layers"]
    columns: dict[str, Any] = {
        "way": lambda way: way["way"],
        "x today": lambda way: text.number(way["by_today"]),
    }
    if count:
        columns[f"{count} layers, a step"] = lambda way: text.microseconds(way["step_us"])
    columns["a layer"] = lambda way: text.microseconds(way["time_us"])
    what = "dispatch, experts and combine" if experts else "dispatch and combine"
    caption = (
        f"today: a row for each choice, as NCCL and jax.lax send it. a layer: {what}, forward."
    )
    if count:
        caption += "\na step: forward and backward, without recomputation."
    return text.table("what it gains", columns, record["ways"], caption)
