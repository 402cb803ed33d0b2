"""A layer's dispatch and combine with several schedulers, as a record and as a table."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fastjax
from fastjax.chunking import deduplication
from fastjax.cli.shared import statistics, units
from fastjax.cli.shared.progress import Progress
from fastjax.cli.shared.text import Section, aligned
from fastjax.cli.simulate import layers
from fastjax.cli.simulate.layer_source import LayerSource
from fastjax.cli.simulate.layers import Layer
from fastjax.simulation import Fabric, Incast
from fastjax.traffic import LayerTraffic, layer_traffic

SCHEMA = "fastjax-simulate-layer-1"

_COLUMNS = (
    "scheduler",
    "a row for each",
    "dispatch",
    "combine",
    "with planning",
    "x best",
    "over NICs",
    "inside servers",
)
_CAPTION = """\
a row for each choice, or deduplicated, for each server that a token goes to. with planning: both
ways and one planning. x best: that by the least. Bytes are of both ways and all devices."""
ALIKE = 0.03  # how far behind still counts as level


@dataclasses.dataclass(frozen=True)
class Work:
    """What is simulated.

    Attributes:
      source: the layer.
      topology: the fabric's rates.
      fabric: how it behaves.
    """

    source: LayerSource
    topology: fastjax.Topology
    fabric: Fabric

    @functools.cached_property
    def traffic(self) -> LayerTraffic:
        """The layer's traffic, deduplicated and not."""
        return layer_traffic(
            self.source.choices,
            servers=self.source.servers,
            num_experts=self.source.num_experts,
            nic_bandwidths=self.topology.nic_bandwidths,
        )

    @property
    def row_bytes(self) -> layers.RowBytes:
        """Bytes of its rows."""
        experts = self.source.num_experts // self.source.servers
        return layers.row_bytes(self.source.row_bytes, self.source.choices.shape[2], experts)

    def deduplicates(self) -> bool:
        """Whether `moe.dispatch` does by default."""
        _, tokens, top_k = self.source.choices.shape
        size = self.row_bytes
        work = deduplication.Tokens(tokens, top_k, size.row, size.crossing)
        return deduplication.crosses_once(self.topology, self.source.num_experts, work, "auto")


def simulate(work: Work, schedulers: Sequence[str]) -> list[Layer]:
    """The layer with each scheduler, a row for each choice and deduplicated."""
    ways = [layers.each_choice]
    if work.topology.servers > 1:
        ways.append(layers.once)
    progress = Progress(len(schedulers) * len(ways))
    found = []
    try:
        for name in schedulers:
            for way in ways:
                progress.begin(name)
                found.append(way(name, work.traffic, work.topology, work.fabric, work.row_bytes))
                progress.end()
    finally:
        progress.clear()
    return found


def record(work: Work, found: Sequence[Layer], preset: str | None) -> dict[str, Any]:
    """All of it: times in µs."""
    incast = work.fabric.incast
    assert isinstance(incast, Incast)  # names have been looked up
    least = min(layer.seconds for layer in found)
    devices, tokens, top_k = work.source.choices.shape
    return {
        "schema": SCHEMA,
        "layer": {
            "source": work.source.name,
            "devices": devices,
            "tokens": work.traffic.tokens,
            "tokens_of_a_device": tokens,
            "experts": work.source.num_experts,
            "top_k": top_k,
            "row_bytes": work.row_bytes.row,
            "crossing_row_bytes": work.row_bytes.crossing,
            "crossing_per_token": {
                "each": work.traffic.crossing_per_token(deduplicate=False),
                "once": work.traffic.crossing_per_token(deduplicate=True),
            },
            "gini_experts": _gini(work.source),
        },
        "fabric": {
            "preset": preset,
            **statistics.fabric_statistics(work.topology),
            **dataclasses.asdict(work.fabric),
        },
        "schedulers": [_entry(layer, least) for layer in found],
        "deduplicated_by_default": work.deduplicates(),
        "verdict": _of_default(work, found),
    }


def _gini(source: LayerSource) -> float:
    chosen = source.choices[source.choices >= 0]
    return fastjax.traffic.gini(np.bincount(chosen, minlength=source.num_experts))


def _entry(layer: Layer, least: float) -> dict[str, Any]:
    ways = {"dispatch": layer.dispatch, "combine": layer.combine}
    return {
        "asked": layer.asked,
        "scheduler": layer.taken,
        "deduplicated": layer.deduplicated,
        "planning_us": layer.planning * 1e6,
        "time_with_planning_us": layer.seconds * 1e6,
        "by_best": layer.seconds / least if least else None,
        **{
            name: {
                "time_us": way.seconds * 1e6,
                "bytes_over_nics": way.over_nics,
                "bytes_inside_servers": way.inside,
            }
            for name, way in ways.items()
        },
    }


def layer_section(record: Mapping[str, Any]) -> Section:
    """The layer, for people."""
    layer, fabric = record["layer"], record["fabric"]
    crossing = layer["crossing_per_token"]
    return {
        "source": layer["source"],
        "devices": f"{layer['devices']} in {fabric['servers']} x {fabric['devices_per_server']}, "
        "servers x devices of each",
        "tokens": f"{layer['tokens']} in all, of {units.size(layer['row_bytes'])}; each chooses "
        f"{layer['top_k']} of {layer['experts']} experts",
        "rows that cross": f"{crossing['each']:.2f} for a token, or deduplicated "
        f"{crossing['once']:.2f}, of {units.size(layer['crossing_row_bytes'])} out and "
        f"{units.size(layer['row_bytes'])} back",
        "Gini coefficient": f"{layer['gini_experts']:.3f} of experts",
    }


def table(record: Mapping[str, Any]) -> str:
    """A line for each scheduler, and for each of both ways to send rows."""
    rows = [_COLUMNS, *map(_cells, record["schedulers"])]
    return "\n".join(["cost", *aligned(rows), _CAPTION])


def _cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    ways = entry["dispatch"], entry["combine"]
    asked, taken = entry["asked"], entry["scheduler"]
    return (
        asked if asked == taken else f"{asked} ({taken})",
        "server" if entry["deduplicated"] else "choice",
        *(units.seconds(way["time_us"] * 1e-6) for way in ways),
        units.seconds(entry["time_with_planning_us"] * 1e-6),
        "-" if entry["by_best"] is None else f"{entry['by_best']:.3f}",
        units.size(sum(way["bytes_over_nics"] for way in ways)),
        units.size(sum(way["bytes_inside_servers"] for way in ways)),
    )


def _of_default(work: Work, found: Sequence[Layer]) -> list[str]:
    """Whether the library takes the better way: a sentence, where there are two."""
    of = {way: [x.seconds for x in found if x.deduplicated == way] for way in (False, True)}
    if not of[True]:
        return []
    taken = work.deduplicates()
    more = min(of[taken]) / min(layer.seconds for layer in found) - 1
    does = "deduplicates" if taken else "does not deduplicate"
    level = f", which is as good, within {ALIKE:.0%}" if more <= ALIKE else ""
    off = "" if level else f", which takes {more:.0%} more: say deduplicate={not taken}"
    return [f"By default moe.dispatch {does} here{level}{off}."]


__all__ = ["ALIKE", "SCHEMA", "Work", "layer_section", "record", "simulate", "table"]
