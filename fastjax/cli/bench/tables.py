"""The benchmark's tables, as headers and rows of text: for the command, and for recorded pages."""

from __future__ import annotations

from typing import Any

from fastjax.cli.bench.schemes import COPY, DENSE
from fastjax.cli.shared.text import aligned

Table = tuple[list[str], list[list[str]]]

_PLANS = """\
plan µs: a whole plan and one device's stage table, by the C++ planner on one core. rows moved
inside: within servers, to balance and to redistribute. predicted: by the cost model; bound: what no
schedule can beat."""
_LATENCY = """\
vs empty: time ÷ that of an FFI call on the same devices that does nothing, first with one small
array, then with the exchange's own arguments."""
_EXCHANGES = f"""\
median: planning included, output donated. algbw, busbw: GB/s as in nccl-tests. vs dense: time of
{DENSE!r} ÷ this time. vs copy: this time ÷ that of {COPY!r}, the same bytes by numpy on all cores.
wrong: rows that differ from the reference."""


def as_text(record: dict[str, Any]) -> str:
    """The whole record, for a terminal."""
    up, out = (record["fabric"][f"scale_{tier}_bandwidth"] / 1e9 for tier in ("up", "out"))
    fabric = f"{up:g} GB/s a device inside servers and {out:g} GB/s between them"
    parts = [_describe(record), _section(f"Plans, for {fabric}", plans(record), _PLANS)]
    if record["latency"]:
        parts.append(_section("Latency", latency(record), _LATENCY))
    return "\n\n".join([*parts, _section("Exchanges", exchanges(record), _EXCHANGES)]) + "\n"


def _section(title: str, table: Table, caption: str) -> str:
    header, rows = table
    return "\n".join([title, *aligned([header, *rows]), caption])


def _describe(record: dict[str, Any]) -> str:
    work, machine, versions = (record[k] for k in ("workload", "machine", "versions"))
    return (
        f"{workload(record)}\n{machine['cpu']}, {machine['usable_cores']} cores; jax "
        f"{versions['jax']}, fastjax {versions['fastjax']}; {work['rounds']} rounds."
    )


def workload(record: dict[str, Any]) -> str:
    """What is exchanged, in a sentence."""
    work = record["workload"]
    skew = work["skew"] if work["skew"] == "uniform" else f"{work['skew']} {work['alpha']:g}"
    return (
        f"{work['devices']} CPU devices, {work['rows']} rows of {work['row_bytes']} bytes each "
        f"({work['dtype']}), {skew}, seed {work['seed']}: {work['total_bytes'] / 2**20:g} MiB in "
        f"all, the busiest device receives {work['max_received_rows']} rows, the largest flow has "
        f"{work['max_flow_rows']}."
    )


def plans(record: dict[str, Any]) -> Table:
    """How the traffic is scheduled."""
    header = ["scheduler", "servers", "stages", "plan µs", "rows moved inside", "predicted µs"]
    rows = [
        [
            _name(entry),
            entry["servers"],
            str(plan["stages"]),
            f"{plan['plan_us']:.1f}",
            str(plan["rows_moved_inside"]),
            f"{plan['predicted_us']:.1f}",
            f"{plan['lower_bound_us']:.1f}",
            f"{plan['predicted_by_bound']:.3f}",
        ]
        for entry in record["schemes"]
        for plan in [entry.get("plan")]
        if plan is not None
    ]
    return [*header, "lower bound µs", "predicted ÷ bound"], rows


def latency(record: dict[str, Any]) -> Table:
    """Exchanges of one row for each peer."""
    header = ["one row for each peer", "runs", "median µs", "min", "p25", "p75"]
    rows = [
        [
            entry["name"],
            str(entry["runs"]),
            *(f"{entry[k] * 1e3:.0f}" for k in ("median_ms", "min_ms", "p25_ms", "p75_ms")),
            f"{entry['by_empty']:.2f}",
            f"{entry['by_empty_same']:.2f}",
        ]
        for entry in record["latency"]
    ]
    return [*header, "vs empty", "vs empty, same arguments"], rows


def exchanges(record: dict[str, Any]) -> Table:
    """The main table: how long each scheme takes."""
    header = ["scheme", "servers", "runs", "median ms", "min", "p25", "p75", "max"]
    header += ["algbw GB/s", "busbw GB/s", "vs dense", "vs copy", "wrong"]
    numbers = ("median_ms", "min_ms", "p25_ms", "p75_ms", "max_ms", "algbw", "busbw")
    rows = [
        [
            _name(entry),
            entry["servers"],
            str(entry["runs"]),
            *(f"{entry[k]:.2f}" for k in numbers),
            ratio(entry["dense_by_this"]),
            ratio(entry["this_by_copy"]),
            "n/a" if entry["wrong"] is None else str(entry["wrong"]),
        ]
        for entry in record["schemes"]
    ]
    return header, rows


def _name(entry: dict[str, Any]) -> str:
    chosen = entry.get("plan", {}).get("scheduler", entry["scheme"])
    return entry["scheme"] if chosen == entry["scheme"] else f"{entry['scheme']} ({chosen})"


def ratio(value: float | None) -> str:
    """A ratio, or a dash where there is nothing to compare with."""
    return "-" if value is None else f"{value:.2f}"


__all__ = ["as_text", "exchanges", "latency", "plans", "ratio", "workload"]
