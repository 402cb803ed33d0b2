"""The benchmark's tables: for the command, and for recorded pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastjax.cli.bench.schemes import COPY, DENSE
from fastjax.cli.shared.text import Columns, number, table


def as_text(record: dict[str, Any]) -> str:
    """The whole record, for a terminal."""
    parts = [_describe(record), table("Latency", LATENCY, record["latency"], _OF_LATENCY)]
    parts.append(table("Exchanges", EXCHANGES, record["schemes"], _OF_EXCHANGES))
    return "\n\n".join(parts) + "\n"


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


def _name(entry: dict[str, Any]) -> str:
    chosen = entry.get("plan", {}).get("scheduler", entry["scheme"])
    return entry["scheme"] if chosen == entry["scheme"] else f"{entry['scheme']} ({chosen})"


def _number(name: str, digits: int = 2, times: float = 1) -> Callable[[dict[str, Any]], str]:
    def show(entry: dict[str, Any]) -> str:
        value = entry[name]
        return number(None if value is None else value * times, digits)

    return show


LATENCY: Columns = {
    "one row for each peer": lambda entry: entry["name"],
    "runs": _number("runs", 0),
    "median µs": _number("median_ms", 0, 1e3),
    **{name: _number(f"{name}_ms", 0, 1e3) for name in ("min", "p25", "p75")},
    "vs empty": _number("by_empty"),
    "vs empty, same arguments": _number("by_empty_same"),
}
_OF_LATENCY = """\
vs empty: time ÷ that of an FFI call on the same devices that does nothing, first with one small
array, then with the exchange's own arguments."""
EXCHANGES: Columns = {
    "scheme": _name,
    "servers": lambda entry: entry["servers"],
    "runs": _number("runs", 0),
    "median ms": _number("median_ms"),
    **{name: _number(f"{name}_ms") for name in ("min", "p25", "p75", "max")},
    "algbw GB/s": _number("algbw"),
    "busbw GB/s": _number("busbw"),
    "vs dense": _number("dense_by_this"),
    "vs copy": _number("this_by_copy"),
    "wrong": lambda entry: "n/a" if entry["wrong"] is None else str(entry["wrong"]),
}
_OF_EXCHANGES = f"""\
median: planning included, output donated. algbw, busbw: GB/s as in nccl-tests. vs dense: time of
{DENSE!r} ÷ this time. vs copy: this time ÷ that of {COPY!r}, the same bytes by numpy on all cores.
wrong: rows that differ from the reference."""
