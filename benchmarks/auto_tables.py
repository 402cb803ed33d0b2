"""Tables of what auto_grid.py found."""

import collections
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import records

SCHEMA = "fastjax-auto-grid-2"
LARGE = 2**25  # bytes of a device
TOLERANCE = 0.01

Cell = dict[str, Any]


def size_name(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def winners(cells: Sequence[Cell]) -> str:
    """Who is fastest, over all topologies of several servers."""
    sizes = sorted({cell["size"] for cell in cells})
    counts: dict[tuple[str, str, int], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for cell in cells:
        if not cell["topology"].startswith("1x"):
            counts[cell["workload"], cell["fabric"], cell["size"]][cell["best"]] += 1
    lines = [
        [workload, fabric]
        + [
            ", ".join(
                f"{name} {count}" for name, count in counts[workload, fabric, size].most_common()
            )
            for size in sizes
        ]
        for workload, fabric in dict.fromkeys((w, f) for w, f, _ in counts)
    ]
    header = ["workload", "GB/s", *map(size_name, sizes)]
    return records.table(header, lines, texts=len(header))


def shortfalls(cells: Sequence[Cell]) -> str:
    """How far what auto takes is behind, and what looking takes, by topology and fabric.

    Looking: in shares of the time, the median for large exchanges and the largest of all.
    """
    lines = []
    for topology, fabric in dict.fromkeys((cell["topology"], cell["fabric"]) for cell in cells):
        group = [c for c in cells if (c["topology"], c["fabric"]) == (topology, fabric)]
        worst = max(group, key=lambda cell: cell["behind"])
        late = sum(cell["behind"] > TOLERANCE for cell in group)
        where = f"{worst['workload']}, {size_name(worst['size'])}: "
        where += f"{worst['chosen']}, {worst['best']} is better"
        lines.append(
            [
                topology,
                fabric,
                str(len(group)),
                f"{max(worst['behind'], 0):.2%}",
                str(late),
                _looking([c for c in group if c["size"] >= LARGE]),
                f"{max(c['looking'] for c in group):.0%}",
                where if late else "-",
            ]
        )
    header = ["servers", "GB/s", "cells", "auto behind, max", "cells above 1 %"]
    header += [f"looking, from {size_name(LARGE)} on", "looking, max", "worst"]
    return records.table(header, lines)


def _looking(cells: Sequence[Cell]) -> str:
    return f"{statistics.median(c['looking'] for c in cells):.2%}" if cells else "-"


def model_against_simulator(cells: Iterable[Cell]) -> str:
    """The planner's predictions by simulated times, where those were taken."""
    ratios: dict[str, list[float]] = collections.defaultdict(list)
    for cell in cells:
        for name, found in cell["schedulers"].items():
            if found.get("simulated"):
                ratios[name].append(found["predicted"] / found["simulated"])
    lines = [
        [name, str(len(values))]
        + [f"{value:.3f}" for value in np.quantile(values, (0, 0.05, 0.5, 0.95, 1))]
        for name, values in ratios.items()
    ]
    header = ["scheduler", "cells", "min", "5 %", "median", "95 %", "max"]
    return records.table(header, lines, texts=1)


def page(record: dict[str, Any], title: str) -> str:
    cells = record["cells"]
    about = (
        f"{len(cells)} cells. *size* is what a device sends (what each sends to the hot one, or "
        "the hot one to each, or what the one flow has); rows are 1/16384 of it, one byte at "
        "least. Latencies are Topology's defaults. Of schedulers within 0.1 % the simplest counts "
        "as best. Nothing here is a time of this machine."
    )
    parts = [f"# {title}", about]
    looking = (
        "What `auto` takes is held against the best by itself. What it takes to look at the others "
        "is beside it, as a share of the best one's time: most of it where exchanges are short. "
        "One that could save less than a look takes is not looked at, and may be better."
    )
    parts += ["## How far auto is behind the best, by predicted time", looking, shortfalls(cells)]
    parts += ["## Who is fastest, and on how many topologies of several servers", winners(cells)]
    simulated = (
        "Predicted time, planning included, by the time simulated with a barrier after each stage, "
        "of plans whose stages are one-to-one: where senders meet, the two mean different things."
    )
    parts += ["## The cost model against the simulator", simulated, model_against_simulator(cells)]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"
