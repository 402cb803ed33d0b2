"""Plans on the command line: `python -m fastjax plan`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastjax
from fastjax import _core, scheduling
from fastjax.cli.shared import commands, rates, sources, statistics, text

SCHEMA = "fastjax-plan-1"


def main(arguments: Sequence[str]) -> int:
    """Plans, and shows the plan; returns the exit status."""
    parser = commands.parser(
        "plan",
        "Plans one exchange, without devices, and shows the plan's statistics.",
        sources.BUSIEST,
    )
    sources.add_options(parser)
    rates.add_options(parser)
    add = parser.add_argument
    add("--scheduler", choices=fastjax.schedulers(), default="auto", help="default: auto")
    add("--draw", type=Path, metavar="FILE", help="draw the plan: .png, .svg, .pdf, ...")
    return commands.run(parser, arguments, _run)


def _run(options: argparse.Namespace) -> None:
    source = sources.load(options)
    topology = rates.topology(options, len(source.matrix), source.servers)
    plan = fastjax.make_plan(
        source.matrix, topology, scheduler=options.scheduler, row_bytes=source.row_bytes
    )
    found = record(plan, source.name, options.preset)
    if options.draw is not None:
        commands.make_folder_of(options.draw)
        fastjax.plot.draw_plan(plan, options.draw)
    if options.json is not None:
        commands.write_json(options.json, found)
    sys.stdout.write(text.sections(_sections(found, options.scheduler)))
    sys.stdout.write(f"\n\n{found['explanation'].rstrip()}\n")


def record(plan: fastjax.Plan, source: str, preset: str | None = None) -> dict[str, Any]:
    """Everything that is known of a plan; times in µs, bandwidths in GB/s."""
    transfers = plan.transfers
    kept = transfers["src"] == transfers["dst"]
    rows = [int(transfers["rows"][(transfers["phase"] == p) & ~kept].sum()) for p in range(4)]
    seconds, bound = plan.predicted_time(), plan.lower_bound()
    number = scheduling.ALL[plan.scheduler].number
    return {
        "schema": SCHEMA,
        "traffic": statistics.traffic_statistics(plan, source),
        "fabric": {"preset": preset, **statistics.fabric_statistics(plan.topology)},
        "plan": {
            "scheduler": plan.scheduler,
            "stages": plan.num_stages,
            "matchings": plan.num_matchings,
            "transfers": len(transfers),
            "rows_local": rows[0],
            "rows_balanced": rows[1],
            "rows_scale_out": rows[2],
            "rows_redistributed": rows[3],
            "rows_kept": int(transfers["rows"][kept].sum()),
            "table_bytes": _core.table_words(plan.topology.words, number) * 4,
        },
        "time": {
            "lower_bound_us": bound * 1e6,
            "predicted_us": seconds * 1e6,
            "planning_us": plan.planning_time() * 1e6,
            "predicted_by_bound": seconds / bound if bound else None,
            **statistics.bandwidths(plan.traffic, plan.row_bytes, seconds),
        },
        "explanation": plan.explain(),
    }


def _sections(found: Mapping[str, Any], asked: str) -> dict[str, text.Section]:
    """The record for people, without the explanation; of the scheduler that was asked for."""
    fabric, plan, time = (found[k] for k in ("fabric", "plan", "time"))
    chosen = "" if plan["scheduler"] == asked else f", chosen by {asked}"
    up, out = (fabric[f"scale_{tier}_bandwidth"] / 1e9 for tier in ("up", "out"))
    rate = {
        name: "-" if time[name] is None else f"{time[name]:.2f} GB/s"
        for name in ("algbw", "busbw", "fast_algbw")
    }
    return {
        "traffic": statistics.traffic_section(found["traffic"], fabric),
        "plan": {
            "scheduler": plan["scheduler"] + chosen,
            "stages": f"{plan['stages']}, different matchings: {plan['matchings']}",
            "rows moved inside": f"{plan['rows_balanced']} to balance, "
            f"{plan['rows_redistributed']} to redistribute, {plan['rows_local']} local",
            "rows moved between": f"{plan['rows_scale_out']}; {plan['rows_kept']} stay "
            "on their device",
            "stage table": f"{text.size(plan['table_bytes'])} a device",
        },
        f"time, for {up:g} GB/s a device inside servers and {out:g} between them": {
            **rates.preset_section(fabric["preset"]),
            "lower bound": f"{time['lower_bound_us']:.1f} µs",
            "predicted": f"{time['predicted_us']:.1f} µs, "
            + statistics.times(time["predicted_by_bound"], "the lower bound"),
            "planning": f"{time['planning_us']:.1f} µs of that, about",
            "algbw": f"{rate['algbw']}, as nccl-tests has it: of the busiest device",
            "busbw": f"{rate['busbw']}, as nccl-tests has it",
            "FAST's algbw": f"{rate['fast_algbw']}, of the mean device",
        },
    }
