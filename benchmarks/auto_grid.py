"""Whether `auto` takes what is best: every scheduler's predicted time over a grid of problems.

    python benchmarks/auto_grid.py --json auto_grid.json

Cells that are done are kept in auto_grid.json.part, so that a run that was stopped goes on where it
was; they are dropped when the planner has changed. The exit status is 1 where `auto` is more than
1 % behind the best.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records
import resumed
from auto_tables import SCHEMA, TOLERANCE, Cell, page
from workloads import WORKLOADS

import fastjax
from fastjax import Plan, Topology, make_plan, simulate
from fastjax.schedule.transfers import SCALE_OUT

TIE = 0.001
TOPOLOGIES = ("1x8", "2x4", "3x5", "8x1", "4x4", "2x8", "4x8", "8x8", "16x8")
# GB/s of a device inside servers and between: H200 and MI300X of FAST's paper, and a slower server.
FABRICS = {"450:50": (450e9, 50e9), "448:12.5": (448e9, 12.5e9), "380:48.85": (380e9, 48.85e9)}
SIZES = tuple(2**k for k in (10, 13, 16, 19, 22, 25, 28, 30))
ROWS = 2**14  # of a device, unless it has fewer bytes


def contestants() -> list[str]:
    """What `auto` chooses from, simplest first; `optimal` takes too long to be one of them."""
    return [name for name in fastjax.schedulers() if name not in ("auto", "optimal")]


def problem(key: dict[str, Any]) -> tuple[np.ndarray, Topology, int]:
    """Traffic, topology and bytes of a row."""
    servers, per_server = (int(part) for part in key["topology"].split("x"))
    up, out = FABRICS[key["fabric"]]
    topology = Topology(servers, per_server, scale_up_bandwidth=up, scale_out_bandwidth=out)
    row_bytes = max(1, key["size"] // ROWS)
    traffic = WORKLOADS[key["workload"]](servers, per_server, key["size"] // row_bytes, key["seed"])
    return traffic, topology, row_bytes


def is_one_to_one(plan: Plan) -> bool:
    """Whether a device sends to one device at most in each stage, and receives from one at most.

    Only then do prediction and simulation mean the same: what meeting senders lose is not.
    """
    out = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    flows = np.unique(np.stack([out["stage"], out["src"], out["dst"]]), axis=1)
    senders, receivers = flows[[0, 1]], flows[[0, 2]]
    return all(np.unique(ends, axis=1).shape == ends.shape for ends in (senders, receivers))


def times(plan: Plan, simulated: bool) -> dict[str, float]:
    """What is predicted of a plan, and simulated of it with a barrier after each stage."""
    found = {"predicted": plan.predicted_time(), "stages": plan.num_stages}
    if simulated and is_one_to_one(plan):
        found["simulated"] = simulate(plan, synchronization="barrier").completion_time
    return found


def measure(key: dict[str, Any], simulated: bool = True) -> Cell:
    """One cell: all contestants, how far what auto takes is behind the best, and what looking took.

    Both as shares of the best one's time.
    """
    traffic, topology, row_bytes = problem(key)

    def plan(scheduler: str) -> Plan:
        return make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)

    chosen = plan("auto")
    found = {name: times(plan(name), simulated) for name in contestants()}
    predicted = {name: each["predicted"] for name, each in found.items()}
    least = min(predicted.values())
    best = next(name for name, seconds in predicted.items() if seconds <= least * (1 + TIE))
    taken = predicted[chosen.scheduler]
    auto = chosen.predicted_time()
    return key | {
        "lower_bound": chosen.lower_bound(),
        "schedulers": found,
        "best": best,
        "chosen": chosen.scheduler,
        "auto": auto,
        "behind": taken / least - 1 if least > 0 else 0.0,
        "looking": (auto - taken) / least if least > 0 else 0.0,
    }


def keys(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for topology, fabric, workload, size, seed in itertools.product(
        options.topologies, options.fabrics, options.workloads, options.sizes, range(options.seeds)
    ):
        yield {
            "topology": topology,
            "fabric": fabric,
            "workload": workload,
            "size": size,
            "seed": seed,
        }


def identity(key: dict[str, Any]) -> str:
    names = ("topology", "fabric", "workload", "size", "seed")
    return json.dumps([key[name] for name in names])


def fingerprint(simulated: bool) -> str:
    """Changes when the planner does, or what is asked of it."""
    package, here = Path(fastjax.__file__).parent, Path(__file__).parent
    sources = [Path(fastjax._core.__file__), *sorted(package.rglob("*.py"))]
    sources += [here / name for name in ("auto_grid.py", "workloads.py")]
    return resumed.digest(sources, simulated)


def finished(path: Path, wanted: str) -> dict[str, Cell]:
    """Cells of a run that was stopped."""
    return resumed.finished(path, wanted, identity)


def run(options: argparse.Namespace) -> list[Cell]:
    """All cells, from the file of those that are done where it has them."""
    return resumed.run(
        keys(options),
        lambda key: measure(key, options.simulated),
        identity,
        part=resumed.part_of(options.json) if options.json else None,
        state=fingerprint(options.simulated),
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, choices=TOPOLOGIES)
    parser.add_argument("--fabrics", nargs="+", default=list(FABRICS), choices=FABRICS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes a device")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--no-simulation", dest="simulated", action="store_false")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.sizes) < 1:
        parser.error("--seeds and --sizes must be 1 or more.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    record = records.stamp(SCHEMA)
    record["cells"] = run(options)
    print(page(record, "What auto takes"))
    if options.json:
        records.write(options.json, record)
        resumed.part_of(options.json).unlink()
    worst = max(cell["behind"] for cell in record["cells"])
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
