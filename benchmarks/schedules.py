"""Schedules compared: completion over what no schedule can beat, simulated; with FAST's figures.

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
from typing import Any, NamedTuple

import numpy as np
import peers
import records
from workloads import WORKLOADS, Workload, drawn

from fastjax import Topology, make_plan
from fastjax.simulation import INCAST, PRESETS, Fabric, simulate, simulate_transfers

SCHEMA = "fastjax-schedules-1"
PER_SERVER = 8
OURS = ("direct", "spreadout", "rails", "relay", "balanced", "fast")
FORWARDING = {"pxn": peers.pxn, "two-tier": peers.two_tier}  # as rows come; they plan nothing
CONTESTANTS = (*OURS, "as published", *FORWARDING, "auto")
PIECES = 16  # of messages of those who hand rows on as they come
ZIPF, DRAWS = "pair-zipf 0.8", "zipf draws 0.8"  # shares by rank; each pair draws for itself
ALPHAS = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99)
FIXED = ("balanced", "uniform")  # the same every time
MEGA = 10**6
LARGE = tuple(size * MEGA for size in (100, 250, 500, 1000))

# Without start-ups and incast, at the rates of H200. Planning is left out there.
BARE = "450:50"
BARE_RATES = {"scale_up_bandwidth": 450e9, "scale_out_bandwidth": 50e9}
BARE_RATES |= {"scale_up_latency": 0.0, "scale_out_latency": 0.0}

# Of `fast` without start-ups, by workload and servers: what the median must not exceed.
EVEN: dict[int, float] = dict.fromkeys((2, 4, 8, 16), 1.03)
TARGETS: dict[str, dict[int, float]] = {
    "uniform": EVEN,
    "pair-zipf 0.8": EVEN,
    "expert 0.8": EVEN,
    "trained": EVEN,
    "hot receiver": EVEN | {2: 1.07},
    "single flow": dict.fromkeys(EVEN, 1.10),
}

# Seconds of FAST's planner, by devices, 8 in a server, as its paper (arXiv 2505.09764) reports.
PLANNING = {16: 3.1e-6, 32: 25e-6, 64: 221e-6, 96: 805e-6, 320: 77e-3}


class Claim(NamedTuple):
    """How many times as fast FAST is as another, in its paper, on 4 servers of 8.

    Attributes:
      against: the paper's name of the other.
      other: the contestant that stands for it here.
      least, most: the range of the paper's values.
      fabric, sizes: where.
      workloads: on pair-Zipf traffic two, for both readings of it.
    """

    against: str
    other: str
    least: float
    most: float
    fabric: str
    sizes: tuple[int, ...] = LARGE
    workloads: tuple[str, ...] = (DRAWS, ZIPF)


CLAIMS = (
    Claim("NCCL", "direct", 1.2, 1.3, "h200"),
    Claim("DeepEP", "two-tier", 1.2, 1.5, "h200"),
    Claim("NCCL", "direct", 1.01, 1.1, "h200", workloads=("random",)),
    Claim("RCCL", "direct", 1.3, 2.6, "mi300x"),
    Claim("SpreadOut", "spreadout", 2.5, 2.8, "mi300x"),
    Claim("RCCL", "direct", 0.6, 0.75, "mi300x", sizes=(8 * MEGA,)),
)

Row = dict[str, Any]


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
    "bound": ((BARE,), (2, 4, 8, 16), tuple(TARGETS), (100 * MEGA,)),
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
}


def keys(tables: Sequence[str], servers: Sequence[int] | None) -> Iterator[Row]:
    """All kinds of exchange of these tables, or those of so many servers."""
    for table in tables:
        for values in itertools.product(*TABLES[table]):
            key = dict(zip(("fabric", "servers", "workload", "size"), values, strict=True))
            if servers is None or key["servers"] in servers:
                yield {"table": table} | key


def planning_time(devices: int) -> float:
    """Seconds of FAST's planner; between reported ones, a power of the number of devices."""
    known = np.log([*PLANNING]), np.log([*PLANNING.values()])
    return float(np.exp(np.interp(np.log(devices), *known)))


