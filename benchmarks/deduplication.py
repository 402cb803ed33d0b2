"""What it is worth that a token crosses once to each server, in layers of known models, simulated.

    python benchmarks/deduplication.py --json deduplication.json

The exit status is 1 where a time is impossible: what is faster than NICs are, say.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import peers
import records

from fastjax.chunking import deduplication, prices
from fastjax.chunking.resources import Parts, schedule
from fastjax.chunking.times import CANDIDATES, layer_time
from fastjax.simulation import INCAST, PRESETS, Fabric, layers, simulate_transfers
from fastjax.traffic import ROUTINGS, LayerTraffic, layer_traffic

SCHEMA = "fastjax-deduplication-3"
PRESET = "h200"
MODELS = ("deepseek-v3", "kimi-k2", "qwen3-235b", "gpt-oss-120b")
EXPONENTS = (0.0, 0.8)
ELEMENT_BYTES = 2  # bf16, out and back
PIECES = 16  # as for the same peers in schedules.py
LEVEL = 0.01  # how far behind still counts as level
_ROUNDED = 1e-9  # of sums of the same numbers

Cell = dict[str, Any]


class Problem:
    """A model's layer on the fabric."""

    def __init__(self, key: Cell, tokens: int):
        servers = key["servers"]
        self.topology = PRESETS[PRESET].topology(servers)
        self.fabric = Fabric(incast=PRESETS[PRESET].incast)
        self.routing = ROUTINGS[key["model"]]
        self.choices = self.routing.choices(
            self.topology.num_devices, tokens, exponent=key["exponent"], seed=key["seed"]
        )
        experts = self.routing.num_experts
        self.traffic = layer_traffic(self.choices, servers=servers, num_experts=experts)
        assert self.routing.width is not None  # all of them have one
        row, top_k = self.routing.width * ELEMENT_BYTES, self.routing.top_k
        crossing = prices.crossing_row_bytes(row, top_k, experts // servers)
        self.tokens = prices.Tokens(tokens, top_k, row, crossing)

    def ours(self, *, once: bool) -> float:
        """Seconds that ours takes, all at once."""
        return schedule([self.parts(self.traffic, once=once)]).total

    def parts(self, traffic: LayerTraffic, *, once: bool) -> Parts:
        how = self.topology, self.tokens, "auto", layers.by_simulation(self.fabric)
        return prices.exchanges(traffic.exchanges(deduplicate=once), *how)

    def default(self) -> bool:
        """Whether `moe.dispatch` deduplicates if nobody says so."""
        experts = self.routing.num_experts
        return deduplication.crosses_once(self.topology, experts, self.tokens, "auto")

    def two_tier(self, *, once: bool) -> float:
        """Seconds that the peer takes, both ways; it plans nothing."""
        there = self.traffic.each
        if once:
            there = peers.two_tier_once(self.choices, self.topology, self.routing.num_experts)
        back = peers.pxn(np.ascontiguousarray(there.T), self.topology)
        row = self.tokens.row_bytes
        crossing = self.tokens.crossing_bytes if once else row
        return self.played(peers.two_tier(there, self.topology), crossing) + self.played(back, row)

    def bound(self, *, once: bool) -> float:
        """Seconds that the busiest server's NICs need at their full rate, both ways."""
        n, m = self.topology.servers, self.topology.devices_per_server
        rows = self.traffic.crossing if once else self.traffic.each
        pairs = rows.reshape(n, m, n, m).sum((1, 3))
        np.fill_diagonal(pairs, 0)
        busiest = int(max(pairs.sum(0).max(), pairs.sum(1).max()))
        row = self.tokens.row_bytes
        size = row + (self.tokens.crossing_bytes if once else row)
        return busiest * size / (m * self.topology.scale_out_bandwidth)

    def in_chunks(self, chunks: int) -> float:
        """Seconds in so many chunks of the tokens, deduplicated, with idle experts."""
        n, experts = self.topology.servers, self.routing.num_experts
        parts = []
        for choices in np.array_split(self.choices, chunks, axis=1):
            part = layer_traffic(choices, servers=n, num_experts=experts)
            parts.append(self.parts(part, once=True))
        return schedule(parts, deduplicated=True).total

    def default_chunks(self) -> int:
        """The cost model's best number of chunks, forward and with experts that do nothing."""
        return layer_time(
            self.topology,
            self.tokens.count,
            self.tokens.top_k,
            self.tokens.row_bytes,
            self.routing.num_experts,
            seconds_per_row=0.0,
            deduplicate=True,
            chunk_overhead=0.0,
        ).chunks

    def played(self, moves: np.ndarray, row_bytes: int) -> float:
        return simulate_transfers(
            moves, self.topology, row_bytes=row_bytes, fabric=self.fabric, pieces=PIECES
        ).completion_time


def layer(key: Cell, tokens: int) -> Cell:
    """A model's layer: ours and the peer, deduplicated and not."""
    problem = Problem(key, tokens)
    ways = {"each": False, "once": True}
    crossing = problem.traffic.crossing_per_token
    seconds = {way: problem.ours(once=once) for way, once in ways.items()}
    seconds |= {f"two-tier {way}": problem.two_tier(once=once) for way, once in ways.items()}
    return key | {
        "crossing_per_token": {way: crossing(deduplicate=once) for way, once in ways.items()},
        "default": "once" if problem.default() else "each",
        "bound": {way: problem.bound(once=once) for way, once in ways.items()},
        "seconds": seconds,
        "chunks": {str(chunks): problem.in_chunks(chunks) for chunks in CANDIDATES},
        "default_chunks": problem.default_chunks(),
    }


def chunked(cell: Cell) -> tuple[str, float]:
    """The number of chunks in which ours is fastest, and its seconds then."""
    return min(cell["chunks"].items(), key=lambda item: item[1])


def by_default(cell: Cell) -> float:
    """Seconds in the number of chunks that the cost model takes."""
    return cell["chunks"][str(cell["default_chunks"])]


def impossible(cells: Sequence[Cell]) -> list[str]:
    """Times of layers that are shorter than NICs need, as text."""
    found = []
    for cell in cells:
        times = cell["seconds"] | {f"in {n} chunks": s for n, s in cell["chunks"].items()}
        for name, seconds in times.items():
            bound = cell["bound"]["each" if name.endswith("each") else "once"]
            if not bound * (1 - _ROUNDED) <= seconds < np.inf:
                where = f"{cell['model']}, {cell['servers']} x 8, seed {cell['seed']}"
                found.append(f"{where}: {name} takes {seconds!r} s, and NICs need {bound!r} s")
    return found


def kinds(cells: Sequence[Cell]) -> Iterator[tuple[list[str], list[Cell]]]:
    """Layers that differ in their seed only, and what they are."""
    key = itemgetter("model", "servers", "exponent")
    for (model, servers, exponent), group in itertools.groupby(cells, key):
        popular = f"Zipf {exponent:g}" if exponent else "even"
        yield [model, popular, f"{servers} x 8"], list(group)


def median(cells: Sequence[Cell], value: Callable[[Cell], float]) -> float:
    return float(np.median([value(cell) for cell in cells]))


def each(values: Iterable[Any]) -> str:
    """All that occur."""
    return ", ".join(sorted({str(value) for value in values}))


def layer_table(cells: Sequence[Cell]) -> str:
    """Times of each model's layer."""
    header = ["model", "experts are", "servers", "rows a token: each choice", "once", "default"]
    header += ["`auto`, each choice", "`auto`, once", "two-tier, each choice", "two-tier, once"]
    header += ["`auto`, once ÷ each", "`auto` ÷ two-tier, both once", "in best chunks"]
    lines = []
    for names, group in kinds(cells):
        rows = [median(group, lambda c, w=w: c["crossing_per_token"][w]) for w in ("each", "once")]
        ways = ("each", "once", "two-tier each", "two-tier once")
        times = [median(group, lambda c, w=w: c["seconds"][w]) for w in ways]
        apart, once, _, peer = times
        ratios = [once / apart, once / peer, median(group, lambda c: chunked(c)[1]) / peer]
        line = [*names, *(f"{count:.2f}" for count in rows), each(c["default"] for c in group)]
        line += [f"{seconds * 1e3:.2f}" for seconds in times]
        lines.append(line + [f"{ratio:.2f}" for ratio in ratios])
    return records.table(header, lines, texts=3)


def chunk_table(cells: Sequence[Cell]) -> str:
    """Ours in chunks, by what the peer takes."""
    counts = ("2", "3", "4")
    header = ["model", "experts are", "servers", "1 chunk", *counts, "best", "chunks then"]
    header += ["by default", "chunks by default"]
    lines = []
    for names, group in kinds(cells):
        peer = median(group, lambda c: c["seconds"]["two-tier once"])
        times = [median(group, lambda c: c["seconds"]["once"])]
        times += [median(group, lambda c, n=n: c["chunks"][n]) for n in counts]
        times.append(median(group, lambda c: chunked(c)[1]))
        line = [*names, *(f"{seconds / peer:.2f}" for seconds in times)]
        line += [each(chunked(c)[0] for c in group), f"{median(group, by_default) / peer:.2f}"]
        lines.append([*line, each(c["default_chunks"] for c in group)])
    return records.table(header, lines, texts=3)


def outcome(cells: Sequence[Cell]) -> str:
    """In how many layers ours is level or ahead."""

    def behind(seconds: Callable[[Cell], float]) -> np.ndarray:
        """How much longer it takes than the peer, both deduplicated."""
        return np.array([seconds(cell) / cell["seconds"]["two-tier once"] - 1 for cell in cells])

    at_once, gaps = behind(lambda c: c["seconds"]["once"]), behind(lambda c: chunked(c)[1])
    ahead, late = int((gaps < -LEVEL).sum()), int((gaps > LEVEL).sum())
    return (
        f"All at once, `auto` takes more than {LEVEL:.0%} longer than two-tier, both once, in "
        f"{(at_once > LEVEL).sum()} of {len(cells)} layers. In the best number of chunks, `auto` "
        f"is ahead of two-tier by more than {LEVEL:.0%} in {ahead} of {len(cells)} layers, level "
        f"in {len(cells) - ahead - late}, and behind in {late}, by {gaps.max():.1%} at most. In "
        f"the number of chunks that the cost model takes, {(behind(by_default) <= LEVEL).sum()} "
        "are level or ahead."
    )


def page(record: dict[str, Any], title: str) -> str:
    preset = PRESETS[record["preset"]]
    seeds = len({cell["seed"] for cell in record["layers"]})
    about = (
        f"Dispatch and combine of a layer of experts, {record['tokens']:,} tokens a device in bf16 "
        f"out and back, simulated flow by flow at the rates of {preset.source}, incast "
        f"{INCAST[preset.incast]}: {INCAST[preset.incast].source}. "
        "Nothing here is a time of this machine or of any cluster. "
        "Experts are as many, and limited to groups, as in the models (`fastjax.traffic.ROUTINGS`),"
        " and equally popular or by Zipf's law in random order; the models' own routing is not "
        f"public. Times are ms, both ways and one planning, medians over {seeds} seeds."
    )
    who = (
        "*each choice*: a row for each choice of a token. *once*: one row to each server that the "
        "token goes to, copied there, and summed there on the way back. `auto`, once, is what "
        "`fastjax.moe` does: rows land where NICs are balanced, and one exchange inside servers "
        "follows when all have landed. *two-tier* is in DeepEP's manner: over each device's own "
        "NIC to the same place in the target's server, which hands on as rows come, in "
        "16 pieces; once, with a copy for each device and not for each choice. Copies "
        "but the first need not wait for the row that they are of, which favours it a little. "
        "*default*: what `deduplicate=None` does. *in best chunks*: ours, by the deduplicated peer."
    )
    in_chunks = (
        "A device's tokens are split into equal chunks; each is planned, crosses, is copied, "
        "summed and crosses back, while other chunks are in other stages. NICs and links inside "
        "servers work at once, each on one chunk at a time ([how](../../docs/design/simulator.md#"
        "a-layer-in-chunks)); every chunk's exchanges are simulated by themselves, flow by flow. "
        "No experts work here. Times of ours, once, by the peer's, which is not split: its pieces "
        "overlap on each way, and its way back begins when all has arrived, which favours ours. "
        "*best*: of 1, 2, 3, 4, 6 and 8 chunks, as simulated. *by default*: in the number that the "
        "cost model takes, which knows nothing of popularity."
    )
    cells = record["layers"]
    parts = [f"# {title}", about, who, "## Layers of known models", outcome(cells)]
    parts += [layer_table(cells), "## In chunks", in_chunks, chunk_table(cells)]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=4096, help="of a device")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.tokens) < 1 or min(options.servers) < 2:
        parser.error("--seeds and --tokens must be 1 or more, --servers 2 or more.")
    record = records.stamp(SCHEMA) | {"preset": PRESET, "tokens": options.tokens, "layers": []}
    names = ("model", "servers", "exponent", "seed")
    wanted = (options.models, options.servers, EXPONENTS, range(options.seeds))
    for values in itertools.product(*wanted):
        print(*values, file=sys.stderr)
        record["layers"].append(layer(dict(zip(names, values, strict=True)), options.tokens))
    records.publish(page(record, "Tokens that cross once"), record, options.json)
    wrong = impossible(record["layers"])
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
