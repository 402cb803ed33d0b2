"""Matchings against length: what the planner looks at, shifted pairs, the textbook's, the optimum.

Every matching costs a start-up, so few are wanted; each way of having fewer of them makes the
stages longer together. Draws that trade-off for 4 to 40 servers of 8 devices, where start-ups cost
nothing, so that the planner goes as far as it ever does:

    python benchmarks/frontier.py --json frontier.json --figure frontier.svg frontier.png
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import frontier_figure
import numpy as np
import records
import textbook
from workloads import WORKLOADS

from fastjax import _core
from fastjax.errors import UnsupportedError

SCHEMA = "fastjax-frontier-1"
PER_SERVER, ROWS = 8, 100_000
# The exact optimum takes too long for more servers.
MOST_SERVERS_SOLVED = 4
# The planner stops where little is left to gain, within 1 %.
EXCESSES = {"planner": (0.01, 0.05), "optimum": (0.0, 0.01, 0.05)}

Frontier = list[tuple[int, int]]


def server_rows(traffic: np.ndarray) -> np.ndarray:
    """Rows that each rail carries from server to server, rounded up."""
    servers = len(traffic) // PER_SERVER
    tiles = traffic.reshape(servers, PER_SERVER, servers, PER_SERVER).sum(axis=(1, 3))
    np.fill_diagonal(tiles, 0)
    return -(-tiles // PER_SERVER)


def shifted_pairs(rows: np.ndarray) -> tuple[int, int]:
    """How many of SpreadOut's matchings, everyone to the server k further on, and how long."""
    servers = np.arange(len(rows))
    longest = [int(rows[servers, (servers + k) % len(rows)].max()) for k in servers[1:]]
    return sum(length > 0 for length in longest), sum(longest)


def planners_frontier(rows: np.ndarray) -> Frontier:
    """What the search for stages looks at."""
    return [(int(k), int(length)) for k, length in _core.stage_frontier(rows)]


def optimal_frontier(rows: np.ndarray) -> Frontier | None:
    """The best there is for each number of matchings, where it can be had."""
    if len(rows) > MOST_SERVERS_SOLVED:
        return None
    try:
        find = importlib.import_module("fastjax.optimal").frontier
        return [(int(k), int(length)) for k, length in find(rows)]
    except (ImportError, AttributeError, UnsupportedError):
        return None


def measure(workload: str, servers: int, seed: int) -> dict[str, Any]:
    rows = server_rows(WORKLOADS[workload](servers, PER_SERVER, ROWS, seed))
    lengths = [length for _, length in textbook.decompose(rows)]
    return {
        "workload": workload,
        "servers": servers,
        "seed": seed,
        "bound": int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max())),
        "textbook": [(len(lengths), sum(lengths))],
        "shifted": [shifted_pairs(rows)],
        "planner": planners_frontier(rows),
        "optimum": optimal_frontier(rows),
    }


def fewest(frontier: Frontier | None, longest: float) -> int | None:
    """Matchings that suffice for a length."""
    return min((k for k, length in frontier or () if length <= longest), default=None)


def as_table(cells: Sequence[dict[str, Any]]) -> str:
    """Medians over seeds: how many matchings suffice, and how long shifted pairs are."""
    header = ["workload", "servers", "seeds", "textbook, at the bound"]
    header += ["shifted pairs", "length ÷ bound"]
    header += [
        f"{who}, {'at the bound' if not excess else f'within {excess:.0%}'}"
        for who, excesses in EXCESSES.items()
        for excess in excesses
    ]
    lines = []
    for workload, servers in dict.fromkeys((c["workload"], c["servers"]) for c in cells):
        group = [c for c in cells if (c["workload"], c["servers"]) == (workload, servers)]
        figures: list[Sequence[float | None]] = [[c["textbook"][0][0] for c in group]]
        figures.append([c["shifted"][0][0] for c in group])
        figures.append([c["shifted"][0][1] / c["bound"] for c in group])
        figures += [
            [fewest(c[who], c["bound"] * (1 + excess)) for c in group]
            for who, excesses in EXCESSES.items()
            for excess in excesses
        ]
        lines.append([workload, str(servers), str(len(group)), *map(median, figures)])
    return records.table(header, lines)


def median(values: Sequence[float | None]) -> str:
    return "-" if None in values else f"{np.median(np.array(values)):.4g}"


def page(record: dict[str, Any], title: str) -> str:
    about = (
        f"How many matchings suffice for stages that are together as long as the busiest server's "
        f"share of a NIC, or little longer; medians over seeds. {PER_SERVER} devices a server, "
        f"{ROWS:,} rows a device. *textbook*: Birkhoff's decomposition. *shifted pairs*: "
        "everyone sends to the server k further on, for each k. *planner*: what the search of "
        "`fast` looks at when start-ups cost nothing; what it takes is one of these, by their "
        "price. *optimum*: the best there is, solved exactly."
    )
    figure = [f"![matchings against length]({name})" for name in record["figures"][:1]]
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
    parser.add_argument(
        "--figure", type=Path, nargs="+", default=[], help="files for the figure: .svg, .png"
    )
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.servers) < 2:
        parser.error("--seeds must be 1 or more, --servers 2 or more.")
    record = records.stamp(SCHEMA)
    record["figures"] = [path.name for path in options.figure]
    record["cells"] = [
        measure(workload, servers, seed)
        for workload in options.workloads
        for servers in options.servers
        for seed in range(options.seeds)
    ]
    if all(cell["optimum"] is None for cell in record["cells"]):
        print("The optimum's frontier cannot be had here: it is left out.", file=sys.stderr)
    print(page(record, "Matchings against length"))
    if options.figure:
        frontier_figure.draw(record["cells"], options.figure)
    if options.json:
        records.write(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