def exchange(key: Row, seed: int) -> dict[str, float]:
    """Every contestant's time over the lower bound in one exchange; and who `auto` is."""
    counted = key["fabric"] != BARE  # whether planning is
    rates: dict[str, Any] = PRESETS[key["fabric"]].rates if counted else BARE_RATES
    topology = Topology(key["servers"], PER_SERVER, **rates)
    # So many rows that rounding to whole ones does not show.
    rows = min(1_000_000 if key["table"] == "bound" else 100_000, key["size"])
    traffic = KINDS[key["workload"]](key["servers"], PER_SERVER, rows, seed)
    row_bytes = key["size"] // rows
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


_ABOUT = """\
Every contestant's transfers simulated, flow by flow, by `fastjax.simulation`: time ÷ lower bound,
medians over seeds. **Nothing here is a time of this machine or of any cluster.** 8 devices a
server. [Beside the paper](../../docs/paper.md) says what follows.

| contestant | what it is |
| --- | --- |
| direct | every block straight to its target, all at once: RCCL, and NCCL without PXN |
| spreadout | shifted pairs of devices, one after another |
| rails | sprayed over the rails, chunk by chunk (RailS, arXiv 2510.19262); all servers side by \
side, in up to 8 pieces |
| relay | over each device's own NIC, handed on at the other end; side by side, in pieces |
| balanced | ours: fewest rows moved to balance the rails; side by side, in pieces |
| fast | ours: fewest rows moved, few stages, cut so that what happens inside servers is hidden |
| as published | FAST as its paper (arXiv 2505.09764) has it, written from the paper: rows \
balanced without regard to where they are for, Birkhoff with arbitrary matchings, stages uncut, \
all balance first |
| pxn | NCCL's manner, from 2.12 on: to the device of the own server that has the target's place, \
and over its NIC; as rows come, nothing balanced |
| two-tier | DeepEP's manner: own NIC to the same place in the target's server, which hands on \
as rows come; nothing balanced, every row sent for itself ([tokens that cross \
once](deduplication.md) has it otherwise) |
| auto | what the library takes by itself, by its cost model |

*pair-zipf* gives pairs shares by Zipf's law of their rank, in random order; in *zipf draws* each
pair draws its size from the numbers up to 1,000 with Zipf's law, which is milder. The paper says
only that traffic is Zipf-distributed over pairs."""

_BARE = (
    "450 GB/s a device inside servers and 50 GB/s between, 100 MB a device, no latency, no incast, "
    "planning left out."
)
_PLANNING = (
    "Planning is included: by the cost model (one core of a server of 2020), for *auto* that of "
    "the plan it takes and of the prices it compares; for *as published* by the paper's times, "
    "between which we draw a line; *two-tier* and *pxn* plan nothing. Senders that meet lose by "
    "the preset's incast."
)


_FABRICS = "\n".join(
    f"- `{name}`: {preset.source}: {preset.rates['scale_up_bandwidth'] / 1e9:g} and "
    f"{preset.rates['scale_out_bandwidth'] / 1e9:g} GB/s a device. Incast {INCAST[preset.incast]}: "
    f"{INCAST[preset.incast].source}."
    for name, preset in PRESETS.items()
    if not preset.guesses
)
_CLAIMS = (
    "Ratios of times, 4 servers of 8, planning included, least to largest over sizes and seeds; "
    "above 1, the first is faster. Twice for pair-Zipf traffic, by both readings."
)
SECTIONS = {
    "bound": ("Without start-ups", _BARE),
    "size": ("By traffic and size", f"{_PLANNING}\n\n{_FABRICS}"),
    "flow": ("A single flow", ""),
    "skew": ("By skew", ""),
    "servers": ("By number of servers", ""),
}


