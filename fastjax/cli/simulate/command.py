"""What an exchange would cost, on the command line: `python -m fastjax simulate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastjax
from fastjax import plot, scheduler_traits
from fastjax.cli.shared import commands, rates, sources, text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import (
    costs,
    layer_balance,
    layer_chunks,
    layer_gain,
    layer_report,
    layer_source,
    verdict,
)
from fastjax.errors import ArgumentError, OptionError
from fastjax.scheduling import check_scheduler_fits
from fastjax.simulation import INCAST, SYNCHRONIZATIONS, Fabric, Preset


def main(arguments: Sequence[str]) -> int:
    """Simulates, and shows what it would cost; returns the exit status."""
    return commands.run(_parser(), arguments, _run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastjax simulate",
        description="Plans one exchange with several schedulers, simulates each plan on a cluster, "
        "and says what planning gains over sending all at once, what limits it and what would "
        "help. Or dispatch and combine of a layer of experts: what they take as people have them, "
        "and planned, deduplicated, in chunks or with levelled experts. Nothing is measured.",
    )
    add = parser.add_argument
    sources.add_options(parser)
    layer_source.add_options(parser)
    layer_chunks.add_options(parser)
    layer_balance.add_options(parser)
    layer_gain.add_options(parser)
    add(
        "--schedulers",
        nargs="+",
        choices=fastjax.schedulers(),
        metavar="NAME",
        help=f"of {', '.join(fastjax.schedulers())}; default: all that can plan for this fabric, "
        "without optimal",
    )
    add(
        "--synchronization",
        choices=SYNCHRONIZATIONS,
        default="credit",
        help="what a stage waits for; default: credit",
    )
    add(
        "--incast",
        choices=list(INCAST),
        help="what senders lose that meet; literal: with every sender counted as one, also those "
        "that send to several at once; default: none",
    )
    add(
        "--oversubscription",
        type=float,
        default=1.0,
        metavar="X",
        help="how many times what the core carries all NICs could send; default: 1",
    )
    rates.add_options(parser)
    add("--verbose", action="store_true", help="show all that --json has")
    add("--json", type=Path, metavar="FILE", help="write the statistics to this file too")
    add(
        "--draw",
        type=Path,
        metavar="FILE",
        help="draw what happens when, of the best one: .png, .svg, .pdf, ...; of a layer, in one "
        "chunk and in the best number; with --balance, the rows of its devices before and after",
    )
    add("--perfetto", type=Path, metavar="FILE", help="write a trace of it for ui.perfetto.dev")
    return parser


def _run(options: argparse.Namespace) -> None:
    preset = rates.preset(options)
    if layer_source.asked(options):
        _run_layer(options, preset)
        return
    parts = (layer_chunks, layer_balance, layer_gain)
    if (first := next(filter(None, (part.given(options) for part in parts)), None)) is not None:
        raise OptionError(f"{first} is of a layer; want --layer too.")
    source = sources.load(options, preset.devices_per_server if preset else None)
    topology = rates.topology(options, len(source.matrix), source.servers)
    fabric = _fabric(options, preset)
    names = options.schedulers or _that_fit(topology)
    cases = verdict.cases(topology, fabric, source.row_bytes)
    more = scheduler_traits.FALLBACK not in names and not topology.failed_nics
    progress = Progress(len(names) + len(cases) + more)
    try:
        found = [
            costs.simulate(name, source.matrix, topology, fabric, source.row_bytes, progress)
            for name in names
        ]
        today = costs.today(found, progress)
        best = costs.best_of(found)
        tried = verdict.try_cases(best, cases, progress)
    finally:
        progress.clear()
    record = costs.record(found, today, source.name, options.preset)
    record |= verdict.record(found, today, tried)
    _write_files(options, best, record)
    sys.stdout.write(f"{text.as_text({'traffic': costs.traffic_section(record)})}\n\n")
    sys.stdout.write(f"{costs.table(record, verbose=options.verbose)}\n\n")
    _write_end(options, record, record["verdict"])


def _write_end(
    options: argparse.Namespace, record: Mapping[str, Any], words: Sequence[str]
) -> None:
    supposed = costs.assumptions(record, verbose=options.verbose)
    sys.stdout.write(f"{text.as_text({'simulated with': supposed})}\n\n")
    sys.stdout.write("\n".join(words) + "\n")


def _fabric(options: argparse.Namespace, preset: Preset | None) -> Fabric:
    return Fabric(
        options.synchronization,
        options.incast or (preset.incast if preset else "none"),
        options.oversubscription,
    )


def _run_layer(options: argparse.Namespace, preset: Preset | None) -> None:
    if options.perfetto is not None:
        raise OptionError("--perfetto is of one exchange, a layer has several.")
    source = layer_source.load(options, preset.devices_per_server if preset else None)
    layer_gain.check(options)
    copies = layer_balance.load(options, source)
    experts = layer_chunks.load(options, copies.row_seconds if copies else None)
    if options.draw is not None and experts is None:
        raise OptionError("--draw of a layer needs the experts' work: --seconds-per-row, say.")
    topology = rates.topology(options, len(source.choices), source.servers)
    names = options.schedulers or _that_fit(topology)
    work = layer_report.Work(source, topology, _fabric(options, preset))
    found = layer_report.simulate(work, names)
    record = layer_report.record(work, found, options.preset)
    more, timed = [], []
    if experts is not None:
        timed = layer_chunks.simulate(work, found, experts)
        record["in_chunks"] = layer_chunks.record(work, experts, timed)
        more.append((layer_chunks.table, record["in_chunks"]))
        draw = lambda: plot.plot_layers(layer_chunks.to_draw(timed))  # noqa: E731
        if copies is not None:
            home = layer_chunks.best_of(timed)
            levelled = layer_balance.record(work, found, experts, home, copies)
            record["balanced"] = levelled
            more.append((layer_balance.table, levelled))
            loads = [way["loads"] for way in levelled["ways"][:2]]
            draw = lambda: plot.plot_loads(*loads, servers=source.servers)  # noqa: E731
        if options.draw is not None:
            _save(options.draw, draw)
    levelled = record["balanced"]["ways"][1:] if copies is not None else []
    gain = layer_gain.record(work, found, experts, timed, levelled, options.layers)
    record["gain"] = gain
    if options.json is not None:
        commands.write_json(options.json, record)
    sys.stdout.write(f"{text.as_text({'layer': layer_report.layer_section(record)})}\n\n")
    tables = [layer_report.table(record), *(table(part) for table, part in more)]
    tables = [*(tables if options.verbose else []), layer_gain.table(gain, experts=bool(experts))]
    sys.stdout.write("".join(f"{table}\n\n" for table in tables))
    parts = [gain, record, *(part for _, part in more)]
    _write_end(options, record, [word for part in parts for word in part["verdict"]])


def _that_fit(topology: fastjax.Topology) -> list[str]:
    """Schedulers that can plan for it, the one that chooses last; those that take no solver."""
    names = []
    for name in fastjax.schedulers():
        try:
            check_scheduler_fits(name, topology)
        except OptionError:
            continue
        if not scheduler_traits.ALL[name].solves:
            names.append(name)
    return sorted(names, key=lambda name: scheduler_traits.ALL[name].chooses)


def _write_files(options: argparse.Namespace, best: costs.Cost, record: dict[str, object]) -> None:
    if options.draw is not None:
        _save(options.draw, best.timeline.plot)
    if options.perfetto is not None:
        commands.make_folder_of(options.perfetto)
        best.timeline.to_perfetto(options.perfetto)
    if options.json is not None:
        commands.write_json(options.json, record)


def _save(path: Path, draw: Callable[[], Any]) -> None:
    commands.make_folder_of(path)
    try:
        draw().savefig(path)
    except ValueError as error:  # that is how matplotlib refuses types
        raise ArgumentError(f"{path}: {error}") from None


__all__ = ["main"]
