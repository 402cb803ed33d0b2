"""The benchmark's tables, through rich."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from fastjax.cli.bench.schemes import COPY, DENSE
from fastjax.cli.shared import units

_MINIMUM_WIDTH = 112


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leaves it to the command line, where rich would end the process with status 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Standard output; where it is no terminal, wide enough for every column."""
    console = _Console()
    if not console.is_terminal and console.width < _MINIMUM_WIDTH:
        return _Console(width=_MINIMUM_WIDTH)
    return console


def describe_run(record: dict[str, Any]) -> str:
    """One paragraph: what is exchanged, on what, with what."""
    work, machine, versions = (record[k] for k in ("workload", "machine", "versions"))
    skew = work["skew"] + ("" if work["skew"] == "uniform" else f" {work['alpha']:g}")
    return (
        f"{work['devices']} CPU devices, {work['rows']} rows of {work['row_bytes']} bytes a device "
        f"({work['dtype']}), {skew}: the busiest device receives {work['max_received_rows']} rows "
        f"and the largest flow has {work['max_flow_rows']}. {machine['cpu']}, "
        f"{machine['usable_cores']} cores; jax {versions['jax']}, fastjax {versions['fastjax']}."
    )


def plans(record: dict[str, Any]) -> Table:
    """How the traffic is scheduled."""
    fabric = record["fabric"]
    table = _table(
        f"Plans, for {fabric['scale_up_bandwidth'] / 1e9:g} GB/s a device inside servers and "
        f"{fabric['scale_out_bandwidth'] / 1e9:g} GB/s between them",
        "plan µs: a whole plan and one device's stage table, by the C++ planner on one core. rows "
        "moved inside: within servers, to balance and to redistribute. predicted ÷ bound: time by "
        "the cost model ÷ what no schedule can beat.",
    )
    for name in ("scheduler", "servers"):
        table.add_column(name)
    for name in ("stages", "plan µs", "rows moved inside", "predicted ÷ bound"):
        table.add_column(name, justify="right")
    for entry in record["schemes"]:
        plan = entry.get("plan")
        if plan is not None:
            table.add_row(
                _name(entry),
                entry["servers"],
                str(plan["stages"]),
                f"{plan['plan_us']:.1f}",
                str(plan["rows_moved_inside"]),
                f"{plan['predicted_by_bound']:.3f}",
            )
    return table


def latency(record: dict[str, Any]) -> Table:
    """Exchanges of one row for each peer."""
    table = _table(
        "Latency: one row for each peer",
        "vs empty: time ÷ that of an FFI call on the same devices that does nothing, first with "
        "one small array, then with the exchange's own arguments.",
    )
    table.add_column("what")
    for name in ("median µs", "min", "p25", "p75", "vs empty", "vs empty, same"):
        table.add_column(name, justify="right")
    for entry in record["latency"]:
        table.add_row(
            entry["name"],
            *(f"{entry[k] * 1e3:.0f}" for k in ("median_ms", "min_ms", "p25_ms", "p75_ms")),
            f"{entry['by_empty']:.2f}",
            f"{entry['by_empty_same']:.2f}",
        )
    return table


def exchanges(record: dict[str, Any]) -> Table:
    """The main table: how long each scheme takes."""
    table = _table(
        "Exchanges",
        f"size: bytes a device sends. time: ms, planning included, output donated. algbw, busbw: "
        f"GB/s as in nccl-tests. vs dense: time of {DENSE!r} ÷ this time. vs copy: this time ÷ "
        f"that of {COPY!r}, the same bytes by numpy on all cores. wrong: rows that differ from "
        "the reference.",
    )
    table.add_column("size")
    table.add_column("scheme")
    table.add_column("servers")
    for name in ("time", "min", "max", "algbw", "busbw", "vs dense", "vs copy", "wrong"):
        table.add_column(name, justify="right")
    sent = record["workload"]["rows"] * record["workload"]["row_bytes"]
    servers = None
    for entry in record["schemes"]:
        if servers not in (None, entry["servers"]):
            table.add_section()
        servers = entry["servers"]
        wrong = entry["wrong"]
        style = "bold red" if wrong else None
        table.add_row(
            units.size(sent),
            _name(entry),
            servers,
            *(f"{entry[k]:.2f}" for k in ("median_ms", "min_ms", "max_ms", "algbw", "busbw")),
            _ratio(entry.get("dense_by_this")),
            _ratio(entry.get("this_by_copy")),
            "n/a" if wrong is None else str(wrong),
            style=style,
        )
    return table


def _table(title: str, caption: str) -> Table:
    from rich import box

    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )


def _name(entry: dict[str, Any]) -> str:
    chosen = (entry.get("plan") or {}).get("scheduler", entry["scheme"])
    return entry["scheme"] if chosen == entry["scheme"] else f"{entry['scheme']} ({chosen})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


__all__ = ["describe_run", "exchanges", "latency", "make_console", "plans"]
