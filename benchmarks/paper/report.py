"""The page of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import records

from fastjax.simulation import INCAST, PRESETS
from paper import tables
from paper.published import MEMORY, STAGING_PAYS_FROM
from paper.verdicts import LEVEL, PEERS, Verdict, best_of, incast_of, judge, little_gained

Cell = dict[str, Any]
SCHEMA = "fastjax-paper-1"
_SHOWN = 30  # of those that miss a target

_ABOUT = """\
FAST's tables (arXiv 2505.09764) made anew: every contestant's transfers simulated, flow by flow,
by `fastjax.simulation`. Nothing here is a time of this machine or of any cluster. Cells are time ÷
lower bound, planning left out / included; medians over seeds.

| contestant | what it is |
| --- | --- |
| direct | every block straight to its target, all at once: RCCL, and NCCL without PXN |
| spreadout | shifted pairs of devices, one after another |
| rails | sprayed over the rails, chunk by chunk (RailS, arXiv 2510.19262); all servers side by \
side, in up to 8 pieces |
| relay | over each device's own NIC, handed on at the other end; side by side, in pieces |
| balanced | ours: fewest rows moved to balance the rails; side by side, in pieces |
| fast | ours: fewest rows moved, few stages, cut so that what happens inside servers is hidden |
| as published | FAST as its paper has it, written from the paper: rows balanced without regard to \
where they are for, Birkhoff with arbitrary matchings, stages uncut, all balance first |
| pxn | NCCL's manner, from 2.12 on: to the device of the own server that has the target's place, \
and over its NIC; as rows come, nothing balanced |
| two-tier | DeepEP's manner: own NIC to the same place in the target's server, which hands on \
as rows come; nothing balanced. Traffic here does not say which rows are of one token, so every \
row is sent for itself; where it does, DeepEP sends a token once to a server, and so do \
`fastjax.moe` and this peer in [tokens that cross once](deduplication.md) |
| auto | what the library takes by itself, by its cost model |
| optimal | ours with the best stages there are, solved for; up to 4 servers |

Planning is by the cost model (one core of a server of 2020), for *auto* that of the plan it takes
and of the prices it compares; that of *as published* by the paper's times, between which we draw a
line; *two-tier* and *pxn* plan nothing.

