"""Tables of what was simulated, as multiples of the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import records

from paper.contest import ABLATIONS, MADE, MOST_SERVERS_LISTED, OURS, STAGED
from paper.grids import DRAWS, PER_SERVER, ZIPF
from paper.overlap import WAYS
from paper.published import BALANCED_ALGBW, CLAIMS, LARGE, MEGA, PLANNER, Claim
from paper.verdicts import incast_of, over_bound, own_incast, seconds

Cell = dict[str, Any]
Groups = dict[tuple[Any, ...], list[Cell]]

CONTESTANTS = (*OURS, *MADE, "auto")
_LABELS = ("preset", "servers", "workload", "size")
HEADS = {"preset": "preset", "servers": "servers", "workload": "traffic", "size": "MB a device"}


def of_table(cells: Sequence[Cell], table: str) -> list[Cell]:
    return [cell for cell in cells if cell["table"] == table]


def groups(cells: Sequence[Cell]) -> Groups:
    """Cells that differ in their seed only."""
    found: Groups = {}
    for cell in cells:
        found.setdefault(tuple(cell[name] for name in _LABELS), []).append(cell)
    return found


def labels(key: tuple[Any, ...], shown: Sequence[str]) -> list[str]:
    values: dict[str, Any] = dict(zip(_LABELS, key, strict=True))
    values["size"] = f"{values['size'] / MEGA:g}"
    return [str(values[name]) for name in shown]


def median(values: Sequence[float | None], form: str = ".3f") -> str:
    kept = [value for value in values if value is not None]
    return format(float(np.median(kept)), form) if kept else "-"


def two(cells: Sequence[Cell], name: str, which: int) -> str:
    """Time over lower bound, planning left out and included."""
    if name not in cells[0]["contestants"]:
        return "-"
    incast = incast_of(cells[0], which)
    without = median([over_bound(c, name, incast, planning=False) for c in cells])
    if cells[0]["contestants"][name]["planning"] is None:
        return f"{without} / -"
    return f"{without} / {median([over_bound(c, name, incast) for c in cells])}"


def over(
    cells: Sequence[Cell], shown: Sequence[str], which: int, names: Sequence[str] = CONTESTANTS
) -> str:
    """A line for each kind of exchange, a column for each contestant, medians over seeds."""
    found = groups(cells)
    who = [name for name in names if any(name in c["contestants"] for c in cells)]
    lines = []
    for key, group in found.items():
        chosen = dict.fromkeys(c["contestants"]["auto"]["chosen"] for c in group)
        lines.append(
            [*labels(key, shown), *(two(group, name, which) for name in who), ", ".join(chosen)]
        )
    header = [*(HEADS[name] for name in shown), *who, "auto takes"]
    return records.table(header, lines, texts=len(shown))


def algbw(cells: Sequence[Cell]) -> str:
    """GB/s as FAST counts them: all bytes over devices and time, planning included."""
    found = groups(cells)
    lines = []
    for key, group in found.items():
        gpus = group[0]["servers"] * PER_SERVER
        line = labels(key, ("preset", "workload", "size"))
        for name in CONTESTANTS:
            rates = [c["bytes"] / gpus / seconds(c, name, own_incast(c)) / 1e9 for c in group]
            line.append(median(rates, ".1f"))
        ideal = [c["bytes"] / gpus / c["lower_bound"] / 1e9 for c in group]
        lines.append([*line, median(ideal, ".1f")])
    header = ["preset", "traffic", "MB a device", *CONTESTANTS, "at the bound"]
    return records.table(header, lines, texts=2)


def claims(cells: Sequence[Cell]) -> str:
    """The paper's ratios, those of its stand-ins here, and ours."""
    header = ["preset", "traffic", "MB a device", "paper", "published", "as published here"]
    header += ["`auto` here", "what differs"]
    lines = []
    for claim in CLAIMS:
        chosen = claimed_cells(cells, claim)
        if not chosen:
            continue
        sizes = sorted({cell["size"] // MEGA for cell in chosen})
        theirs, ours = (ratios(chosen, claim.other, who) for who in (claim.one, "auto"))
        lines.append(
            [
                claim.preset,
                claim.workload,
                f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0]),
                f"{claim.who} ÷ {claim.against}",
                f"{claim.least:g} to {claim.most:g}",
                spread(theirs),
                spread(ours),
                agreement(theirs, claim),
            ]
        )
    return records.table(header, lines, texts=4)


