"""What the programs print, and the page of a record."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import records

SCHEMA = "fastjax-emulated-cluster-2"
BUSY = 0.70

HEADER = ["scheme", "runs", "median s", "min", "max", "÷ limit", "wrong", "sent ÷ load"]
HEADER += ["busiest NIC", "CPU, machine", "job"]


def describe(record: dict[str, Any]) -> str:
    """The network, in a sentence for each part."""
    fabric = record["fabric"]
    tcp = ", ".join(f"{share:.3f} for {fan_in}" for fan_in, share in record["tcp"].items())
    rate, kib = fabric["rate"] / 1e6, 1024
    return (
        f"{fabric['servers']} servers of {fabric['rails']} devices; NICs and ports of {rate:g} "
        f"Mbit/s, {fabric['port_buffer'] / kib:g} KiB in a port and "
        f"{fabric['nic_buffer'] / kib:g} KiB in a NIC, MTU {fabric['mtu']}, TCP "
        f"{fabric['congestion_control']}. Cables take {fabric['delay'] * 1e3:g} ms. gloo, which "
        f"uses one interface, has one of "
        f"{rate * fabric['rails']:g} Mbit/s, as if all NICs were one, unless said otherwise. "
        f"Goodput of plain TCP into one port, by line rate: {tcp}."
    )


def starting(record: dict[str, Any]) -> str:
    """What exchanges take in which little or nothing crosses."""
    start = record["start"]
    nothing, flow = (_spread(start[name]) for name in ("nothing", "flow"))
    return (
        f"An exchange in which nothing crosses takes {nothing}, one of a single flow of "
        f"{start['flow_bytes'] / 1e3:.0f} kB {flow} ({len(start['flow'])} runs each)."
    )


def _spread(seconds: list[float]) -> str:
    middle, least, most = np.median(seconds) * 1e3, min(seconds) * 1e3, max(seconds) * 1e3
    return f"{middle:.1f} ms ({least:.1f} to {most:.1f})"


def heading(workload: dict[str, Any]) -> str:
    """What is exchanged."""
    load = workload["load"]
    return (
        f"{workload['workload']}: limit {workload['limit_s']:.3f} s, "
        f"{load['total'] / 1e6:.0f} MB between servers, {load['server'] / 1e6:.0f} MB at the "
        f"busiest one; its busiest NIC alone, unbalanced: {workload['nic_limit']:.2f} x limit"
    )


def rows(workload: dict[str, Any]) -> Iterator[list[str]]:
    """A line of the table for each scheme that ran."""
    for scheme in workload["schemes"]:
        if "skipped" in scheme:
            yield [scheme["scheme"], "0", *["-"] * (len(HEADER) - 2)]
            continue
        yield [
            scheme["scheme"],
            str(scheme["runs"]),
            *(f"{scheme[key]:.3f}" for key in ("median_s", "min_s", "max_s")),
            f"{scheme['by_limit']:.2f}",
            str(scheme["wrong"]),
            f"{scheme['sent_by_load']:.2f}",
            f"{scheme['busiest_by_mean']:.2f}",
            f"{scheme['machine_busy']:.0%}",
            f"{scheme['job_busy']:.0%}",
        ]


def schemes_of(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for workload in record["workloads"]:
        for scheme in workload["schemes"]:
            yield workload["workload"], scheme


def skipped(record: dict[str, Any]) -> list[str]:
    """Why schemes did not run, each reason once."""
    reasons: dict[str, list[str]] = {}
    for _, scheme in schemes_of(record):
        if "skipped" in scheme:
            names = reasons.setdefault(scheme["skipped"], [])
            names += [scheme["scheme"]] if scheme["scheme"] not in names else []
    return [f"Not run: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def warnings(record: dict[str, Any]) -> list[str]:
    """Where the machine and not the network may have set the pace."""
    busy = [
        f"{scheme['scheme']} on {workload} ({scheme['machine_busy']:.0%})"
        for workload, scheme in schemes_of(record)
        if scheme.get("machine_busy", 0) > BUSY
    ]
    return [f"More than {BUSY:.0%} of the CPU was busy: {', '.join(busy)}."] if busy else []


def wrong(record: dict[str, Any]) -> int:
    """Rows that differ from the reference."""
    return record["start"]["wrong"] + sum(s.get("wrong", 0) for _, s in schemes_of(record))


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    parts = [f"# {title}", describe(record), starting(record), LEGEND]
    for workload in record["workloads"]:
        parts += [f"## {heading(workload)}", records.table(HEADER, rows(workload), texts=1)]
    parts += [*warnings(record), *skipped(record), records.conditions(record)]
    return "\n\n".join(parts) + "\n"


LEGEND = (
    "*limit*: the busiest server's bytes over all its NICs at line rate, without any headers. "
    "Times are from the first process's start to the last one's end. *sent ÷ load*: bytes of all "
    "frames sent, by those of the rows that go between servers; *busiest NIC*: what it sent, by "
    "the mean of all. *CPU, machine*: share of all "
    "cores that was busy, with whatever else ran but at low priority; *job*: what the job's "
    "processes were charged; both of the busiest run. *wrong*: rows that differ from numpy's."
)
