"""Tables of what schedules.py found, beside the figures of FAST's paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import records
from published import BALANCED_ALGBW, CLAIMS, LARGE, MEGA, PLANNER, Claim

from fastjax.simulation import INCAST, PRESETS

SCHEMA = "fastjax-schedules-1"
PER_SERVER = 8
ZIPF, DRAWS = "pair-zipf 0.8", "zipf draws 0.8"  # shares by rank; each pair draws for itself
CONTESTANTS = ("direct", "spreadout", "rails", "relay", "balanced", "fast")
CONTESTANTS += ("as published", "pxn", "two-tier", "auto")

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

Row = dict[str, Any]

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
_PLANNER = (
    "48.85 and 380 GB/s, no start-ups, no incast, planning left out. *published* is what FAST's "
    "own planner predicts of its plans."
)
_PLANNING = (
    "Planning is included: by the cost model (one core of a server of 2020), for *auto* that of "
    "the plan it takes and of the prices it compares; for *as published* by the paper's times, "
    "between which we draw a line; *two-tier* and *pxn* plan nothing. Senders that meet lose by "
    "the preset's incast."
)


def of_table(rows: Sequence[Row], *tables: str) -> list[Row]:
    return [row for row in rows if row["table"] in tables]


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
    for claim in CLAIMS:
        chosen = claimed(rows, claim)
        if not chosen:
            continue
        sizes = sorted({row["size"] // MEGA for row in chosen})
        theirs, ours = (ratios(chosen, claim.other, who) for who in ("as published", "auto"))
        lines.append(
            [
                *(claim.fabric, claim.workload, " to ".join(map(str, (sizes[0], sizes[-1])))),
                *(f"FAST ÷ {claim.against}", f"{claim.least:g} to {claim.most:g}"),
                *(spread(theirs), median(theirs, ".2f"), spread(ours)),
            ]
        )
    return records.table(header, lines, texts=4)


def claimed(rows: Sequence[Row], claim: Claim) -> list[Row]:
    kind = claim.fabric, claim.workload
    chosen = [row for row in of_table(rows, "size") if row["size"] in claim.sizes]
    return [row for row in chosen if (row["fabric"], row["workload"]) == kind]


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def balanced(rows: Sequence[Row]) -> str:
    """Balanced traffic: GB/s as FAST counts them, all bytes ÷ (devices x time)."""
    chosen = [
        row
        for row in of_table(rows, "size")
        if (row["fabric"], row["workload"]) == ("h200", "balanced") and row["size"] in LARGE
    ]
    lines = []
    for name in ("direct", "two-tier", "as published", "auto"):
        rates = [row["size"] / row[name][0] / row["bound_us"][0] / 1e3 for row in chosen]
        known = BALANCED_ALGBW.get(name)
        lines.append([name, f"{known:g}" if known else "-", spread(rates) if rates else "-"])
    return records.table(["contestant", "published GB/s", "here GB/s"], lines, texts=1)


def planner(rows: Sequence[Row]) -> str:
    """The published planner's own times over the bound, and the rebuilt one's."""
    lines = [
        [row["workload"], str(row["servers"]), f"{PLANNER[row['workload']][row['servers']]:.2f}"]
        + [median(row[name], ".2f") for name in ("as published", "fast")]
        for row in rows
    ]
    header = ["traffic", "servers", "published", "as published here", "`fast` here"]
    return records.table(header, lines, texts=1)


def fabrics() -> str:
    lines = [
        f"- `{name}`: {preset.source}: {preset.rates['scale_up_bandwidth'] / 1e9:g} and "
        f"{preset.rates['scale_out_bandwidth'] / 1e9:g} GB/s a device. Incast "
        f"{INCAST[preset.incast]}."
        for name, preset in PRESETS.items()
        if not preset.guesses
    ]
    return "\n".join(lines)


SECTIONS: dict[str, tuple[str, str, tuple[Callable[[Sequence[Row]], str], ...]]] = {
    "bound": ("Without start-ups", _BARE, (targets, over)),
    "size": ("By traffic and size", f"{_PLANNING}\n\n{fabrics()}", (over,)),
    "flow": ("A single flow", "", (over,)),
    "skew": ("By skew", "", (over,)),
    "servers": ("By number of servers", "", (over,)),
    "planner": ("The published planner", _PLANNER, (planner,)),
}


def page(record: dict[str, Any], title: str) -> str:
    rows = record["rows"]
    parts = [f"# {title}", _ABOUT]
    for table, (head, about, made) in SECTIONS.items():
        chosen = of_table(rows, table)
        if chosen:
            parts += [f"## {head}", about, *(make(chosen) for make in made)]
    if of_table(rows, "size"):
        about = (
            "Ratios of times, 4 servers of 8, planning included, least to largest over sizes and "
            "seeds; above 1, the first is faster. Twice for pair-Zipf traffic, by both readings."
        )
        even = "Balanced traffic, H200, 100 MB to 1 GB a device, all bytes ÷ (devices x time):"
        parts += ["## Beside the published figures", about, claims(rows), even, balanced(rows)]
    return "\n\n".join(part for part in [*parts, records.conditions(record)] if part) + "\n"