def claimed_cells(cells: Sequence[Cell], claim: Claim) -> list[Cell]:
    return [
        cell
        for cell in of_table(cells, "size")
        if (cell["preset"], cell["workload"]) == (claim.preset, claim.workload)
        and cell["size"] in claim.sizes
    ]


def ratios(cells: Sequence[Cell], slow: str, fast: str) -> list[float]:
    """How many times as fast one is as the other, planning included."""
    return [seconds(c, slow, own_incast(c)) / seconds(c, fast, own_incast(c)) for c in cells]


def claims_by_skew(cells: Sequence[Cell]) -> str:
    """The ratios of the claims on pair-Zipf traffic at other exponents, medians over seeds."""
    chosen = of_table(cells, "skew")
    skewed = [c for c in CLAIMS if c.workload in (ZIPF, DRAWS) and c.sizes == LARGE]
    alphas = list(dict.fromkeys(cell["workload"].split()[-1] for cell in chosen))
    lines = []
    for claim in skewed:
        name = claim.workload.rpartition(" ")[0]
        here = [cell for cell in chosen if cell["preset"] == claim.preset]
        found = [
            ratios([c for c in here if c["workload"] == f"{name} {a}"], claim.other, claim.one)
            for a in alphas
        ]
        what = f"{claim.who} ÷ {claim.against}"
        line = [claim.preset, name, what, f"{claim.least:g} to {claim.most:g}"]
        lines.append([*line, *(median(each, ".2f") for each in found)])
    return records.table(["preset", "traffic", "paper", "published, 0.8", *alphas], lines, texts=2)


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def agreement(found: Sequence[float], claim: Claim) -> str:
    middle = float(np.median(found))
    if claim.least <= middle <= claim.most:
        return "Nothing: our median is inside the published range."
    side = "below" if middle < claim.least else "above"
    return f"Our median, {middle:.2f}, is {side} the published range. {claim.why}".rstrip()


def balanced(cells: Sequence[Cell]) -> str:
    """Balanced traffic: FAST's bandwidth against the paper's."""
    chosen = [
        cell
        for cell in of_table(cells, "size")
        if cell["preset"] == "h200" and cell["workload"] == "balanced" and cell["size"] >= 10**8
    ]
    if not chosen:
        return ""
    lines = []
    for name in ("direct", "two-tier", "as published", "auto"):
        rates = [c["bytes"] / 32 / seconds(c, name, own_incast(c)) / 1e9 for c in chosen]
        known = BALANCED_ALGBW.get(name)
        lines.append(
            [name, f"{known:g}" if known else "-", f"{min(rates):.1f} to {max(rates):.1f}"]
        )
    return records.table(["contestant", "published GB/s", "here GB/s"], lines, texts=1)


def staging_pays(cells: Sequence[Cell]) -> str:
    """From which size on stages beat balancing and sending at once, for the published and for ours.

    The former pays for its planning, which balancing alone needs little of.
    """
    chosen = [
        cell
        for cell in of_table(cells, "size")
        if (cell["preset"], cell["workload"]) == ("h200", ZIPF)
    ]
    parts = []
    for name in ("as published", "fast"):
        worse = {
            cell["size"]
            for cell in chosen
            if seconds(cell, name, own_incast(cell)) > seconds(cell, "rails", own_incast(cell))
        }
        sizes = sorted({cell["size"] for cell in chosen})
        first = next((s for s in sizes if all(w < s for w in worse)), None)
        if first is None:
            parts.append(f"`{name}` does not beat `rails` for good at any size")
        else:
            parts.append(f"`{name}` beats `rails` from {first / MEGA:g} MB on")
    return "; ".join(parts) + "."


