"""Which exchanges each table is made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from workloads import WORKLOADS, Workload, drawn

from fastjax import Topology
from fastjax.simulation import PRESETS
from paper.published import LARGE, MEGA, PLANNER

PER_SERVER = 8
ROWS = 100_000  # of a device, so that rounding to whole rows does not show
ZIPF = "pair-zipf 0.8"  # shares by rank
DRAWS = "zipf draws 0.8"  # each pair draws for itself
ALPHAS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99)


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
# The same every time.
FIXED = ("balanced", "uniform")

# What FAST's own planner was judged at.
_PLANNER = {
    "scale_up_bandwidth": 380e9,
    "scale_out_bandwidth": 48.85e9,
    "scale_up_latency": 0.0,
    "scale_out_latency": 0.0,
    "transfer_overhead": 0.0,
}

Key = dict[str, Any]
Lines = dict[str, Any]

# By table: presets, numbers of servers, workloads and bytes of a device.
TABLES: dict[str, Lines] = {
    "traffic": {
        "workloads": ("balanced", "random", ZIPF, DRAWS, "expert 0.8", "trained", "single flow"),
        "sizes": (100 * MEGA, 1000 * MEGA),
    },
    "size": {
        "workloads": ("balanced", "random", ZIPF, DRAWS, "expert 0.8", "trained"),
        "sizes": (*(s * MEGA for s in (1, 2, 4, 8, 16, 33, 65)), *LARGE),
    },
    "skew": {
        "workloads": tuple(f"{kind} {a:g}" for kind in ("pair-zipf", "zipf draws") for a in ALPHAS)
    },
    "servers": {"servers": (2, 4, 8, 12, 20, 30, 40), "sizes": (100 * MEGA, 1000 * MEGA)},
    "mild": {
        "servers": (2, 8),
        "workloads": ("balanced", "random", DRAWS, "expert 0.8", "trained"),
        "sizes": tuple(s * MEGA for s in (1, 4, 16, 65, 250)),
    },
    "ablations": {
        "servers": (2, 4, 8),
        "sizes": tuple(s * MEGA for s in (16, 100, 1000)),
    },
    "overlap": {
        "servers": (4, 8),
        "workloads": ("balanced", ZIPF, DRAWS, "expert 0.8", "trained"),
        "sizes": tuple(s * MEGA for s in (1, 4, 16, 65)),
    },
    "planner": {"presets": ("planner",), "servers": (2, 4, 8), "workloads": tuple(PLANNER)},
    "memory": {
        "presets": ("h200",),
        "servers": (2, 4, 8, 20, 40),
        "workloads": ("balanced", ZIPF, "trained"),
        "sizes": (100 * MEGA,),
    },
    "scale": {
        "presets": ("h200",),
        "servers": (40, 64, 128, 256, 512, 1024),
        "sizes": (100 * MEGA, 1000 * MEGA),
    },
}
_USUAL: Lines = {
    "presets": tuple(PRESETS),
    "servers": (4,),
    "workloads": (ZIPF,),
    "sizes": (250 * MEGA,),
}


def keys(tables: tuple[str, ...], seeds: int) -> Iterator[Key]:
    """All cells of these tables."""
    for table in tables:
        lines = _USUAL | TABLES[table]
        names = ("presets", "servers", "workloads", "sizes")
        for preset, servers, workload, size in itertools.product(*(lines[n] for n in names)):
            for seed in range(1 if workload in FIXED else seeds):
                yield {
                    "table": table,
                    "preset": preset,
                    "servers": servers,
                    "workload": workload,
                    "size": size,
                    "seed": seed,
                }


def topology(key: Key) -> Topology:
    rates: dict[str, Any] = _PLANNER if key["preset"] == "planner" else PRESETS[key["preset"]].rates
    return Topology(key["servers"], PER_SERVER, **rates)


def incasts(key: Key) -> tuple[str, ...]:
    """The preset's own model of senders that meet, the same with every sender counted, and none."""
    preset = PRESETS.get(key["preset"])
    return (preset.incast, f"{preset.incast}-literal", "none") if preset else ("none",)


def problem(key: Key) -> tuple[np.ndarray, Topology, int]:
    """Traffic, topology and bytes of a row."""
    size = key["size"]
    # Pairs of thousands of devices are many.
    rows = min(ROWS * 10 if key["table"] == "scale" else ROWS, size)
    traffic = KINDS[key["workload"]](key["servers"], PER_SERVER, rows, key["seed"])
    return traffic, topology(key), size // rows
