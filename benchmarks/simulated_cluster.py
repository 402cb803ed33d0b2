"""How far the simulator is off: simulated exchanges beside those of the emulated cluster.

    python benchmarks/simulated_cluster.py --json benchmarks/results/simulated_cluster.json

Takes records of runs of `benchmarks/emulated_cluster bench`, simulates each exchange with the
topology that it was planned for, and compares completion times. NICs have the goodput that plain
TCP had there, meeting senders lose what plain TCP lost, and a start-up takes what that of a single
flow took; nothing is fitted to exchanges. The exit status is 1 where a scheduler is off by more
than 15 %, by the synchronization of the transport between CPU hosts.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records

import fastjax
from fastjax import Plan, Topology, make_plan
from fastjax.simulation import SYNCHRONIZATIONS, Fabric, Incast, simulate_transfers

SCHEMA = "fastjax-simulated-cluster-2"
RESULTS = Path(__file__).parent / "results"
RECORDS = tuple(RESULTS / f"emulated_cluster{which}.json" for which in ("", "_delay"))
LARGEST_ERROR = 0.15
OURS = "window"  # how the transport between CPU hosts has stages follow each other


def incast_of(tcp: dict[str, float]) -> Incast:
    """What plain TCP lost where several senders met, by a single one's goodput."""
    alone = tcp["1:1"]
    shares = {int(fan_in.partition(":")[0]): goodput / alone for fan_in, goodput in tcp.items()}
    counts = sorted(count for count in shares if count > 1)
    # That more senders get more is noise.
    left = np.minimum.accumulate([min(1.0, shares[count]) for count in counts])
    points = tuple(zip(counts, left.tolist(), strict=True))
    return Incast("measured", points, "plain TCP in the emulated cluster")


def topologies(measured: dict[str, Any]) -> tuple[Topology, Topology]:
    """What exchanges were planned for, and what there was."""
    shape = measured["fabric"]["servers"], measured["fabric"]["rails"]
    planned = measured["topology"]
    goodput = planned["scale_out_bandwidth"] * measured["tcp"]["1:1"]
    start = measured["start"]
    flow = float(np.median(start["flow"])) - start["flow_bytes"] / goodput
    real = {
        "scale_out_bandwidth": goodput,
        "scale_out_latency": max(0.0, flow - collecting(measured)),
    }
    return Topology(*shape, **planned), Topology(*shape, **planned | real)


def collecting(measured: dict[str, Any]) -> float:
    """Seconds until all counts are known, which is where a simulation begins."""
    return float(np.median(measured["start"]["nothing"]))


def simulated(plan: Plan, topology: Topology, incast: Incast, before: float) -> dict[str, float]:
    """Seconds, by synchronization, with so many before anything is sent."""
    return {
        synchronization: before
        + simulate_transfers(
            plan.transfers,
            topology,
            row_bytes=plan.row_bytes,
            fabric=Fabric(synchronization, incast),
        ).completion_time
        for synchronization in SYNCHRONIZATIONS
    }


def compare(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """All exchanges of a record, measured and simulated."""
    planned, real = topologies(measured)
    incast = incast_of(measured["tcp"])
    row_bytes = measured["options"]["row_bytes"]
    found = []
    for workload in measured["workloads"]:
        traffic = np.array(workload["traffic"])
        for scheme in workload["schemes"]:
            if scheme["scheme"] not in fastjax.schedulers() or "skipped" in scheme:
                continue
            plan = make_plan(traffic, planned, scheduler=scheme["scheme"], row_bytes=row_bytes)
            seconds = simulated(plan, real, incast, collecting(measured))
            found.append(
                {
                    "workload": workload["workload"],
                    "scheme": scheme["scheme"],
                    "scheduler": plan.scheduler,
                    "runs": scheme["runs"],
                    "measured": {k: scheme[f"{k}_s"] for k in ("median", "min", "max")},
                    "simulated": seconds,
                    "error": seconds[OURS] / scheme["median_s"] - 1,
                }
            )
    return found


def as_table(exchanges: Sequence[dict[str, Any]]) -> str:
    header = ["workload", "scheme", "runs", "measured s, median", "min", "max", "simulated s"]
    header += ["error", *(f"by {name}" for name in SYNCHRONIZATIONS if name != OURS)]
    lines = []
    for each in exchanges:
        median = each["measured"]["median"]
        name = each["scheme"]
        name += "" if name == each["scheduler"] else f" ({each['scheduler']})"
        line = [each["workload"], name, str(each["runs"])]
        line += [f"{each['measured'][k]:.3f}" for k in ("median", "min", "max")]
        line += [f"{each['simulated'][OURS]:.3f}", f"{each['error']:+.1%}"]
        others = (seconds for name, seconds in each["simulated"].items() if name != OURS)
        line += [f"{seconds / median - 1:+.1%}" for seconds in others]
        lines.append(line)
    return records.table(header, lines)


RATIOS = (("direct", "auto"), ("direct", "fast"), ("spreadout", "fast"), ("relay", "balanced"))


def ratios(exchanges: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, float, float]]:
    """Who is how many times as slow as whom: workload, the two, measured and simulated."""
    times = {(e["workload"], e["scheme"]): e for e in exchanges}
    found = []
    for workload in dict.fromkeys(workload for workload, _ in times):
        for slow, fast in RATIOS:
            if not {(workload, slow), (workload, fast)} <= set(times):
                continue
            one, other = times[workload, slow], times[workload, fast]
            measured = one["measured"]["median"] / other["measured"]["median"]
            simulated = one["simulated"][OURS] / other["simulated"][OURS]
            found.append((workload, slow, fast, measured, simulated))
    return found