def planner(cells: Sequence[Cell]) -> str:
    """The published planner's own times over the bound, and the rebuilt one's."""
    header = ["traffic", "servers", "published", "as published here", "`fast` here", "stages", ""]
    lines = []
    for (_, servers, workload, _), group in groups(of_table(cells, "planner")).items():
        who = ("as published", "fast")
        figures = [[over_bound(c, name, "none", planning=False) for c in group] for name in who]
        stages = (median([c["contestants"][n]["stages"] for c in group], "g") for n in who)
        lines.append(
            [
                workload,
                str(servers),
                f"{PLANNER[workload][servers]:.2f}",
                *(median(each, ".2f") for each in figures),
                *stages,
            ]
        )
    header[-2:] = ["stages, as published", "stages, `fast`"]
    return records.table(header, lines, texts=1)


def parts(cells: Sequence[Cell]) -> str:
    """What each idea is worth: with and without it."""
    names = ("fast", *ABLATIONS, "as published", "direct")
    return over(of_table(cells, "ablations"), ("preset", "servers", "size"), 0, names)


def overlap(cells: Sequence[Cell]) -> str:
    """Time over lower bound by how stages follow each other, planning left out."""
    header = ["preset", "servers", "traffic", "MB a device", "two-tier"]
    header += [f"ours, by {way}" for way in WAYS]
    lines = []
    for key, group in groups(of_table(cells, "overlap")).items():
        peer = median([cell["two-tier"] / cell["lower_bound"] for cell in group])
        lines.append([*labels(key, _LABELS), peer, *(_by_way(group, way) for way in WAYS)])
    return records.table(header, lines, texts=3)


def _by_way(cells: Sequence[Cell], way: str) -> str:
    times = median([cell["ways"][way]["completion"] / cell["lower_bound"] for cell in cells])
    names = dict.fromkeys(cell["ways"][way]["scheduler"] for cell in cells)
    return f"{times} ({', '.join(names)})"


def memory(cells: Sequence[Cell]) -> str:
    """Staging over the exchange's rows."""
    chosen = of_table(cells, "memory")
    header = ["traffic", "servers"]
    for name in STAGED:
        header += [f"`{name}`: reserved", "staged"]
    header += [f"{name}: staged" for name in MADE]
    lines = []
    for (_, servers, workload, _), group in groups(chosen).items():

        def share(name: str, what: str, group: list[Cell] = group) -> str:
            return median([c["contestants"][name][what] for c in group], ".0%")

        ours = (share(n, what) for n in STAGED for what in ("reserved", "staged"))
        lines.append([workload, str(servers), *ours, *(share(name, "staged") for name in MADE)])
    return records.table(header, lines, texts=1)


_PLANNED = ("fast", "balanced")


def scale(cells: Sequence[Cell]) -> str:
    """Large exchanges by the cost model, and simulated where their transfers can be listed."""
    header = ["MB a device", "GPUs"]
    for name in _PLANNED:
        header += [f"planning of {name}, ms: model", "this machine"]
    header += [f"{name}, predicted" for name in (*OURS, "auto")]
    header += [f"{name}, simulated" for name in MOST_SERVERS_LISTED]
    lines = []
    for (_, servers, _, size), group in groups(of_table(cells, "scale")).items():

        def over_it(name: str, what: str, group: list[Cell] = group) -> str:
            found = [(c["contestants"][name][what], c["lower_bound"]) for c in group]
            return median([None if time is None else time / bound for time, bound in found])

        line = [f"{size / MEGA:g}", f"{servers * PER_SERVER:,}"]
        for name in _PLANNED:
            found = [c["contestants"][name] for c in group]
            line += [median([e[w] * 1e3 for e in found], ".2f") for w in ("planning", "measured")]
        line += [over_it(name, "predicted") for name in (*OURS, "auto")]
        line += [over_it(name, "simulated") for name in MOST_SERVERS_LISTED]
        taken = ", ".join(dict.fromkeys(c["contestants"]["auto"]["chosen"] for c in group))
        stages = median([c["contestants"]["fast"]["stages"] for c in group], "g")
        lines.append([*line, stages, taken])
    return records.table([*header, "stages of fast", "auto takes"], lines, texts=0)
