"""Exchanges in the cluster: a job in it, the record of what its processes saw, and its page."""

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import records

from emulated_cluster import launch, probe, work
from emulated_cluster.fabric import Fabric
from emulated_cluster.options import add_job, add_rows, count, fabric_of
from fastjax.cli.shared.machine import usable_cores
from fastjax.scheduling import schedulers_in_programs

SCHEMA = "fastjax-emulated-cluster-2"
FAN_INS = (1, 3, 6)
# Of line rate: TCP needs a while to find it, and longer over long cables. Exchanges find its
# connections warm.
_TCP_SECONDS = 2.0
_TCP_DELAYS = 2000
_FLOW_SECONDS = 0.05
_FLOW_BYTES = 1 << 16  # at least, so that it is offered first
_FLOW_ROUNDS = 15

BUSY = 0.70

HEADER = ["scheme", "runs", "median s", "min", "max", "÷ limit", "wrong", "sent ÷ load"]
HEADER += ["busiest NIC", "CPU, machine", "job"]
LEGEND = (
    "*limit*: the busiest server's bytes over all its NICs at line rate, without any headers. "
    "Times are from the first process's start to the last one's end. *sent ÷ load*: bytes of all "
    "frames sent, by those of the rows that go between servers; *busiest NIC*: what it sent, by "
    "the mean of all. *CPU, machine*: share of all "
    "cores that was busy, with whatever else ran but at low priority; *job*: what the job's "
    "processes were charged; both of the busiest run. *wrong*: rows that differ from numpy's."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job(parser, rounds=5)
    add_rows(parser, seconds=2.0)
    add, known = parser.add_argument, schedulers_in_programs()
    add("--workloads", nargs="+", default=[*work.WORKLOADS], choices=work.WORKLOADS)
    add("--schedulers", nargs="+", default=known, choices=known, help="those to measure")
    add(
        "--baselines",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether to measure what there is without fastjax",
    )
    add("--baseline-rounds", type=count, default=3, help="of each baseline: the first rounds")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the cluster, measures everything in it and returns the record."""
    names = ("row_bytes", "seed", "rounds", "baseline_rounds", "seconds")
    with launch.recorded(SCHEMA, options, names) as (record, fabric):
        seconds = max(options.seconds, _TCP_SECONDS, _TCP_DELAYS * fabric.delay)
        record["tcp"] = reference(fabric, seconds)
        traffic = {
            name: work.draw(name, fabric, options.row_bytes, options.seconds, options.seed)
            for name in options.workloads
        }
        record["ours"] = launch.environment(fabric)
        record["start"] = start_ups(options, fabric)
        results = run_job(options, fabric, traffic)
    record["workloads"] = [
        summary(options, name, matrix, [result[name] for result in results])
        for name, matrix in traffic.items()
    ]
    return record


def reference(fabric: Fabric, seconds: float) -> dict[str, float]:
    """Goodput of plain TCP as a share of line rate, by number of flows into one port."""
    most = (fabric.servers - 1) * fabric.rails
    return {
        f"{fan_in}:1": round(probe.incast(fabric, fan_in, seconds), 4)
        for fan_in in FAN_INS
        if fan_in <= most
    }


def start_ups(options: argparse.Namespace, fabric: Fabric) -> dict[str, Any]:
    """What an exchange takes in which nothing crosses, and one with a single flow, by itself.

    The first is what it takes to collect the counts; what the second takes beyond that and beyond
    its bytes is a start-up.
    """
    nothing = np.eye(fabric.servers * fabric.rails, dtype=np.int64)
    flow = nothing.copy()
    size = max(_FLOW_SECONDS * fabric.rate / 8, _FLOW_BYTES)
    flow[0, -1] = math.ceil(size / options.row_bytes)
    alone = {"schedulers": ["direct"], "baselines": False, "rounds": _FLOW_ROUNDS}
    results = run_job(
        argparse.Namespace(**vars(options) | alone), fabric, {"nothing": nothing, "flow": flow}
    )
    seen = {
        name: merged([result[name]["direct"] for result in results]) for name in ("nothing", "flow")
    }
    seconds = {name: [round(s, 4) for s in each.seconds] for name, each in seen.items()}
    wrong = sum(each.wrong for each in seen.values())
    return {**seconds, "flow_bytes": int(flow[0, -1]) * options.row_bytes, "wrong": wrong}


def run_job(
    options: argparse.Namespace, fabric: Fabric, traffic: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """What each process measured, by workload and scheme."""
    names = ("row_bytes", "schedulers", "baselines", "rounds", "baseline_rounds", "seed")
    return launch.run(
        fabric,
        "worker.py",
        options,
        traffic={workload: matrix.tolist() for workload, matrix in traffic.items()},
        **{name: getattr(options, name) for name in names},
    )


def summary(
    options: argparse.Namespace,
    workload: str,
    traffic: np.ndarray,
    results: list[dict[str, Any]],
) -> dict[str, Any]:
    """One workload's part of the record."""
    fabric = fabric_of(options)
    load = work.load(traffic, fabric.rails, options.row_bytes)
    limit = load.seconds(fabric.rails, fabric.rate)
    return {
        "workload": workload,
        "traffic": traffic.tolist(),
        "load": dataclasses.asdict(load),
        "limit_s": limit,
        "nic_limit": load.nic * 8 / fabric.rate / limit,
        "schemes": [
            {"scheme": name} | _scheme([result[name] for result in results], limit, load.total)
            for name in results[0]
        ],
    }


class Merged(NamedTuple):
    """A program as all processes saw it: from the first start to the last end of each run.

    Attributes:
      wrong: rows or tokens.
      seconds: of each run.
      sent: bytes, shape (runs, servers, cables); the trunk comes last.
      machine_busy: share of all cores, whoever used them, of the busiest run.
      job_busy: the same of what the job's processes were charged.
    """

    wrong: int
    seconds: list[float]
    sent: np.ndarray
    machine_busy: float
    job_busy: float


def merged(parts: Sequence[dict[str, Any]]) -> Merged:
    """Of what each process saw."""
    seconds, machine, job = [], [], []
    runs = list(zip(*(part["runs"] for part in parts), strict=True))
    for run in runs:
        first = min(run, key=lambda part: part["start"])
        last = max(run, key=lambda part: part["end"])
        seconds.append(last["end"] - first["start"])
        (before, busy_before), (after, busy_after) = first["ticks"][0], last["ticks"][1]
        machine.append((busy_after - busy_before) / max(1, after - before))
        job.append(sum(part["cpu"] for part in run) / seconds[-1] / usable_cores())
    sent = np.array([[part["sent"] for part in run] for run in runs])
    wrong = sum(part["wrong"] for part in parts)
    return Merged(wrong, seconds, sent, round(max(machine), 3), round(max(job), 3))


def _scheme(parts: list[dict[str, Any]], limit: float, total: int) -> dict[str, Any]:
    """One scheme's part of the record."""
    skipped = [part["skipped"] for part in parts if "skipped" in part]
    if skipped:
        return {"skipped": skipped[0]}
    seen = merged(parts)
    sent = seen.sent.mean(0)  # by server and cable, of a mean run
    # Of the NICs, or of the trunks, whichever the scheme uses.
    used = max(sent[:, :-1], sent[:, -1:], key=np.sum)
    return {
        "wrong": seen.wrong,
        "runs": len(seen.seconds),
        "median_s": float(np.median(seen.seconds)),
        "min_s": min(seen.seconds),
        "max_s": max(seen.seconds),
        "by_limit": float(np.median(seen.seconds)) / limit,
        "sent_by_load": float(sent.sum()) / max(1, total),
        "busiest_by_mean": float(used.max() / max(1.0, used.mean())),
        "machine_busy": seen.machine_busy,
        "job_busy": seen.job_busy,
        "all_s": [round(s, 4) for s in seen.seconds],
    }


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