def of_table(rows: Sequence[Row], table: str) -> list[Row]:
    return [row for row in rows if row["table"] == table]


def median(values: Sequence[float], form: str = ".3f") -> str:
    return format(float(np.median(values)), form)


def over(rows: Sequence[Row]) -> str:
    """A line for each kind of exchange, a column for each contestant."""
    lines = [
        [
            *(row["fabric"], row["workload"], str(row["servers"]), f"{row['size'] / MEGA:g}"),
            *(median(row[name]) for name in CONTESTANTS),
            ", ".join(dict.fromkeys(row["auto takes"])),
        ]
        for row in rows
    ]
    header = ["fabric", "traffic", "servers", "MB a device", *CONTESTANTS, "auto takes"]
    return records.table(header, lines)


def met(row: Row) -> bool:
    return bool(np.median(row["fast"]) <= TARGETS[row["workload"]][row["servers"]])


def all_met(rows: Sequence[Row]) -> bool:
    return all(map(met, of_table(rows, "bound")))


def targets(rows: Sequence[Row]) -> str:
    """How close `fast` comes without start-ups."""
    lines = [
        [
            *(row["workload"], f"{row['servers']} x {PER_SERVER}", str(len(row["fast"]))),
            *(median(row["fast"]), f"{max(row['fast']):.3f}"),
            f"{TARGETS[row['workload']][row['servers']]:.2f}",
            "yes" if met(row) else "no",
        ]
        for row in rows
    ]
    header = ["traffic", "servers", "runs", "fast, median", "max", "target", "met"]
    return records.table(header, lines)


def ratios(rows: Sequence[Row], slow: str, fast: str) -> list[float]:
    """How many times as fast one is as the other, draw by draw."""
    return [a / b for row in rows for a, b in zip(row[slow], row[fast], strict=True)]


def claims(rows: Sequence[Row]) -> str:
    """The paper's ratios, those of its stand-ins here, and ours."""
    header = ["fabric", "traffic", "MB a device", "paper", "published", "as published here"]
    header += ["median", "`auto` here"]
    lines = []
    for claim, workload in ((each, kind) for each in CLAIMS for kind in each.workloads):
        chosen = [
            row
            for row in rows
            if (row["fabric"], row["workload"]) == (claim.fabric, workload)
            and row["size"] in claim.sizes
        ]
        if not chosen:
            continue
        sizes = sorted({row["size"] // MEGA for row in chosen})
        theirs, ours = (ratios(chosen, claim.other, who) for who in ("as published", "auto"))
        lines.append(
            [
                *(claim.fabric, workload, " to ".join(map(str, (sizes[0], sizes[-1])))),
                *(f"FAST ÷ {claim.against}", f"{claim.least:g} to {claim.most:g}"),
                *(spread(theirs), median(theirs, ".2f"), spread(ours)),
            ]
        )
    return records.table(header, lines, texts=4)


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def page(record: dict[str, Any], title: str) -> str:
    rows = record["rows"]
    parts = [f"# {title}", _ABOUT]
    for table, (head, about) in SECTIONS.items():
        chosen = of_table(rows, table)
        if chosen:
            parts += [
                f"## {head}",
                about,
                targets(chosen) if table == "bound" else "",
                over(chosen),
            ]
    sized = of_table(rows, "size")
    if sized:
        parts += ["## Beside the published figures", _CLAIMS, claims(sized)]
    return "\n\n".join(part for part in [*parts, records.conditions(record)] if part) + "\n"


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
    record = records.stamp(SCHEMA) | {"seeds": options.seeds, "rows": []}
    for number, key in enumerate(wanted, 1):
        print(f"{number} of {len(wanted)}: {' '.join(map(str, key.values()))}", file=sys.stderr)
        record["rows"].append(measure(key, options.seeds))
    records.publish(page(record, "Schedules compared"), record, options.json)
    return 0 if all_met(record["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
