"""How close plans come to what no schedule can beat: completion over the lower bound.

By the simulator, at 450 and 50 GB/s without latency, 100 MB a device:

    python benchmarks/completion.py --json completion.json

The exit status is 1 where the median of times by barrier misses its target. Times by credit, which
is about how GPUs keep in step, are shown beside it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records
from workloads import WORKLOADS

from fastjax import Plan, Topology, make_plan, schedulers, simulate

SCHEMA = "fastjax-completion-2"
MODELS = ("barrier", "credit")
PER_SERVER = 8
# A device's 100 MB are 25,000 rows of 4 kB, as a model has them. The planner gets them as a million
# rows of 100 bytes, so that what it rounds to whole rows does not show.
TOKENS, SPLIT, ROW_BYTES = 25_000, 40, 100
# By workload and servers, what the median over seeds must not exceed.
EVEN: dict[int, float] = dict.fromkeys((2, 4, 8, 16), 1.03)
TARGETS: dict[str, dict[int, float]] = {
    "uniform": EVEN,
    "pair-zipf 0.8": EVEN,
    "expert 0.8": EVEN,
    "trained": EVEN,
    "hot receiver": EVEN | {2: 1.07},
    "single flow": dict.fromkeys((2, 4, 8, 16), 1.10),
}


def lower_bound(traffic: np.ndarray, topology: Topology, row_bytes: int) -> float:
    """Seconds that no schedule can beat, computed anew from the matrix alone.

    The larger of what the busiest server sends or receives over all its NICs, and what the busiest
    device sends or receives over all its links.
    """
    servers, per_server = topology.servers, topology.devices_per_server
    tiles = traffic.reshape(servers, per_server, servers, per_server).sum(axis=(1, 3))
    crossing = tiles * (1 - np.eye(servers, dtype=np.int64))
    server_rows = max(crossing.sum(axis=end).max() for end in (0, 1))
    moving = traffic * (1 - np.eye(len(traffic), dtype=np.int64))
    device_rows = max(moving.sum(axis=end).max() for end in (0, 1))
    out, up = topology.scale_out_bandwidth, topology.scale_up_bandwidth
    return row_bytes * max(server_rows / per_server / out, device_rows / (up + out))


def judge(plan: Plan) -> dict[str, float]:
    """One plan's measures, times as multiples of the lower bound."""
    bound = lower_bound(plan.traffic, plan.topology, plan.row_bytes)
    if not np.isclose(bound, plan.lower_bound(), rtol=1e-9, atol=0):
        raise AssertionError(f"Plan.lower_bound() is {plan.lower_bound()}, but {bound} by hand.")
    times = {m: simulate(plan, synchronization=m).completion_time / bound for m in MODELS}
    return times | {
        "predicted": plan.predicted_time() / bound,
        "stages": plan.num_stages,
    }


def measure(servers: int, workload: str, seeds: int, scheduler: str) -> dict[str, Any]:
    """All seeds of one workload on so many servers."""
    topology = Topology(
        servers,
        PER_SERVER,
        scale_up_bandwidth=450e9,
        scale_out_bandwidth=50e9,
        scale_up_latency=0,
        scale_out_latency=0,
    )
    judged = []
    for seed in range(1 if workload == "uniform" else seeds):
        traffic = SPLIT * WORKLOADS[workload](servers, PER_SERVER, TOKENS, seed)
        plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=ROW_BYTES)
        judged.append(judge(plan))
    measures = {name: [one[name] for one in judged] for name in judged[0]}
    target = TARGETS[workload][servers]
    met = {name: bool(np.median(measures[name]) <= target) for name in MODELS}
    return {"workload": workload, "servers": servers, "target": target, "met": met} | measures


def as_table(cells: Sequence[dict[str, Any]]) -> str:
    header = [
        "workload",
        "servers",
        "runs",
        "by barrier, median",
        "max",
        "by credit, median",
        "max",
    ]
    header += ["predicted, median", "max", "stages", "target"]
    header += ["met, by barrier", "met, by credit"]
    rows = []
    for cell in cells:
        row = [cell["workload"], f"{cell['servers']} x {PER_SERVER}", str(len(cell["stages"]))]
        for name in (*MODELS, "predicted"):
            row += [f"{np.median(cell[name]):.3f}", f"{max(cell[name]):.3f}"]
        row += [f"{np.median(cell['stages']):g}", f"{cell['target']:.2f}"]
        rows.append([*row, *("yes" if met else "no" for met in cell["met"].values())])
    return records.table(header, rows)


def page(record: dict[str, Any], title: str) -> str:
    work = record["workload"]
    about = (
        f"Completion as a multiple of the lower bound, simulated: scheduler "
        f"`{work['scheduler']}`, {work['bytes'] / 1e6:g} MB a device, 450 GB/s a device inside "
        f"servers and 50 GB/s between, no latency. Seeds 0 to {work['seeds'] - 1}. *By barrier*: "
        "a stage begins when the one before is over everywhere; *by credit*: when its sender has "
        "sent for the one before, and its receiver has received for it; *predicted*: by the "
        "planner's own cost model. Nothing here is a time of this machine."
    )
    parts = [f"# {title}", about, as_table(record["cells"]), records.conditions(record)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 8, 16], choices=EVEN)
    parser.add_argument("--workloads", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--scheduler", default="fast", choices=schedulers())
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, got {options.seeds}.")
    record = records.stamp(SCHEMA)
    record["workload"] = {
        "scheduler": options.scheduler,
        "bytes": TOKENS * SPLIT * ROW_BYTES,
        "row_bytes": ROW_BYTES,
        "devices_per_server": PER_SERVER,
        "seeds": options.seeds,
    }
    record["cells"] = [
        measure(servers, workload, options.seeds, options.scheduler)
        for workload in options.workloads
        for servers in options.servers
    ]
    print(page(record, "Completion over the lower bound"))
    if options.json:
        records.write(options.json, record)
    return 0 if all(cell["met"]["barrier"] for cell in record["cells"]) else 1


if __name__ == "__main__":
    sys.exit(main())
