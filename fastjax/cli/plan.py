"""Plans on the command line: `python -m fastjax plan`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fastjax
from fastjax import _core, scheduling
from fastjax.cli.shared import options, statistics, text
from fastjax.schedule.transfers import BALANCE, LOCAL, REDISTRIBUTE, SCALE_OUT

DESCRIPTION = "Plans one exchange, without devices, and shows the plan's statistics."
EPILOG = options.BUSIEST


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    options.add_traffic(parser)
    options.add_fabric(parser)
    add = parser.add_argument
    add("--scheduler", choices=fastjax.schedulers(), default="auto", help="default: auto")
    add("--draw", type=Path, metavar="FILE", help="draw the plan: .png, .svg, .pdf, ...")


def run(given: argparse.Namespace) -> None:
    """Plans, and shows the plan."""
    source = options.load(given)
    plan = fastjax.make_plan(
        source.matrix, source.topology, scheduler=given.scheduler, row_bytes=source.row_bytes
    )
    if given.draw is not None:
        options.save_picture(given.draw, plan.plot)
    found = sections(plan, source.name, given.scheduler, options.preset_section(given.preset))
    sys.stdout.write(f"{text.sections(found)}\n\n{plan.explain().rstrip()}\n")


def sections(
    plan: fastjax.Plan, source: str, asked: str, preset: text.Section
) -> dict[str, text.Section]:
    """What is known of a plan, whose traffic is from there, and of the rates that it is for."""
    transfers, topology = plan.transfers, plan.topology
    kept = transfers["src"] == transfers["dst"]
    moved = {p: int(transfers["rows"][(transfers["phase"] == p) & ~kept].sum()) for p in range(4)}
    seconds, bound = plan.predicted_time(), plan.lower_bound()
    chosen = "" if plan.scheduler == asked else f", chosen by {asked}"
    table_words = _core.table_words(topology.words, scheduling.ALL[plan.scheduler].number)
    up, out = (rate / 1e9 for rate in (topology.scale_up_bandwidth, topology.scale_out_bandwidth))
    rates = statistics.bandwidths(plan.traffic, plan.row_bytes, seconds)
    rate = {name: "-" if each is None else f"{each:.2f} GB/s" for name, each in rates.items()}
    return {
        "traffic": statistics.traffic_section(plan, source),
        "plan": {
            "scheduler": plan.scheduler + chosen,
            "stages": f"{plan.num_stages}, different matchings: {plan.num_matchings}",
            "rows moved inside": f"{moved[BALANCE]} to balance, "
            f"{moved[REDISTRIBUTE]} to redistribute, {moved[LOCAL]} local",
            "rows moved between": f"{moved[SCALE_OUT]}; {int(transfers['rows'][kept].sum())} stay "
            "on their device",
            "stage table": f"{text.size(4 * table_words)} a device",
        },
        f"time, for {up:g} GB/s a device inside servers and {out:g} between them": {
            **preset,
            "lower bound": f"{bound * 1e6:.1f} µs",
            "predicted": f"{seconds * 1e6:.1f} µs, "
            + statistics.times(seconds / bound if bound else None, "the lower bound"),
            "planning": f"{plan.planning_time() * 1e6:.1f} µs of that, about",
            "algbw": f"{rate['algbw']}, as nccl-tests has it: of the busiest device",
            "busbw": f"{rate['busbw']}, as nccl-tests has it",
            "FAST's algbw": f"{rate['fast_algbw']}, of the mean device",
        },
    }