*pair-zipf* gives pairs shares by Zipf's law of their rank, in random order; in *zipf draws* each
pair draws its size from the numbers up to 1,000 with Zipf's law, which is milder. The paper says
only that traffic is Zipf-distributed over pairs."""


def page(record: dict[str, Any], title: str) -> str:
    cells = record["cells"]
    parts = [f"# {title}", _ABOUT, fabrics(), *targets(judge(cells))]
    for head, section in SECTIONS.items():
        found = section(cells)
        if found:
            parts += [f"## {head}", *found]
            parts += [f"![{head}]({name})" for name in record["figures"] if FIGURES[name] == head]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def fabrics() -> str:
    lines = [
        f"- `{name}`: {preset.source}: {preset.rates['scale_up_bandwidth'] / 1e9:g} and "
        f"{preset.rates['scale_out_bandwidth'] / 1e9:g} GB/s a device. Incast "
        f"{INCAST[preset.incast]}."
        for name, preset in PRESETS.items()
    ]
    return "\n".join(lines)


def targets(verdicts: Sequence[Verdict]) -> list[str]:
    lines = [
        [
            v.target,
            *(str(n) for n in (len(v.cells), len(v.missed), v.kinds, v.kinds_missed)),
            "yes" if v.met else "no",
        ]
        for v in verdicts
    ]
    header = ["target", "exchanges", "missed", "kinds of them", "missed by any seed", "met"]
    parts = ["## Targets", records.table(header, lines, texts=1)]
    return [*parts, *(missed(verdict) for verdict in verdicts if verdict.missed)]


def missed(verdict: Verdict) -> str:
    """The cells that miss a target, seeds together; the worst first."""
    header = ["preset", "servers", "traffic", "MB a device", "runs", "worst"]
    found: dict[tuple[str, ...], list[float]] = {}
    for cell, figure in verdict.missed:
        place = (cell["preset"], str(cell["servers"]), cell["workload"])
        taken = cell["contestants"]["auto"]["chosen"]
        best, _ = best_of(verdict.against, cell, incast_of(cell, verdict.incast))
        key = (*place, f"{cell['size'] / 1e6:g}", taken, best)
        found.setdefault(key, []).append(figure)
    lines = [
        [*key[:4], str(len(figures)), f"{max(figures):.3f}", *key[4:]]
        for key, figures in found.items()
    ]
    shown = records.table([*header, "auto takes", "fastest"], lines[:_SHOWN], texts=3)
    more = f"\n\nAnd {len(lines) - _SHOWN} that miss it by less." if len(lines) > _SHOWN else ""
    return f"Missed, {verdict.target}:\n\n{shown}{more}"


_INCASTS = {
    0: "With the preset's incast:",
    1: "With the preset's incast, and every sender counted as one, to however many it sends:",
    -1: "Without incast:",
}


def _by_incast(
    cells: Sequence[Cell], table: str, shown: Sequence[str], models: Sequence[int] = (0, -1)
) -> list[str]:
    chosen = tables.of_table(cells, table)
    if not chosen:
        return []
    names = (*tables.CONTESTANTS, "optimal")
    parts = []
    for which in models:
        parts += [_INCASTS[which], tables.over(chosen, shown, which, names)]
    return parts


def _traffic(cells: Sequence[Cell]) -> list[str]:
    return _by_incast(cells, "traffic", ("preset", "workload", "size"), (0, 1, -1))


def _size(cells: Sequence[Cell]) -> list[str]:
    return _by_incast(cells, "size", ("preset", "workload", "size"))


def _bandwidth(cells: Sequence[Cell]) -> list[str]:
    chosen = tables.of_table(cells, "size")
    about = "GB/s as FAST counts them: all bytes ÷ (devices x time), planning included."
    return [about, tables.algbw(chosen)] if chosen else []


def _published(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "size"):
        return []
    low, high = STAGING_PAYS_FROM
    about = (
        "Ratios of times, 4 servers of 8, planning included, least to largest over sizes and "
        "seeds; above 1, the first is faster."
    )
    staging = (
        f"The paper finds staging worse than balancing and then sending at once below {low} to "
        f"{high} MB a device. Here, H200, pair-Zipf 0.8: {tables.staging_pays(cells)}"
    )
    skew = "The same ratios at other exponents, 250 MB a device, for both readings of the traffic."
    even = "Balanced traffic, H200, 100 MB to 1 GB a device:"
    skewed = [skew, tables.claims_by_skew(cells)] if tables.of_table(cells, "skew") else []
    return [about, tables.claims(cells), *skewed, even, tables.balanced(cells), staging]


def _mild(cells: Sequence[Cell]) -> list[str]:
    return _by_incast(cells, "mild", ("preset", "servers", "workload", "size"))


def _skew(cells: Sequence[Cell]) -> list[str]:
    return _by_incast(cells, "skew", ("preset", "workload"))


def _servers(cells: Sequence[Cell]) -> list[str]:
    return _by_incast(cells, "servers", ("preset", "servers", "size"), (0, 1, -1))


def _planner(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "planner"):
        return []
    about = (
        "48.85 and 380 GB/s, no start-ups, no incast, planning left out. *published* is what "
        "FAST's planner predicts of its own plans; *as published here* is our rebuilding of it, "
        "simulated."
    )
    return [about, tables.planner(cells)]


def _ablations(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "ablations"):
        return []
    about = (
        "`fast` with one idea left out, pair-Zipf 0.8. *balance only*: sent all at once. *stages "
        "only*: the same stages for pairs of devices, nothing balanced. *uncut*: every matching is "
        "one stage. *any rows*: balanced without regard to which rows have least to move."
    )
    return [about, tables.parts(cells)]


def _overlap(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "overlap"):
        return []
    about = (
        "Time ÷ lower bound, planning left out, with the preset's incast, of the best of `direct`, "
        "`relay`, `balanced` and `fast`. *by credit*: a stage starts when the one before has "
        "ended, about as between GPUs, and as everywhere else on this page. *by window*: four "
        "stages are under way, so that start-ups overlap, and what one device sends to another "
        "goes in order, as between CPU hosts. *any cut*: pieces and stages also as the planner "
        "would have them if a start-up took 1, 2 or 5 µs, whichever is best."
    )
    return [about, tables.overlap(cells)]


def _memory(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "memory"):
        return []
    claimed, least, most = MEMORY
    about = (
        "Rows of staging buffers over rows of the exchange. *reserved*: what stage tables ask for, "
        "at both ends; *staged*: rows that balance puts down on their way out, or scale-out on "
        f"their way in. FAST's paper claims {claimed:.0%}; {least:.0%} to {most:.0%} were found in "
        "its runtime's buffer plan."
    )
    return [about, tables.memory(cells)]


def _scale(cells: Sequence[Cell]) -> list[str]:
    if not tables.of_table(cells, "scale"):
        return []
    about = (
        "Time ÷ lower bound, planning included, H200, pair-Zipf 0.8. ***predicted*** is by the "
        "planner's cost model, **not simulated**; *simulated* is with the preset's incast, as far "
        "as transfers can be listed in reasonable time and memory. *planning* by the model is "
        "that of one device's table from a matrix that lies in memory; on this machine it is "
        "`make_plan` in Python, once, from nothing: most of that is copying the matrix, and "
        "memory that is touched for the first time."
    )
    return [about, tables.scale(cells)]


def _nothing_gained(cells: Sequence[Cell]) -> list[str]:
    rows = []
    for (preset, servers, workload, size), gains in little_gained(cells):
        who = ", ".join(dict.fromkeys(best for _, best in gains))
        line = [preset, f"{servers} x 8", workload, f"{size / 1e6:g}", who]
        rows.append([*line, f"{gains[0][0]:.1%}", f"{gains[-1][0]:.1%}"])
    header = ["preset", "servers", "traffic", "MB a device", "best peer"]
    about = (
        f"Where `auto` is behind the best of {', '.join(PEERS)}, or no more than {LEVEL:.0%} "
        "faster, in any seed; planning included, with the preset's incast. What `auto` gains:"
    )
    shown = records.table([*header, "worst seed", "best seed"], rows, texts=3)
    return [about, shown] if rows else []


SECTIONS = {
    "By traffic": _traffic,
    "By size": _size,
    "By skew": _skew,
    "Fewer and more servers": _mild,
    "By number of servers": _servers,
    "Algorithmic bandwidth": _bandwidth,
    "Beside the published figures": _published,
    "The published planner": _planner,
    "What each idea is worth": _ablations,
    "If start-ups overlapped": _overlap,
    "Memory": _memory,
    "Up to 8,192 GPUs": _scale,
    "Where nothing is gained, or something lost": _nothing_gained,
}
FIGURES = {
    "paper_size.png": "By size",
    "paper_size_mild.png": "By size",
    "paper_skew.png": "By skew",
    "paper_servers.png": "By number of servers",
    "paper_ablations.png": "What each idea is worth",
}
