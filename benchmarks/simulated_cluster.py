"""How far the simulator is off: simulated exchanges beside those of the emulated cluster.

    python benchmarks/simulated_cluster.py --json benchmarks/results/simulated_cluster.json

Takes the record of a run of `benchmarks/emulated_cluster bench`, simulates each of its exchanges
with the topology that it was planned for, and compares completion times. NICs have the goodput that
plain TCP had there, and meeting senders lose what plain TCP lost; nothing is fitted to exchanges.
The exit status is 1 where a scheduler is off by more than 15 %.
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

SCHEMA = "fastjax-simulated-cluster-1"
RECORD = Path(__file__).parent / "results/emulated_cluster.json"
LARGEST_ERROR = 0.15


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
    return Topology(*shape, **planned), Topology(
        *shape, **planned | {"scale_out_bandwidth": goodput}
    )


def simulated(plan: Plan, topology: Topology, incast: Incast) -> dict[str, float]:
    """Seconds, by synchronization."""
    return {
        synchronization: simulate_transfers(
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
            seconds = simulated(plan, real, incast)
            found.append(
                {
                    "workload": workload["workload"],
                    "scheme": scheme["scheme"],
                    "scheduler": plan.scheduler,
                    "runs": scheme["runs"],
                    "measured": {k: scheme[f"{k}_s"] for k in ("median", "min", "max")},
                    "simulated": seconds,
                    "error": seconds["credit"] / scheme["median_s"] - 1,
                }
            )
    return found


def as_table(exchanges: Sequence[dict[str, Any]]) -> str:
    header = ["workload", "scheme", "runs", "measured s, median", "min", "max", "simulated s"]
    header += ["error", "error by barrier", "if free"]
    lines = []
    for each in exchanges:
        median = each["measured"]["median"]
        name = each["scheme"]
        name += "" if name == each["scheduler"] else f" ({each['scheduler']})"
        line = [each["workload"], name, str(each["runs"])]
        line += [f"{each['measured'][k]:.2f}" for k in ("median", "min", "max")]
        line += [f"{each['simulated']['credit']:.2f}", f"{each['error']:+.1%}"]
        line += [f"{each['simulated'][k] / median - 1:+.1%}" for k in ("barrier", "free")]
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
            simulated = one["simulated"]["credit"] / other["simulated"]["credit"]
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
        seconds = each["simulated"]["credit"]
        least[each["workload"]] = min(seconds, least.get(each["workload"], seconds))
    level = sum(e["simulated"]["credit"] <= 1.01 * least[e["workload"]] for e in exchanges)
    shortest = min(each["measured"]["median"] for each in exchanges)
    return (
        "What compares schedules is the ratio of their times, and errors of two times do not "
        f"cancel there. {level} of the {len(exchanges)} exchanges are simulated within 1 % of the "
        "best of their workload: which of several good schedules is better cannot be told from "
        f"this. Exchanges last {shortest:.1f} s and more, so start-ups and planning do not show, "
        "and TCP hardly loses where senders meet, so neither does incast."
    )


def page(record: dict[str, Any], title: str) -> str:
    worst = max(record["exchanges"], key=lambda each: abs(each["error"]))
    errors = [abs(each["error"]) for each in record["exchanges"]]
    about = (
        "Exchanges of [the emulated cluster](emulated_cluster.md), which moves real bytes through "
        "rate-limited links, beside simulated ones. The simulator has the cluster's links, the "
        "goodput that plain TCP had in it, and what plain TCP lost where senders met; nothing is "
        "fitted to exchanges. Errors are of the simulated time against the measured median, with "
        "stages in step by credit, as transports do it; what they would be for stages by barrier, "
        "or free, is beside it."
    )
    finding = (
        f"The largest error is {worst['error']:+.1%} ({worst['workload']}, {worst['scheme']}), the "
        f"median {np.median(errors):.1%}. Two cores run all 8 processes' kernels and TCP, so what "
        "was measured is late rather than early."
    )
    exchanges = record["exchanges"]
    off = max(abs(simulated / measured - 1) for *_, measured, simulated in ratios(exchanges))
    beside = f"Ratios are off by up to {off:.0%}."
    incast = f"Incast: {record['incast']}."
    parts = [f"# {title}", about, finding, as_table(exchanges), incast]
    parts += ["## Who is faster", limits(exchanges), beside, ratio_table(exchanges)]
    return "\n\n".join([*parts, f"Measured on: {records.conditions(record['measured_on'])}"]) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, default=RECORD, help="of the emulated cluster")
    parser.add_argument("--json", type=Path, help="write a record")
    options = parser.parse_args(arguments)
    measured = records.read(options.record)
    record = records.stamp(SCHEMA)
    record["measured_on"] = {name: measured[name] for name in ("machine", "versions")}
    record["incast"] = str(incast_of(measured["tcp"]))
    record["exchanges"] = compare(measured)
    sys.stdout.write(as_table(record["exchanges"]) + "\n")
    if options.json is not None:
        records.write(options.json, record)
    return int(any(abs(each["error"]) > LARGEST_ERROR for each in record["exchanges"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
