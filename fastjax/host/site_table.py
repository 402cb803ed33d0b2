"""Statistics of call sites as a table, with a line for what one place calls for one purpose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

_Site = Any  # a SiteStats, whose module needs this one
_Sites = Sequence[_Site]

# What JAX adds to the names of scopes, and a layer of experts where a part of it says more.
_UNSAID = {
    *("shard_map", "while", "body", "closed_call", "checkpoint", "rematted_computation"),
    *("moe_layer", "moe_round"),
}
_WRAPPED = re.compile(r"(jit|jvp|transpose|vmap)\((.*)\)")
# Scopes of `fastjax.moe`: what they are on the way to experts, and back.
_PARTS = {
    "moe_dispatch": "dispatch",
    "moe_cross": "dispatch",
    "moe_to_experts": "dispatch in servers",
    "moe_combine": "combine",
    "moe_return": "combine",
    "moe_add_up": "combine in servers",
    "moe_copies": "copies of experts",
    "moe_weights": "weights",
}
_OPERATIONS = {"plan_ragged_all_to_all": "planning", "gather_counts": "experts at home"}
_GRADIENTS = {"moe_gradient", "fast_ragged_all_to_all_gradient"}
_NAME_WIDTH = 56


def purpose(name: str, operation: str) -> str:
    """The purpose of a call site, and its place: "block: dispatch, gradient".

    Args:
      name: of the call site, the end of its name stack and its operation.
      operation: the latter.
    """
    parts = [_bare(part) for part in name.split("/")]
    parts = [part for part in parts if part and part != operation]
    marks = [number for number, part in enumerate(parts) if part in _GRADIENTS]
    what = _part(parts, marks)
    if (other := _OPERATIONS.get(operation)) is not None:
        what = f"{other} in servers" if what.endswith(" in servers") else other
    if "moe_round" in parts:
        what += ", later rounds"
    if marks:
        what += ", gradient"
    elif "rematted_computation" in parts:
        what += ", recomputed"
    known = _UNSAID | _PARTS.keys() | _GRADIENTS
    where = "/".join(part for part in parts if part not in known)
    return f"{where}: {what}" if where else what


def _bare(part: str) -> str:
    """A part of a name without the transformations that it went through; nothing of `jit`."""
    while found := _WRAPPED.fullmatch(part):
        part = "" if found[1] == "jit" else found[2]
    return part


def _part(parts: Sequence[str], marks: Sequence[int]) -> str:
    """The part of a layer of experts, if it is one.

    A way of rows has the other way as its gradient: where it is part of a gradient, it is that of
    the other.
    """
    found = [(number, _PARTS[part]) for number, part in enumerate(parts) if part in _PARTS]
    if not found:
        return "exchange"
    number, what = next((part for part in found if part[1] == "weights"), found[-1])
    if marks and marks[0] < number:
        one, _, more = what.partition(" ")
        turned = {"dispatch": "combine", "combine": "dispatch"}.get(one, one)
        return f"{turned} {more}".strip()
    return what


def table(sites: _Sites) -> str:
    """A line for each purpose, place, axis and platform, in the order in which they began."""
    lines: dict[object, list[_Site]] = {}
    for site in sites:
        of = (purpose(site.name, site.operation), site.axis_name, site.group_size, site.platform)
        lines.setdefault(of, []).append(site)
    rows = [tuple(title for title, *_ in _COLUMNS)]
    rows += [tuple(cell(line) for _, _, cell in _COLUMNS) for line in lines.values()]
    return "\n".join(aligned(rows, "".join(side for _, side, _ in _COLUMNS)))


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Lines of columns, each of which goes to its side, "<" or ">"."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    looks = [f"{side}{width}" for side, width in zip(sides, widths, strict=True)]
    return ["  ".join(map(format, row, looks)).rstrip() for row in rows]


def _purpose(sites: _Sites) -> str:
    text = purpose(sites[0].name, sites[0].operation)
    return text if len(text) <= _NAME_WIDTH else "..." + text[3 - _NAME_WIDTH :]


def _mean(sites: _Sites, value: Callable[[_Site], float | None]) -> float:
    """Over launches, of the call sites that have a value; nan where none has."""
    known = [(site.launches, value(site)) for site in sites if site.launches]
    known = [(many, it) for many, it in known if it is not None and not math.isnan(it)]
    total = sum(many for many, _ in known)
    return sum(many * it for many, it in known) / total if total else math.nan


def _number(value: Callable[[_Site], float | None], digits: int = 0) -> Callable[[_Sites], str]:
    def cell(sites: _Sites) -> str:
        mean = _mean(sites, value)
        return "-" if math.isnan(mean) else f"{mean:.{digits}f}"

    return cell


def _sum(value: Callable[[_Site], int]) -> Callable[[_Sites], str]:
    return lambda sites: str(sum(map(value, sites)))


def _time(value: Callable[[_Site], float]) -> Callable[[_Sites], str]:
    return lambda sites: in_words(_mean(sites, value))


def _longest(sites: _Sites) -> str:
    times = [site.exchange_time.longest for site in sites]
    return in_words(max((time for time in times if not math.isnan(time)), default=math.nan))


def in_words(seconds: float, digits: int = 3) -> str:
    """In the largest unit that leaves 1 or more of it; a dash for nan."""
    if math.isnan(seconds):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.{digits}g} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


# Title, side, and cell of a line's call sites.
_COLUMNS: tuple[tuple[str, str, Callable[[_Sites], str]], ...] = (
    ("call site", "<", _purpose),
    ("launches", ">", _sum(lambda site: site.launches)),
    ("failed", ">", _sum(lambda site: site.failures)),
    ("planned", ">", _sum(lambda site: site.plans_made)),
    ("tokens", ">", _number(lambda site: site.tokens or None)),
    ("choices", ">", _number(lambda site: site.choices or None)),
    ("rows", ">", _number(lambda site: site.total_rows / site.launches)),
    ("dropped", ">", _sum(lambda site: site.dropped_rows)),
    ("crossed", ">", _number(lambda site: site.crossing_rows)),
    ("skew", ">", _number(lambda site: site.mean_skew, 2)),
    ("slowest", ">", _number(lambda site: site.slowest, 2)),
    ("scheduler", "<", lambda sites: "/".join(dict.fromkeys(s.scheduler for s in sites))),
    ("stages", ">", lambda sites: str(max(site.stages for site in sites))),
    ("planning", ">", _time(lambda site: site.planning_time.mean)),
    ("exchange", ">", _time(lambda site: site.exchange_time.mean)),
    ("longest", ">", _longest),
    ("predicted", ">", _time(lambda site: site.predicted_time)),
    ("bound", ">", _time(lambda site: site.lower_bound)),
)
