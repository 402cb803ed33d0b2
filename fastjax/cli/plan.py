"""Plans on the command line: `python -m fastjax plan`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fastjax
from fastjax.cli.shared import options, statistics, text

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
    found = sections(plan, source.name, options.preset_section(given.preset))
    sys.stdout.write(f"{text.sections(found)}\n\n{plan.explain()}\n")


def sections(plan: fastjax.Plan, source: str, preset: text.Section) -> dict[str, text.Section]:
    """A plan's traffic, which is from there, and how fast it is predicted to move."""
    topology = plan.topology
    up, out = (rate / 1e9 for rate in (topology.scale_up_bandwidth, topology.scale_out_bandwidth))
    rates = statistics.bandwidths(plan.traffic, plan.row_bytes, plan.predicted_time())
    rate = {name: "-" if each is None else f"{each:.2f} GB/s" for name, each in rates.items()}
    return {
        "traffic": statistics.traffic_section(plan, source),
        f"predicted, for {up:g} GB/s a device inside servers and {out:g} between them": {
            **preset,
            "algbw": f"{rate['algbw']}, as nccl-tests has it: of the busiest device",
            "busbw": f"{rate['busbw']}, as nccl-tests has it",
            "FAST's algbw": f"{rate['fast_algbw']}, of the mean device",
        },
    }
