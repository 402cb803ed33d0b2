"""How far the stages of `fast` are from the cheapest ones there are, for few servers.

Stages cost a start-up each and as long as they are. The cheapest are found by integer programming
(fastjax.optimal), proved so where there is time; whole exchanges are compared with what no schedule
whatsoever can beat, by linear programming:

    python benchmarks/gap.py --json gap.json
"""

import argparse
import dataclasses
import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gap_tables
import numpy as np
import records
from frontier import PER_SERVER, server_rows
from workloads import WORKLOADS

from fastjax import Topology, make_plan, simulate
from fastjax.errors import UnsupportedError

ROWS = 100_000  # of a device: so many that rounding to whole rows does not show


@dataclasses.dataclass(frozen=True)
class Price:
    """What a start-up is worth: seconds, beside the bytes that a device sends."""

    latency: float
    bytes: int


PRICES = {
    "free": Price(0.0, 32_000_000),
    "10 µs, 4 MB": Price(10e-6, 4_000_000),
    "10 µs, 32 MB": Price(10e-6, 32_000_000),
    "10 µs, 256 MB": Price(10e-6, 256_000_000),
}


def topology_of(servers: int, price: Price) -> Topology:
    if price.latency:
        return Topology(servers, PER_SERVER, scale_out_latency=price.latency)
    return Topology(servers, PER_SERVER, scale_up_latency=0, scale_out_latency=0)


def solvers() -> Any:
    return importlib.import_module("fastjax.optimal")


def fluid_bound(traffic: np.ndarray, topology: Topology, row_bytes: int) -> float | None:
    try:
        return solvers().fluid_lower_bound(traffic, topology, row_bytes=row_bytes)
    except UnsupportedError:
        return None


def measure(
    workload: str, servers: int, seed: int, price_name: str, time_limit: float
) -> dict[str, Any]:
    """One problem: what `fast` does, and the best there is.

    Raises:
      AssertionError: `fast` is cheaper, or faster, than what is proved impossible.
    """
    price = PRICES[price_name]
    topology, row_bytes = topology_of(servers, price), price.bytes // ROWS
    traffic = WORKLOADS[workload](servers, PER_SERVER, ROWS, seed)
    rows = server_rows(traffic)
    startup = price.latency * topology.scale_out_bandwidth / row_bytes

    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=row_bytes)
    lengths = plan.matchings[1]
    cost = startup * len(lengths) + int(lengths.sum())
    best = solvers().solve_stages(rows, startup_rows=startup, time_limit=time_limit)
    seconds = simulate(plan, synchronization="barrier").completion_time
    fluid = fluid_bound(traffic, topology, row_bytes)
    check(cost, best.bound, "fast costs")
    check(seconds, fluid or 0.0, "an exchange takes")
    return {
        "workload": workload,
        "servers": servers,
        "seed": seed,
        "price": price_name,
        "startup_rows": startup,
        "busiest": int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max())),
        "fast": {"matchings": len(lengths), "length": int(lengths.sum()), "cost": cost},
        "best": {
            "matchings": len(best.lengths),
            "length": int(np.sum(best.lengths)),
            "cost": best.objective,
            "bound": best.bound,
            "optimal": bool(best.optimal),
            "seconds": best.seconds,
        },
        "exchange_s": seconds,
        "fluid_s": fluid,
        "lower_bound_s": plan.lower_bound(),
    }


def check(found: float, bound: float, what: str) -> None:
    if found < bound * (1 - 1e-6):
        raise AssertionError(f"{what} {found}, but no less than {bound} is possible.")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 3, 4, 5])
    parser.add_argument(
        "--workloads",
        nargs="+",
        default=["pair-zipf 0.4", "pair-zipf 0.8", "pair-zipf 1.2", "expert 0.8"],
        choices=WORKLOADS,
    )
    parser.add_argument("--prices", nargs="+", default=list(PRICES), choices=PRICES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each problem")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.servers) < 2 or options.time_limit <= 0:
        parser.error("--seeds must be 1 or more, --servers 2 or more, --time-limit above 0.")
    try:
        solvers()
    except ImportError as error:
        parser.error(f"this needs fastjax.optimal, which needs scipy: {error}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    record = records.stamp(gap_tables.SCHEMA)
    record["devices_per_server"] = PER_SERVER
    record["time_limit_s"] = options.time_limit
    record["cells"] = [
        measure(workload, servers, seed, price, options.time_limit)
        for servers, workload, price, seed in itertools.product(
            options.servers, options.workloads, options.prices, range(options.seeds)
        )
    ]
    print(gap_tables.page(record, "How far fast is from the best"))
    if options.json:
        records.write(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
