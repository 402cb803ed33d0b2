"""How long simulating takes: exchanges of many transfers, by scheduler.

    python benchmarks/simulation_time.py --json benchmarks/results/simulation_time.json

Processor time of `fastjax.simulate`, and of listing the plan's transfers, which comes before. The
exit status is 1 where 100,000 transfers take more than a second.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records

import fastjax
from fastjax import Topology, make_plan, simulate

SCHEMA = "fastjax-simulation-time-1"
SERVERS, PER_SERVER, ROWS, ROW_BYTES = (4, 16, 40), 8, 25_000, 4096
SCHEDULERS = ("direct", "spreadout", "balanced", "fast")
COUNTED = 100_000
MOST_SECONDS = 1.0  # for so many


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def measure(servers: int, scheduler: str, runs: int) -> dict[str, Any]:
    topology = Topology(servers, PER_SERVER)
    traffic = fastjax.traffic.pair_zipf(topology.num_devices, ROWS, exponent=0.8, seed=0)
    plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=ROW_BYTES)
    listing, transfers = seconds_of(lambda: plan.transfers)
    timed = [seconds_of(lambda: simulate(plan)) for _ in range(runs)]
    return {
        "devices": topology.num_devices,
        "scheduler": scheduler,
        "transfers": len(transfers),
        "messages": len(timed[0][1].messages),
        "listing_s": listing,
        "simulating_s": [seconds for seconds, _ in timed],
    }


def for_counted(cell: dict[str, Any]) -> float:
    """Seconds that so many transfers take."""
    return float(np.median(cell["simulating_s"])) * COUNTED / cell["transfers"]


def as_table(cells: Sequence[dict[str, Any]]) -> str:
    header = ["scheduler", "devices", "transfers", "messages", "runs", "median s", "min", "max"]
    lines = []
    for cell in cells:
        spent = cell["simulating_s"]
        counts = [f"{cell[name]:,}" for name in ("devices", "transfers", "messages")]
        figures = [f"{f(spent):.3f}" for f in (np.median, min, max)]
        lines.append(
            [cell["scheduler"], *counts, str(len(spent)), *figures, f"{for_counted(cell):.2f}"]
        )
    return records.table([*header, "s for 100,000 transfers"], lines, texts=1)


def page(record: dict[str, Any], title: str) -> str:
    about = (
        "Processor time of `fastjax.simulate`, once the plan's transfers are listed: pair-Zipf "
        f"0.8, {PER_SERVER} devices a server. `direct` has all its flows under way at once, "
        "`balanced` those of a piece."
    )
    parts = [f"# {title}", about, as_table(record["cells"]), records.conditions(record)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--servers", type=int, nargs="+", default=SERVERS)
    parser.add_argument("--json", type=Path, help="write a record")
    options = parser.parse_args(arguments)
    record = records.stamp(SCHEMA)
    record["cells"] = [
        measure(servers, scheduler, options.runs)
        for servers in options.servers
        for scheduler in SCHEDULERS
    ]
    sys.stdout.write(as_table(record["cells"]) + "\n")
    if options.json is not None:
        records.write(options.json, record)
    large = [cell for cell in record["cells"] if cell["transfers"] >= COUNTED]
    return int(any(for_counted(cell) > MOST_SECONDS for cell in large))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
