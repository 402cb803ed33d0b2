"""A layer's dispatch and combine with several schedulers, as a record and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastjax.cli.shared import statistics, text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import costs, layers
from fastjax.cli.simulate.layer_work import Work
from fastjax.cli.simulate.layers import Layer
from fastjax.traffic import gini

SCHEMA = "fastjax-simulate-layer-1"
ALIKE = 0.03  # how far behind still counts as level


def way_name(entry: Mapping[str, Any]) -> str:
    """What a token has a row for each of."""
    return "server" if entry["deduplicated"] else "choice"


def _bytes(entry: Mapping[str, Any], where: str) -> str:
    return text.size(sum(entry[way][f"bytes_{where}"] for way in ("dispatch", "combine")))


_COLUMNS: text.Columns = {
    "scheduler": lambda entry: costs.scheduler_name(entry["asked"], entry["scheduler"]),
    "a row for each": way_name,
    "dispatch": lambda entry: text.microseconds(entry["dispatch"]["time_us"]),
    "combine": lambda entry: text.microseconds(entry["combine"]["time_us"]),
    "with planning": lambda entry: text.microseconds(entry["time_with_planning_us"]),
    "x best": lambda entry: text.number(entry["by_best"]),
    "over NICs": lambda entry: _bytes(entry, "over_nics"),
    "inside servers": lambda entry: _bytes(entry, "inside_servers"),
}
_CAPTION = """\
a row for each choice, or deduplicated, for each server that a token goes to. with planning: both
ways and one planning. x best: that by the least. Bytes are of both ways and all devices."""


def compared(more: float, otherwise: str = "") -> str:
    """What taking so much more time than the best means, after what takes it."""
    if more <= ALIKE:
        return f", which is as good, within {ALIKE:.0%}."
    return f", which takes {more:.0%} more{otherwise}."


def simulate(work: Work, schedulers: Sequence[str]) -> list[Layer]:
    """The layer with each scheduler, a row for each choice and deduplicated."""
    ways = [layers.each_choice]
    if work.topology.servers > 1:
        ways.append(layers.once)
    found = []
    with Progress(len(schedulers) * len(ways)) as progress:
        for name in schedulers:
            for way in ways:
                with progress.step(name):
                    found.append(
                        way(name, work.traffic, work.topology, work.fabric, work.row_bytes)
                    )
    return found


def record(work: Work, found: Sequence[Layer], preset: str | None) -> dict[str, Any]:
    """All of it: times in µs."""
    least = min(layer.seconds for layer in found)
    devices, tokens, top_k = work.choices.shape
    return {
        "schema": SCHEMA,
        "layer": {
            "source": work.name,
            "devices": devices,
            "tokens": work.traffic.tokens,
            "tokens_of_a_device": tokens,
            "experts": work.num_experts,
            "top_k": top_k,
            "row_bytes": work.row_bytes.row,
            "crossing_row_bytes": work.row_bytes.crossing,
            "crossing_per_token": {
                "each": work.traffic.crossing_per_token(deduplicate=False),
                "once": work.traffic.crossing_per_token(deduplicate=True),
            },
            "gini_experts": gini(work.counts),
        },
        "fabric": costs.fabric_record(work.topology, work.fabric, preset),
        "schedulers": [_entry(layer, least) for layer in found],
        "deduplicated_by_default": work.deduplicates(),
        "verdict": _of_default(work, found),
    }


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


def layer_section(record: Mapping[str, Any]) -> text.Section:
    """The layer, for people."""
    layer = record["layer"]
    crossing = layer["crossing_per_token"]
    return {
        "source": layer["source"],
        "devices": statistics.devices_in_words(layer["devices"], record["fabric"]),
        "tokens": f"{layer['tokens']} in all, of {text.size(layer['row_bytes'])}; each chooses "
        f"{layer['top_k']} of {layer['experts']} experts",
        "rows that cross": f"{crossing['each']:.2f} for a token, or deduplicated "
        f"{crossing['once']:.2f}, of {text.size(layer['crossing_row_bytes'])} out and "
        f"{text.size(layer['row_bytes'])} back",
        "Gini coefficient": f"{layer['gini_experts']:.3f} of experts",
    }


def table(record: Mapping[str, Any]) -> str:
    """A line for each scheduler, and for each of both ways to send rows."""
    return text.table("cost", _COLUMNS, record["schedulers"], _CAPTION)


def _of_default(work: Work, found: Sequence[Layer]) -> list[str]:
    """Whether the library takes the better way: a sentence, where there are two."""
    of = {way: [x.seconds for x in found if x.deduplicated == way] for way in (False, True)}
    if not of[True]:
        return []
    taken = work.deduplicates()
    more = min(of[taken]) / min(layer.seconds for layer in found) - 1
    does = "deduplicates" if taken else "does not deduplicate"
    told = compared(more, f": say deduplicate={not taken}")
    return [f"By default moe.dispatch {does} here{told}"]
