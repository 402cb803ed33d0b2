"""Tables of what gap.py found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import records

SCHEMA = "fastjax-gap-1"
WORST = 10  # problems that are listed

Cell = dict[str, Any]


def above(value: float, least: float) -> float:
    """By how much a value is larger; nothing is 0 larger than nothing."""
    return value / least - 1 if least else 0.0


def percent(value: float) -> str:
    """Less than a hundredth of a per cent, of either sign, is what solvers leave."""
    return f"{max(value, 0.0):.2%}"


def grouped(cells: Sequence[Cell], *names: str) -> dict[tuple[Any, ...], list[Cell]]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[name] for name in names), []).append(cell)
    return groups


def stages(cells: Sequence[Cell], by: str) -> str:
    """Costs of stages, for each value of `by` and each price."""
    header = [by, "start-up", "problems", "proved", "fast above the best, median", "90 %", "max"]
    header += ["above the bound, max", "matchings: fast", "best"]
    header += ["length above the busiest server's: fast", "best"]
    lines = []
    for (value, price), group in grouped(cells, by, "price").items():
        gaps = [above(c["fast"]["cost"], c["best"]["cost"]) for c in group]
        bounds = [above(c["fast"]["cost"], c["best"]["bound"]) for c in group]
        line = [str(value), price, str(len(group)), str(sum(c["best"]["optimal"] for c in group))]
        line += [percent(np.quantile(gaps, q)) for q in (0.5, 0.9, 1)]
        line.append(percent(max(bounds)))
        line += [f"{np.mean([c[who]['matchings'] for c in group]):.1f}" for who in ("fast", "best")]
        line += [
            percent(float(np.mean([above(c[who]["length"], c["busiest"]) for c in group])))
            for who in ("fast", "best")
        ]
        lines.append(line)
    return records.table(header, lines)


def worst(cells: Sequence[Cell]) -> str:
    """The problems with the largest gaps, if there are any."""

    def gap(cell: Cell) -> float:
        return above(cell["fast"]["cost"], cell["best"]["cost"])

    header = ["workload", "start-up", "servers", "seed", "fast above the best"]
    header += ["matchings: fast", "best", "length: fast", "best", "busiest server", "start-up"]
    lines = []
    for cell in sorted(cells, key=gap, reverse=True)[:WORST]:
        if gap(cell) < 1e-4:
            break
        line = [cell["workload"], cell["price"], str(cell["servers"]), str(cell["seed"])]
        line.append(percent(gap(cell)))
        line += [str(cell[who]["matchings"]) for who in ("fast", "best")]
        line += [f"{cell[who]['length']:,}" for who in ("fast", "best")]
        lines.append([*line, f"{cell['busiest']:,}", f"{cell['startup_rows']:,.1f}"])
    return records.table(header, lines)


def exchanges(cells: Sequence[Cell]) -> str:
    """Whole exchanges by what no schedule can beat."""
    header = ["servers", "start-up", "solved", "exchange above the fluid bound, median", "max"]
    header += ["where", "fluid bound above the simple one, max"]
    lines = []
    for (servers, price), group in grouped(cells, "servers", "price").items():
        solved = [c for c in group if c["fluid_s"] is not None]
        gaps = [above(c["exchange_s"], c["fluid_s"]) for c in solved]
        gained = [above(c["fluid_s"], c["lower_bound_s"]) for c in solved]
        line = [str(servers), price, str(len(solved))]
        if solved:
            where = solved[int(np.argmax(gaps))]
            line += [percent(float(np.median(gaps))), percent(max(gaps))]
            line += [f"{where['workload']}, seed {where['seed']}", percent(max(gained))]
        else:
            line += ["-"] * 4
        lines.append(line)
    return records.table(header, lines)


def page(record: dict[str, Any], title: str) -> str:
    cells = record["cells"]
    seeds = len({cell["seed"] for cell in cells})
    about = (
        f"{len(cells)} problems, {record['devices_per_server']} devices a server, {seeds} seeds. "
        "Stages cost a start-up each and their length. *start-up*: the latency of a stage, and the "
        "bytes that a device sends, at 50 GB/s. *best*: by integer programming, up to "
        f"{record['time_limit_s']:g} s for each problem; *proved*: no stages cost less. *bound*: "
        "what no stages cost less than, proved. Matchings and lengths are means."
    )
    fluid = (
        "Time of the whole exchange, simulated with a barrier after each stage, against the *fluid "
        "bound*: rows may be cut and relayed at will, nothing costs a start-up. *simple*: "
        "`Plan.lower_bound()`. Nothing here is a time of this machine."
    )
    parts = [f"# {title}", about, "## By servers", stages(cells, "servers")]
    parts += ["## By workload", stages(cells, "workload")]
    parts += ["## The largest gaps", "Lengths and start-ups in rows of a rail.", worst(cells)]
    parts += ["## Whole exchanges", fluid, exchanges(cells)]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"
