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
import peers
import records

from fastjax.chunking import CANDIDATES, LayerTimes, deduplication, layer_time, schedule
from fastjax.cli.simulate import layers
from fastjax.simulation import PRESETS, Fabric, simulate_transfers
from fastjax.traffic import ROUTINGS, LayerTraffic, Routing, layer_traffic

PRESET = "h200"
MODELS = ("deepseek-v3", "kimi-k2", "qwen3-235b", "gpt-oss-120b")
EXPONENTS = (0.0, 0.8)
OF_CHOICES = (0.0, 0.8, 1.2)
ELEMENT_BYTES = 2  # bf16, out and back
EXPERTS = 256  # of the layers in which the default is judged
PIECES = 16  # as for the same peers in schedules.py

Cell = dict[str, Any]


@functools.lru_cache(maxsize=1)  # the next problem mostly differs in its rows' size only
def routed(
    routing: Routing, tokens: int, servers: int, exponent: float, seed: int
) -> tuple[np.ndarray, LayerTraffic]:
    """What tokens choose, and the traffic that comes of it."""
    devices = servers * PRESETS[PRESET].devices_per_server
    choices = routing.choices(devices, tokens, exponent=exponent, seed=seed)
    return choices, layer_traffic(choices, servers=servers, num_experts=routing.num_experts)


class Problem:
    """A layer on a fabric: what cells say, with rows of so many bytes."""

    def __init__(self, routing: Routing, key: Cell, row: int):
        servers, self.tokens = key["servers"], key["tokens"]
        self.topology = PRESETS[PRESET].topology(servers)
        self.fabric = Fabric(incast=PRESETS[PRESET].incast)
        self.routing = routing
        self.choices, self.traffic = routed(
            routing, self.tokens, servers, key["exponent"], key.get("seed", 0)
        )
        self.size = layers.row_bytes(row, routing.top_k, routing.num_experts // servers)

    def ours(self, *, once: bool) -> layers.Layer:
        way = layers.once if once else layers.each_choice
        return way("auto", self.traffic, self.topology, self.fabric, self.size)

    def default(self) -> bool:
        """Whether `moe.dispatch` deduplicates if nobody says so."""
        routing, size = self.routing, self.size
        tokens = deduplication.Tokens(self.tokens, routing.top_k, size.row, size.crossing)
        return deduplication.crosses_once(self.topology, routing.num_experts, tokens, "auto")

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

    def bound(self, *, once: bool) -> float:
        """Seconds that the busiest server's NICs need at their full rate, both ways."""
        n, m = self.topology.servers, self.topology.devices_per_server
        rows = self.traffic.crossing if once else self.traffic.each
        pairs = rows.reshape(n, m, n, m).sum((1, 3))
        np.fill_diagonal(pairs, 0)
        busiest = int(max(pairs.sum(0).max(), pairs.sum(1).max()))
        size = self.size.row + (self.size.crossing if once else self.size.row)
        return busiest * size / (m * self.topology.scale_out_bandwidth)

    def in_chunks(self, chunks: int) -> float:
        """Seconds in so many chunks of the tokens, deduplicated, with idle experts."""
        n, experts = self.topology.servers, self.routing.num_experts
        fabric = self.topology, self.fabric
        parts = []
        for choices in np.array_split(self.choices, chunks, axis=1):
            part = layer_traffic(choices, servers=n, num_experts=experts)
            parts.append(layers.once("auto", part, *fabric, self.size).parts(experts=0.0))
        return LayerTimes.of(schedule(parts), chunks, deduplicated=True).total

    def default_chunks(self) -> int:
        """The cost model's best number of chunks, forward and with experts that do nothing."""
        routing, size = self.routing, self.size
        return layer_time(
            self.topology,
            self.tokens,
            routing.top_k,
            size.row,
            routing.num_experts,
            seconds_per_row=0.0,
            deduplicate=True,
            chunk_overhead=0.0,
        ).chunks

    def played(self, moves: np.ndarray, row_bytes: int) -> float:
        return simulate_transfers(
            moves, self.topology, row_bytes=row_bytes, fabric=self.fabric, pieces=PIECES
        ).completion_time


def layer(key: Cell) -> Cell:
    """A model's layer: ours and the peer, deduplicated and not."""
    routing = ROUTINGS[key["model"]]
    assert routing.width is not None  # all of them have one
    problem = Problem(routing, key, routing.width * ELEMENT_BYTES)
    ways = {"each": False, "once": True}
    crossing = problem.traffic.crossing_per_token
    seconds = {way: problem.ours(once=once).seconds for way, once in ways.items()}
    seconds |= {f"two-tier {way}": problem.two_tier(once=once) for way, once in ways.items()}
    return key | {
        "crossing_per_token": {way: crossing(deduplicate=once) for way, once in ways.items()},
        "default": "once" if problem.default() else "each",
        "bound": {way: problem.bound(once=once) for way, once in ways.items()},
        "seconds": seconds,
        "chunks": {str(chunks): problem.in_chunks(chunks) for chunks in CANDIDATES},
        "default_chunks": problem.default_chunks(),
    }


def choice(key: Cell) -> Cell:
    """Whether the default is right: both ways, as `auto` plans them."""
    problem = Problem(Routing(EXPERTS, key["top_k"]), key, key["row_bytes"])
    found = {"each": problem.ours(once=False).seconds}
    if key["servers"] > 1:
        found["once"] = problem.ours(once=True).seconds
    return key | {"default": "once" if problem.default() else "each", "seconds": found}


KINDS = {"layer": layer, "choice": choice}


def keys(options: argparse.Namespace) -> list[Cell]:
    """All cells."""
    names = {
        "layer": ("model", "servers", "exponent", "seed"),
        "choice": ("top_k", "servers", "exponent", "row_bytes"),
    }
    wanted = {
        "layer": (options.models, options.servers, EXPONENTS, range(options.seeds)),
        "choice": ((1, 2, 4, 8), (1, 2, 4, 8), OF_CHOICES, options.rows),
    }
    return [
        {"kind": kind} | dict(zip(names[kind], values, strict=True))
        for kind, lines in wanted.items()
        for values in itertools.product(*lines)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096, help="of a device")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.tokens, *options.rows) < 1 or min(options.servers) < 2:
        parser.error("--seeds, --tokens and --rows must be 1 or more, --servers 2 or more.")
    record = records.stamp(deduplication_tables.SCHEMA)
    record |= {"preset": PRESET, "tokens": options.tokens, "experts": EXPERTS}
    record |= {f"{kind}s": [] for kind in KINDS}
    wanted = keys(options)
    for number, key in enumerate(wanted, 1):
        print(f"{number} of {len(wanted)}: {' '.join(map(str, key.values()))}", file=sys.stderr)
        cell = KINDS[key["kind"]](key | {"tokens": options.tokens})
        del cell["kind"], cell["tokens"]
        record[f"{key['kind']}s"].append(cell)
    page = deduplication_tables.page(record, "Tokens that cross once")
    records.publish(page, record, options.json)
    impossible = deduplication_tables.impossible(record["layers"])
    sys.stderr.writelines(f"{line}\n" for line in impossible)
    return 1 if impossible else 0


if __name__ == "__main__":
    sys.exit(main())