def ratio_table(exchanges: Sequence[dict[str, Any]]) -> str:
    header = ["workload", "time of", "÷ time of", "measured", "simulated", "error"]
    lines = [
        [
            workload,
            slow,
            fast,
            f"{measured:.2f}",
            f"{simulated:.2f}",
            f"{simulated / measured - 1:+.1%}",
        ]
        for workload, slow, fast, measured, simulated in ratios(exchanges)
    ]
    return records.table(header, lines, texts=3)


def limits(exchanges: Sequence[dict[str, Any]]) -> str:
    """What this comparison cannot show."""
    least: dict[str, float] = {}
    for each in exchanges:
        seconds = each["simulated"][OURS]
        least[each["workload"]] = min(seconds, least.get(each["workload"], seconds))
    level = sum(e["simulated"][OURS] <= 1.01 * least[e["workload"]] for e in exchanges)
    errors = (abs(simulated / measured - 1) for *_, measured, simulated in ratios(exchanges))
    return (
        "What compares schedules is the ratio of their times, and errors of two times do not "
        f"cancel there. {level} of the {len(exchanges)} exchanges are simulated within 1 % of the "
        "best of their workload: which of several good schedules is better cannot be told from "
        f"this. Ratios are off by up to {max(errors, default=0):.0%}."
    )


def network(cluster: dict[str, Any]) -> str:
    """What exchanges went through, and how long."""
    shortest = min(each["measured"]["median"] for each in cluster["exchanges"])
    delay = cluster["fabric"]["delay"]
    cables = f"cables of {delay * 1e3:g} ms" if delay else "cables without delay"
    return (
        f"{cluster['fabric']['port_buffer'] // 1024} KiB in a port, {cables}. To collect counts "
        f"takes {cluster['collecting'] * 1e3:.1f} ms, a start-up {cluster['start_up'] * 1e3:.1f} "
        f"ms, exchanges {shortest:.3f} s and more. Incast: {cluster['incast']}."
    )


def finding(cluster: dict[str, Any]) -> str:
    exchanges = cluster["exchanges"]
    worst = max(exchanges, key=lambda each: abs(each["error"]))
    errors = [abs(each["error"]) for each in exchanges]
    return (
        f"The largest error is {worst['error']:+.1%} ({worst['workload']}, {worst['scheme']}), the "
        f"median {np.median(errors):.1%}."
    )


_ABOUT = """\
Exchanges of the emulated cluster, which moves real bytes through rate-limited links, beside
simulated ones: [long ones](emulated_cluster.md), where only bandwidth counts, and [short ones over
long cables](emulated_cluster_delay.md), where start-ups do. The simulator has the cluster's links,
the goodput that plain TCP had in it, what plain TCP lost where senders met, and the start-up of a
single flow by itself; before it begins, counts are collected, which takes what an exchange takes in
which nothing crosses. Nothing is fitted to exchanges.

Errors are of the simulated time against the measured median, with stages by window, as the
transport between CPU hosts has them; beside them, what they would be by the other ways in which the
simulator has stages follow each other. Two cores run all processes' kernels and TCP, so what was
measured is late rather than early."""


def page(record: dict[str, Any], title: str) -> str:
    parts = [f"# {title}", _ABOUT]
    for cluster in record["clusters"]:
        exchanges = cluster["exchanges"]
        parts += [f"## {cluster['title']}", network(cluster), finding(cluster), as_table(exchanges)]
        parts += ["Who is faster:", ratio_table(exchanges), limits(exchanges)]
        parts += [f"Measured on: {records.conditions(cluster['measured_on'])}"]
    return "\n\n".join(parts) + "\n"


def simulate_record(path: Path) -> dict[str, Any]:
    """One record's part of ours."""
    measured = records.read(path)
    _, real = topologies(measured)
    return {
        "title": "Long cables" if measured["fabric"]["delay"] else "Long exchanges",
        "measured_on": {name: measured[name] for name in ("machine", "versions")},
        "fabric": measured["fabric"],
        "collecting": collecting(measured),
        "start_up": real.scale_out_latency,
        "incast": str(incast_of(measured["tcp"])),
        "exchanges": compare(measured),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--records", type=Path, nargs="+", default=RECORDS, help="of the emulated cluster"
    )
    parser.add_argument("--json", type=Path, help="write a record")
    options = parser.parse_args(arguments)
    record = records.stamp(SCHEMA)
    record["clusters"] = [simulate_record(path) for path in options.records]
    records.publish(page(record, "simulated cluster"), record, options.json)
    exchanges = [each for cluster in record["clusters"] for each in cluster["exchanges"]]
    return int(any(abs(each["error"]) > LARGEST_ERROR for each in exchanges))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
