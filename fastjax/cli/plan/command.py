"""Plans on the command line: `python -m fastjax plan`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import fastjax
from fastjax.cli.plan import record as plan_record
from fastjax.cli.shared import commands, rates, sources, text


def main(arguments: Sequence[str]) -> int:
    """Plans, and shows the plan; returns the exit status."""
    return commands.run(_parser(), arguments, _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastjax plan",
        description="Plans one exchange, without devices, and shows the plan's statistics.",
    )
    add = parser.add_argument
    sources.add_options(parser)
    add("--scheduler", choices=fastjax.schedulers(), default="auto", help="default: auto")
    rates.add_options(parser)
    add("--json", type=Path, metavar="FILE", help="write the statistics to this file too")
    add("--draw", type=Path, metavar="FILE", help="draw the plan: .png, .svg, .pdf, ...")
    return parser


def _run(options: argparse.Namespace) -> None:
    preset = rates.preset(options)
    source = sources.load(options, preset.devices_per_server if preset else None)
    topology = rates.topology(options, len(source.matrix), source.servers)
    plan = fastjax.make_plan(
        source.matrix, topology, scheduler=options.scheduler, row_bytes=source.row_bytes
    )
    record = plan_record.record(plan, source.name, options.preset)
    if options.draw is not None:
        commands.make_folder_of(options.draw)
        fastjax.plot.draw_plan(plan, options.draw)
    if options.json is not None:
        commands.write_json(options.json, record)
    sys.stdout.write(text.as_text(plan_record.sections(record, options.scheduler)))
    sys.stdout.write(f"\n\n{record['explanation'].rstrip()}\n")


__all__ = ["main"]
