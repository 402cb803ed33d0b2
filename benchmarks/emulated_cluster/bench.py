"""The measurement: a network, a job in it, and one record of what its processes saw."""

import dataclasses
import math
from typing import Any

import numpy as np
import records

from emulated_cluster import launch, probe, work
from emulated_cluster.fabric import Fabric, cluster
from emulated_cluster.options import BenchOptions
from emulated_cluster.report import SCHEMA
from emulated_cluster.worker import Task
from fastjax.cli.shared.machine import usable_cores

FAN_INS = (1, 3, 6)
# Of line rate: TCP needs a while to find it, and longer over long cables. Exchanges find its
# connections warm.
_TCP_SECONDS = 2.0
_TCP_DELAYS = 2000
_FLOW_SECONDS = 0.05
_FLOW_BYTES = 1 << 16  # at least, so that it is offered first
_FLOW_ROUNDS = 15


def run(options: BenchOptions) -> dict[str, Any]:
    """Makes the cluster, measures everything in it and returns the record.

    Raises:
      ClusterError: there can be no cluster, or the job failed; nothing of either is left.
    """
    record = records.stamp(SCHEMA)
    with cluster(options.fabric()) as fabric:
        record["fabric"] = dataclasses.asdict(fabric)
        seconds = max(options.seconds, _TCP_SECONDS, _TCP_DELAYS * fabric.delay)
        record["tcp"] = reference(fabric, seconds)
        traffic = {name: _draw(options, fabric, name) for name in options.workloads}
        record["options"] = {
            name: getattr(options, name)
            for name in ("row_bytes", "seed", "rounds", "baseline_rounds", "seconds")
        }
        record["topology"] = options.topology()
        record["ours"] = launch.environment(fabric)
        record["start"] = starting(options, fabric)
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


def starting(options: BenchOptions, fabric: Fabric) -> dict[str, Any]:
    """What an exchange takes in which nothing crosses, and one with a single flow, by itself.

    The first is what it takes to collect the counts; what the second takes beyond that and beyond
    its bytes is a start-up.
    """
    nothing = np.eye(fabric.servers * fabric.rails, dtype=np.int64)
    flow = nothing.copy()
    size = max(_FLOW_SECONDS * fabric.rate / 8, _FLOW_BYTES)
    flow[0, -1] = math.ceil(size / options.row_bytes)
    rounds = dataclasses.replace(
        options, schedulers=("direct",), baselines=False, rounds=_FLOW_ROUNDS
    )
    results = run_job(rounds, fabric, {"nothing": nothing, "flow": flow})
    seconds = {
        name: _merge([result[name]["direct"] for result in results], 1.0, 1)["all_s"]
        for name in ("nothing", "flow")
    }
    wrong = sum(result[name]["direct"]["wrong"] for result in results for name in seconds)
    return {**seconds, "flow_bytes": int(flow[0, -1]) * options.row_bytes, "wrong": wrong}


def _draw(options: BenchOptions, fabric: Fabric, workload: str) -> np.ndarray:
    return work.draw(
        workload,
        fabric.servers,
        fabric.rails,
        options.row_bytes,
        fabric.rate,
        options.seconds,
        options.seed,
    )


def run_job(
    options: BenchOptions, fabric: Fabric, traffic: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """What each process measured, by workload and scheme.

    Raises:
      ClusterError: one failed, or had not finished when time was up, with what they printed.
    """
    task = Task(
        fabric=dataclasses.asdict(fabric),
        traffic={workload: matrix.tolist() for workload, matrix in traffic.items()},
        row_bytes=options.row_bytes,
        schedulers=options.schedulers,
        baselines=options.baselines,
        rounds=options.rounds,
        baseline_rounds=options.baseline_rounds,
        topology=options.topology(),
        seed=options.seed,
    )
    return launch.run(fabric, "worker.py", options.timeout, dataclasses.asdict(task))


def summary(
    options: BenchOptions, workload: str, traffic: np.ndarray, results: list[dict[str, Any]]
) -> dict[str, Any]:
    """One workload's part of the record."""
    fabric = options.fabric()
    load = work.load(traffic, fabric.rails, options.row_bytes)
    limit = load.seconds(fabric.rails, fabric.rate)
    return {
        "workload": workload,
        "traffic": traffic.tolist(),
        "load": dataclasses.asdict(load),
        "limit_s": limit,
        "nic_limit": load.nic * 8 / fabric.rate / limit,
        "schemes": [
            {"scheme": name} | _merge([result[name] for result in results], limit, load.total)
            for name in results[0]
        ],
    }


def _merge(parts: list[dict[str, Any]], limit: float, total: int) -> dict[str, Any]:
    """One scheme as all processes saw it: from the first start to the last end."""
    skipped = [part["skipped"] for part in parts if "skipped" in part]
    if skipped:
        return {"skipped": skipped[0]}
    runs = list(zip(*(part["runs"] for part in parts), strict=True))
    merged = [merge_run(run) for run in runs]
    seconds = [run["seconds"] for run in merged]
    # By server and cable, of a mean run.
    sent = np.mean([[part["sent"] for part in run] for run in runs], axis=0)
    # Of the NICs, or of the trunks, whichever the scheme uses.
    used = max(sent[:, :-1], sent[:, -1:], key=np.sum)
    return {
        "wrong": sum(part["wrong"] for part in parts),
        "runs": len(seconds),
        "median_s": float(np.median(seconds)),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "by_limit": float(np.median(seconds)) / limit,
        "sent_by_load": float(sent.sum()) / max(1, total),
        "busiest_by_mean": float(used.max() / max(1.0, used.mean())),
        "sent": sent.round().astype(int).tolist(),
        "machine_busy": round(max(run["machine"] for run in merged), 3),
        "job_busy": round(max(run["job"] for run in merged), 3),
        "all_s": [round(s, 4) for s in seconds],
    }


def merge_run(run: tuple[dict[str, Any], ...]) -> dict[str, float]:
    """One run as all processes saw it."""
    first = min(run, key=lambda part: part["start"])
    last = max(run, key=lambda part: part["end"])
    seconds = last["end"] - first["start"]
    (before, busy_before), (after, busy_after) = first["ticks"][0], last["ticks"][1]
    return {
        "seconds": seconds,
        # Of all cores, whoever used them; then what the job's processes were charged.
        "machine": (busy_after - busy_before) / max(1, after - before),
        "job": sum(part["cpu"] for part in run) / seconds / usable_cores(),
    }
