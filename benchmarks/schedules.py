"""Schedules compared: completion over what no schedule can beat, simulated; with FAST's tables.

    python benchmarks/schedules.py --json schedules.json

Beside the library's schedulers, stand-ins for peers (`peers.py`). The exit status is 1 where the
median of `fast` without start-ups misses its target.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peers
import records
import schedule_tables
from published import LARGE, MEGA, PLANNER, planning_time
from schedule_tables import DRAWS, PER_SERVER, TARGETS, ZIPF
from workloads import WORKLOADS, Workload, drawn

from fastjax import Topology, make_plan
from fastjax.simulation import PRESETS, Fabric, simulate, simulate_transfers

OURS = ("direct", "spreadout", "rails", "relay", "balanced", "fast")
FORWARDING = {"pxn": peers.pxn, "two-tier": peers.two_tier}  # as rows come; they plan nothing
PIECES = 16  # of messages of those who hand rows on as they come
ALPHAS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99)
FIXED = ("balanced", "uniform")  # the same every time

_BARE = {"scale_up_latency": 0.0, "scale_out_latency": 0.0}
# Fabrics without start-ups and incast: at the rates of H200, and at those that FAST's own planner
# was judged at. Planning is left out there.
BARE: dict[str, dict[str, float]] = {
    "450:50": {"scale_up_bandwidth": 450e9, "scale_out_bandwidth": 50e9, **_BARE},
    "380:48.85": {
        "scale_up_bandwidth": 380e9,
        "scale_out_bandwidth": 48.85e9,
        "transfer_overhead": 0.0,
        **_BARE,
    },
}


def random(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
    """Blocks of any size from nothing to twice the mean, each as likely; FAST's uniform traffic."""
    devices = servers * per_server
    most = 2 * rows // devices
    return np.random.default_rng(seed).integers(0, most, (devices, devices), endpoint=True)


def zipf_draws(alpha: float) -> Workload:
    """Every pair draws from the numbers up to 1,000, of which k is as likely as k ** -alpha.

    The other reading of FAST's pair-Zipf traffic, and a milder one: most pairs are alike.
    """
    numbers = np.arange(1, 1001)
    weights = numbers**-alpha / (numbers**-alpha).sum()

    def make(servers: int, per_server: int, rows: int, seed: int) -> np.ndarray:
        devices = servers * per_server
        found = np.random.default_rng(seed).choice(numbers, (devices, devices), p=weights)
        return np.rint(found * (rows * devices / found.sum())).astype(np.int64)

    return make


KINDS: dict[str, Workload] = {
    **WORKLOADS,
    "balanced": WORKLOADS["uniform"],
    "random": random,
    **{f"pair-zipf {alpha:g}": drawn("pair-zipf", alpha) for alpha in ALPHAS},
    **{f"zipf draws {alpha:g}": zipf_draws(alpha) for alpha in ALPHAS},
}

PUBLISHED = ("h200", "mi300x")  # presets without guesses

# By table: fabrics, numbers of servers, workloads and bytes of a device.
TABLES: dict[str, tuple[Sequence[Any], ...]] = {
    "bound": (("450:50",), (2, 4, 8, 16), tuple(TARGETS), (100 * MEGA,)),
    "size": (
        PUBLISHED,
        (4,),
        ("balanced", "random", ZIPF, DRAWS, "expert 0.8", "trained"),
        (*(s * MEGA for s in (1, 4, 8, 16, 65)), *LARGE),
    ),
    "flow": (PUBLISHED, (4,), ("single flow",), (100 * MEGA, 1000 * MEGA)),
    "skew": (
        PUBLISHED,
        (4,),
        tuple(f"{kind} {a:g}" for kind in ("pair-zipf", "zipf draws") for a in ALPHAS),
        (250 * MEGA,),
    ),
    "servers": (
        PUBLISHED,
        (2, 4, 8, 12, 20, 30, 40),
        (ZIPF,),
        (100 * MEGA, 1000 * MEGA),
    ),
    "planner": (("380:48.85",), (2, 4, 8), tuple(PLANNER), (250 * MEGA,)),
}

Row = dict[str, Any]


def keys(tables: Sequence[str], servers: Sequence[int] | None) -> Iterator[Row]:
    """All kinds of exchange of these tables, or those of so many servers."""
    for table in tables:
        for values in itertools.product(*TABLES[table]):
            key = dict(zip(("fabric", "servers", "workload", "size"), values, strict=True))
            if servers is None or key["servers"] in servers:
                yield {"table": table} | key


def topology_of(key: Row) -> Topology:
    rates: dict[str, Any] = BARE.get(key["fabric"]) or PRESETS[key["fabric"]].rates
    return Topology(key["servers"], PER_SERVER, **rates)


def exchange(key: Row, seed: int) -> dict[str, float]:
    """Every contestant's time over the lower bound in one exchange; and who `auto` is."""
    topology = topology_of(key)
    # So many rows that rounding to whole ones does not show.
    rows = min(1_000_000 if key["table"] == "bound" else 100_000, key["size"])
    traffic = KINDS[key["workload"]](key["servers"], PER_SERVER, rows, seed)
    row_bytes = key["size"] // rows
    counted = key["fabric"] in PRESETS  # whether planning is
    incast = PRESETS[key["fabric"]].incast if counted else "none"

    def played(moves: np.ndarray, **options: Any) -> float:
        fabric = Fabric(incast=incast)
        timeline = simulate_transfers(
            moves, topology, row_bytes=row_bytes, fabric=fabric, **options
        )
        return timeline.completion_time

    plans = {
        name: make_plan(traffic, topology, scheduler=name, row_bytes=row_bytes)
        for name in (*OURS, "auto")
    }
    planning = {name: plan.planning_time() for name, plan in plans.items()}
    planning["as published"] = planning_time(topology.num_devices)
    times = {name: simulate(plans[name], incast=incast).completion_time for name in OURS}
    times["as published"] = played(peers.as_published(traffic, topology), balance_first=True)
    for name, made in FORWARDING.items():
        times[name] = played(made(traffic, topology), pieces=PIECES)
    auto = plans["auto"]
    times["auto"] = times[auto.scheduler]  # its planning, with the look at the others, is its own
    bound = auto.lower_bound()
    over = {
        name: round((seconds + counted * planning.get(name, 0.0)) / bound, 4)
        for name, seconds in times.items()
    }
    return over | {"auto takes": auto.scheduler, "bound_us": round(bound * 1e6, 3)}


def measure(key: Row, seeds: int) -> Row:
    """All draws of one kind of exchange."""
    draws = [exchange(key, seed) for seed in range(1 if key["workload"] in FIXED else seeds)]
    return key | {name: [draw[name] for draw in draws] for name in draws[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--servers", type=int, nargs="+", help="only these numbers of servers")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    wanted = list(keys(options.tables, options.servers))
    if options.seeds < 1 or not wanted:
        parser.error("--seeds must be 1 or more, and --servers a number that the tables have.")
    record = records.stamp(schedule_tables.SCHEMA) | {"seeds": options.seeds, "rows": []}
    for number, key in enumerate(wanted, 1):
        print(f"{number} of {len(wanted)}: {' '.join(map(str, key.values()))}", file=sys.stderr)
        record["rows"].append(measure(key, options.seeds))
    records.publish(schedule_tables.page(record, "Schedules compared"), record, options.json)
    return 0 if schedule_tables.all_met(record["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
