"""What it is worth that a token crosses once to each server, in layers of known models, simulated.

    python benchmarks/deduplication.py --json deduplication.json

Cells that are done are kept in deduplication.json.part, so that a run that was stopped goes on. The
exit status is 1 where a time is impossible: what is faster than NICs are, say.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deduplication_tables
import numpy as np
import records
import resumed
from paper import peers, rails

from fastjax import _core, traffic
from fastjax.chunking import CANDIDATES, LayerTimes, Parts, layer_time, schedule
from fastjax.cli.simulate import layers
from fastjax.moe import choosing
from fastjax.moe.servers import Servers
from fastjax.simulation import PRESETS, Fabric, simulate_transfers
from fastjax.traffic import ROUTINGS, LayerTraffic, Routing, layer_traffic

PRESET = "h200"
MODELS = ("deepseek-v3", "kimi-k2", "qwen3-235b", "gpt-oss-120b")
EXPONENTS = (0.0, 0.8)
OF_CHOICES = (0.0, 0.8, 1.2)
TOKENS = 4096
ELEMENT_BYTES = 2  # bf16, out and back
EXPERTS = 256  # of the layers in which the default is judged
PIECES = 16  # as for the same peers in benchmarks/paper

Cell = dict[str, Any]


@functools.lru_cache(maxsize=1)  # the next problem mostly differs in its rows' size only
def routed(
    routing: Routing, servers: int, exponent: float, seed: int
) -> tuple[np.ndarray, LayerTraffic]:
    """What tokens choose, and the traffic that comes of it."""
    devices = servers * PRESETS[PRESET].devices_per_server
    choices = routing.choices(devices, TOKENS, exponent=exponent, seed=seed)
    return choices, layer_traffic(choices, servers=servers, num_experts=routing.num_experts)


class Problem:
    """A layer on a fabric."""

    def __init__(self, routing: Routing, servers: int, exponent: float, seed: int, row: int):
        self.topology = PRESETS[PRESET].topology(servers)
        self.fabric = Fabric(incast=PRESETS[PRESET].incast)
        self.routing = routing
        self.choices, self.traffic = routed(routing, servers, exponent, seed)
        self.size = layers.row_bytes(row, routing.top_k, routing.num_experts // servers)

    def ours(self, *, once: bool) -> layers.Layer:
        way = layers.once if once else layers.each_choice
        return way("auto", self.traffic, self.topology, self.fabric, self.size)

    def default(self) -> bool:
        """Whether `moe.dispatch` deduplicates if nobody says so."""
        topology = self.topology
        servers = Servers(topology, tuple(range(topology.num_devices)), self.routing.num_experts)
        tokens = choosing.Tokens(TOKENS, self.routing.top_k, self.size.row, self.size.crossing)
        return choosing.crosses_once(servers, tokens, "auto")

    def two_tier(self, *, once: bool) -> float:
        """Seconds that the peer takes, both ways; it plans nothing."""
        there = self.traffic.each
        if once:
            there = peers.two_tier_once(self.choices, self.topology, self.routing.num_experts)
        back = peers.pxn(np.ascontiguousarray(there.T), self.topology)
        crossing = self.size.crossing if once else self.size.row
        return self.played(peers.two_tier(there, self.topology), crossing) + self.played(
            back, self.size.row
        )

    def once_for_each_device(self) -> float:
        """Ours, if a row that several experts of a device want were copied there once."""
        owner = self.choices // (self.routing.num_experts // self.topology.num_devices)
        again = np.diff(owner, axis=2, prepend=-1) == 0  # choices are in rising order
        traffic = layer_traffic(
            np.where(again, -1, self.choices),
            servers=self.topology.servers,
            num_experts=self.routing.num_experts,
        )
        return layers.once("auto", traffic, self.topology, self.fabric, self.size).seconds

    def bound(self, *, once: bool) -> float:
        """Seconds that the busiest server's NICs need at their full rate, both ways."""
        n, m = self.topology.servers, self.topology.devices_per_server
        rows = self.traffic.crossing if once else self.traffic.each
        pairs = rows.reshape(n, m, n, m).sum((1, 3))
        np.fill_diagonal(pairs, 0)
        busiest = int(max(pairs.sum(0).max(), pairs.sum(1).max()))
        size = self.size.row + (self.size.crossing if once else self.size.row)
        return busiest * size / (m * self.topology.scale_out_bandwidth)

    def parts(self, chunks: int) -> list[Parts]:
        """What each of so many chunks of the tokens takes, deduplicated, with idle experts."""
        found = []
        for choices in np.array_split(self.choices, chunks, axis=1):
            part = layer_traffic(
                choices, servers=self.topology.servers, num_experts=self.routing.num_experts
            )
            fabric = self.topology, self.fabric
            found.append(
                layers.in_lanes("auto", part, *fabric, self.size, experts=0.0, deduplicate=True)
            )
        return found

    def default_chunks(self) -> int:
        """The cost model's best number of chunks, forward and with experts that do nothing."""
        routing, size = self.routing, self.size
        return layer_time(
            self.topology,
            TOKENS,
            routing.top_k,
            size.row,
            routing.num_experts,
            seconds_a_row=0.0,
            deduplicate=True,
            chunk_overhead=0.0,
        ).chunks

    def handed_on(self) -> float:
        """That, if rows were also copied inside servers as they land, and summed as they come."""
        there = peers.two_tier_once(self.choices, self.topology, self.routing.num_experts)
        n, m = self.topology.servers, self.topology.devices_per_server

        def moves(traffic: np.ndarray) -> np.ndarray:
            balanced = rails.balanced_rails(traffic, n, m)
            return rails.staged_transfers(traffic, balanced, balanced.lengths().reshape(-1, 1))

        back = moves(np.ascontiguousarray(there.T))
        return self.played(moves(there), self.size.crossing) + self.played(back, self.size.row)

    def played(self, moves: np.ndarray, row_bytes: int) -> float:
        return simulate_transfers(
            moves, self.topology, row_bytes=row_bytes, fabric=self.fabric, pieces=PIECES
        ).completion_time


