"""Matchings against length: what the planner can choose from, the textbook's, and the optimum.

Every matching costs a start-up, so few are wanted; each way of having fewer of them makes the
stages longer together. Draws that trade-off for 4 to 40 servers of 8 devices:

    python benchmarks/frontier.py --json frontier.json --figure frontier.svg
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records
import textbook
from workloads import WORKLOADS

from fastjax import _core

SCHEMA = "fastjax-frontier-1"
PER_SERVER, ROWS = 8, 100_000
# The exact optimum takes too long for more servers.
MOST_SERVERS_SOLVED = 4
EXCESSES = (0.0, 0.01, 0.05)

Frontier = list[tuple[int, int]]


def server_rows(traffic: np.ndarray) -> np.ndarray:
    """Rows that each rail carries from server to server, rounded up."""
    servers = len(traffic) // PER_SERVER
    tiles = traffic.reshape(servers, PER_SERVER, servers, PER_SERVER).sum(axis=(1, 3))
    np.fill_diagonal(tiles, 0)
    return -(-tiles // PER_SERVER)


def planners_frontier(rows: np.ndarray) -> Frontier | None:
    """What the planner can choose from: matchings and length; None before it could say."""
    find = getattr(_core, "stage_frontier", None)
    return None if find is None else [(int(k), int(length)) for k, length in find(rows)]


def optimal_frontier(rows: np.ndarray) -> Frontier | None:
    """The best there is for each number of matchings, where it can be had."""
    if len(rows) > MOST_SERVERS_SOLVED:
        return None
    try:
        find = importlib.import_module("fastjax.optimal").frontier
    except (ImportError, AttributeError):
        return None
    return [(int(k), int(length)) for k, length in find(rows)]


def measure(workload: str, servers: int, seed: int) -> dict[str, Any]:
    rows = server_rows(WORKLOADS[workload](servers, PER_SERVER, ROWS, seed))
    lengths = [length for _, length in textbook.decompose(rows)]
    return {
        "workload": workload,
        "servers": servers,
        "seed": seed,
        "bound": int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max())),
        "textbook": [(len(lengths), sum(lengths))],
        "planner": planners_frontier(rows),
        "optimum": optimal_frontier(rows),
    }


def fewest(frontier: Frontier | None, longest: float) -> int | None:
    """Matchings that suffice for a length."""
    return min((k for k, length in frontier or () if length <= longest), default=None)


def undominated(frontier: Frontier) -> Frontier:
    """Those that nothing with as few matchings is shorter than."""
    kept: Frontier = []
    for k, length in sorted(frontier):
        if not kept or length < kept[-1][1]:
            kept.append((k, length))
    return kept


def as_table(cells: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds of how many matchings suffice."""
    header = ["workload", "servers", "seeds"]
    header += [
        f"{who}, {'at the bound' if not excess else f'within {excess:.0%}'}"
        for who in ("textbook", "planner", "optimum")
        for excess in EXCESSES[: 1 if who == "textbook" else None]
    ]
    lines = []
    for workload, servers in dict.fromkeys((c["workload"], c["servers"]) for c in cells):
        group = [c for c in cells if (c["workload"], c["servers"]) == (workload, servers)]
        line = [workload, str(servers), str(len(group))]
        for who in ("textbook", "planner", "optimum"):
            for excess in EXCESSES[: 1 if who == "textbook" else None]:
                found = [fewest(c[who], c["bound"] * (1 + excess)) for c in group]
                line.append("-" if None in found else f"{np.median(np.array(found)):g}")
        lines.append(line)
    return records.table(header, lines)


def draw(cells: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel for each workload and number of servers."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    workloads = list(dict.fromkeys(c["workload"] for c in cells))
    servers = list(dict.fromkeys(c["servers"] for c in cells))
    size = (3.2 * len(servers), 2.7 * len(workloads) + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(workloads), len(servers), sharey=True, squeeze=False)
    styles = {
        "planner": {"color": "#1f6fb4", "marker": "o", "markersize": 3, "linewidth": 1},
        "optimum": {"color": "#2a9d4b", "marker": "s", "markersize": 4, "linewidth": 1},
        "textbook": {"color": "#c23b22", "marker": "x", "markersize": 6, "linestyle": "none"},
    }
    for row, workload in zip(axes, workloads, strict=True):
        for panel, n in zip(row, servers, strict=True):
            for cell in cells:
                if (cell["workload"], cell["servers"]) != (workload, n):
                    continue
                for who, style in styles.items():
                    points = undominated(cell[who] or [])
                    panel.plot(
                        [k for k, _ in points],
                        [100 * (length / cell["bound"] - 1) for _, length in points],
                        alpha=0.6,
                        **style,
                    )
            panel.set_xscale("log", base=2)
            panel.set_xlim((n - 1) / 1.2, 1.2 * n * n)
            panel.set_xticks([n * 2**k for k in range(n) if 2**k <= n])
            panel.xaxis.set_major_formatter("{x:g}")
            panel.tick_params(labelsize=8)
            panel.set_title(f"{n} servers, {workload}", fontsize=9)
            panel.grid(True, which="major", linewidth=0.4, alpha=0.5)
    # From nothing to half as long again; what is longer nobody wants.
    axes[0][0].set_yscale("symlog", linthresh=0.1)
    axes[0][0].set_ylim(-0.03, 60)
    axes[0][0].yaxis.set_major_formatter("{x:g}")
    figure.supxlabel("matchings", fontsize=9)
    figure.supylabel("length above the bound, %", fontsize=9)
    handles = [Line2D([], [], label=who, **style) for who, style in styles.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(styles), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def page(record: dict[str, Any], title: str) -> str:
    about = (
        f"How many matchings suffice for stages that are together as long as the busiest server's "
        f"share of a NIC, or little longer; medians over seeds. {PER_SERVER} devices a server, "
        f"{ROWS} rows a device. *textbook*: Birkhoff's decomposition. *planner*: what `fast` can "
        "choose from. *optimum*: the best there is, solved exactly."
    )
    figure = [f"![matchings against length]({record['figure']})"] if record["figure"] else []
    parts = [f"# {title}", about, as_table(record["cells"]), *figure]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[4, 8, 12, 40])
    parser.add_argument(
        "--workloads", nargs="+", default=["pair-zipf 0.8", "expert 0.8"], choices=WORKLOADS
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the record")
    parser.add_argument("--figure", type=Path, help="file for the figure: .svg, .png or .pdf")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.servers) < 2:
        parser.error("--seeds must be 1 or more, --servers 2 or more.")
    record = records.stamp(SCHEMA)
    record["figure"] = options.figure.name if options.figure else None
    record["cells"] = [
        measure(workload, servers, seed)
        for workload in options.workloads
        for servers in options.servers
        for seed in range(options.seeds)
    ]
    for who in ("planner", "optimum"):
        if all(cell[who] is None for cell in record["cells"]):
            print(
                f"This fastjax cannot tell the {who}'s frontier: it is left out.", file=sys.stderr
            )
    print(page(record, "Matchings against length"))
    if options.figure:
        draw(record["cells"], options.figure)
    if options.json:
        records.write(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