def both_ways(parts: Sequence[Parts]) -> float:
    """Seconds if the way back begins when the last token has arrived."""
    there = [Parts(part.planning, part.out, part.copies) for part in parts]
    back = [Parts(sums=part.sums, back=part.back) for part in parts]
    return schedule(there).total + schedule(back).total


def in_chunks(parts: Sequence[Parts]) -> dict[str, float]:
    """Seconds if everything starts as soon as it can, and how long lanes are busy."""
    times = LayerTimes.of(schedule(parts), len(parts), deduplicated=True)
    return {"total": times.total, "network": times.network, "inside": times.inside}


def layer(key: Cell) -> Cell:
    """A model's layer: ours and the peer, deduplicated and not."""
    routing = ROUTINGS[key["model"]]
    assert routing.width is not None  # all of them have one
    row = routing.width * ELEMENT_BYTES
    problem = Problem(routing, key["servers"], key["exponent"], key["seed"], row)
    each, once = (problem.ours(once=way) for way in (False, True))
    parts = {chunks: problem.parts(chunks) for chunks in CANDIDATES}
    return key | {
        "device_bytes": TOKENS * row,
        "crossing_per_token": {
            "each": problem.traffic.crossing_per_token(deduplicate=False),
            "once": problem.traffic.crossing_per_token(deduplicate=True),
        },
        "taken": {"each": each.taken, "once": once.taken},
        "default": "once" if problem.default() else "each",
        "bound": {name: problem.bound(once=name == "once") for name in ("each", "once")},
        "seconds": {
            "each": each.seconds,
            "once": once.seconds,
            "two-tier each": problem.two_tier(once=False),
            "two-tier once": problem.two_tier(once=True),
            "once for each device": problem.once_for_each_device(),
            "in 2 parts": both_ways(parts[2]),
            "in 4 parts": both_ways(parts[4]),
            "handed on": problem.handed_on(),
        },
        "chunks": {str(chunks): in_chunks(each) for chunks, each in parts.items()},
        "default_chunks": problem.default_chunks(),
    }


def choice(key: Cell) -> Cell:
    """Whether the default is right: both ways, as `auto` plans them."""
    routing = Routing(EXPERTS, key["top_k"])
    problem = Problem(routing, key["servers"], key["exponent"], 0, key["row_bytes"])
    found = {"each": problem.ours(once=False).seconds}
    if key["servers"] > 1:
        found["once"] = problem.ours(once=True).seconds
    return key | {"default": "once" if problem.default() else "each", "seconds": found}


KINDS = {"layer": layer, "choice": choice}
# What cells of each kind are told apart by.
KEYS = {
    "layer": ("kind", "model", "servers", "exponent", "seed"),
    "choice": ("kind", "top_k", "servers", "exponent", "row_bytes"),
}


def keys(options: argparse.Namespace) -> list[Cell]:
    """All cells."""
    wanted = {
        "layer": (options.models, options.servers, EXPONENTS, range(options.seeds)),
        "choice": ((1, 2, 4, 8), (1, 2, 4, 8), OF_CHOICES, options.rows),
    }
    return [
        dict(zip(KEYS[kind], (kind, *values), strict=True))
        for kind, lines in wanted.items()
        for values in itertools.product(*lines)
    ]


def identity(cell: Cell) -> str:
    return " ".join(str(cell[name]) for name in KEYS[cell["kind"]])


def fingerprint() -> str:
    """Changes when the planner, the simulator, the default or a contestant does."""
    package, here = Path(traffic.__file__).parents[1], Path(__file__)
    sources = [Path(_core.__file__), *sorted((package / "traffic").glob("*.py"))]
    sources += sorted((package / "chunking").glob("*.py"))
    sources += [package / "moe/choosing.py", package / "cli/simulate/layers.py", here]
    return resumed.digest(sources + [here.parent / f"paper/{x}.py" for x in ("peers", "rails")])


def run(options: argparse.Namespace) -> list[Cell]:
    """All cells, saying on stderr which one it is at."""
    wanted = keys(options)

    def measure(key: Cell) -> Cell:
        print(f"{wanted.index(key) + 1} of {len(wanted)}: {identity(key)}", file=sys.stderr)
        return KINDS[key["kind"]](key)

    part = resumed.part_of(options.json) if options.json else None
    return resumed.run(wanted, measure, identity, part=part, state=fingerprint())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or min(options.servers) < 2 or min(options.rows) < 1:
        parser.error("--seeds and --rows must be 1 or more, --servers 2 or more.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    record = records.stamp(deduplication_tables.SCHEMA)
    record |= {"preset": PRESET, "tokens": TOKENS, "experts": EXPERTS}
    cells = run(options)
    for kind in KINDS:
        record[f"{kind}s"] = [cell for cell in cells if cell["kind"] == kind]
    print(deduplication_tables.page(record, "Tokens that cross once"))
    if options.json:
        records.write(options.json, record)
        resumed.part_of(options.json).unlink()
    wrong = deduplication_tables.wrong(record)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
