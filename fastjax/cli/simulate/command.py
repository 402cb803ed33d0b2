"""What an exchange would cost, on the command line: `python -m fastjax simulate`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastjax
from fastjax import plot, scheduling
from fastjax.cli.shared import commands, rates, sources, statistics, text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import (
    costs,
    layer_balance,
    layer_chunks,
    layer_gain,
    layer_report,
    layer_work,
    verdict,
)
from fastjax.errors import ArgumentError, OptionError
from fastjax.scheduling import check_scheduler_fits
from fastjax.simulation import INCAST, PRESETS, SYNCHRONIZATIONS, Fabric


def main(arguments: Sequence[str]) -> int:
    """Simulates, and shows what it would cost; returns the exit status."""
    parser = commands.parser(
        "simulate",
        "Plans one exchange with several schedulers, simulates each plan on a cluster, "
        "and says what planning gains over sending all at once, what limits it and what would "
        "help. Or dispatch and combine of a layer of experts: what they take as people have them, "
        "and planned, deduplicated, in chunks or with levelled experts. Nothing is measured.",
        sources.BUSIEST,
    )
    add = parser.add_argument
    sources.add_options(parser)
    layer_work.add_options(parser)
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
    add(
        "--draw",
        type=Path,
        metavar="FILE",
        help="draw what happens when, of the best one: .png, .svg, .pdf, ...; of a layer, in one "
        "chunk and in the best number; with --balance, the rows of its devices before and after",
    )
    return commands.run(parser, arguments, _run)


def _run(options: argparse.Namespace) -> None:
    incast = options.incast or (PRESETS[options.preset].incast if options.preset else "none")
    fabric = Fabric(options.synchronization, incast, options.oversubscription)
    (_run_layer if layer_work.asked(options) else _run_exchange)(options, fabric)


def _run_exchange(options: argparse.Namespace, fabric: Fabric) -> None:
    source = sources.load(options)
    topology = rates.topology(options, len(source.matrix), source.servers)
    names = options.schedulers or _that_fit(topology)
    cases = verdict.cases(topology, fabric, source.row_bytes)
    more = scheduling.FALLBACK not in names and not topology.failed_nics
    with Progress(len(names) + len(cases) + more) as progress:
        found = [
            costs.simulate(name, source.matrix, topology, fabric, source.row_bytes, progress)
            for name in names
        ]
        today = costs.today(found, progress)
        best = costs.best_of(found)
        tried = verdict.try_cases(best, cases, progress)
    record = costs.record(found, today, source.name, options.preset)
    record |= verdict.record(found, today, tried)
    if options.draw is not None:
        _save(options.draw, best.timeline.plot)
    traffic = statistics.traffic_section(record["traffic"], record["fabric"])
    tables = [costs.table(record, verbose=options.verbose)]
    _write(options, record, {"traffic": traffic}, tables, record["verdict"])


def _run_layer(options: argparse.Namespace, fabric: Fabric) -> None:
    work = layer_work.load(options, fabric)
    if options.draw is not None and work.seconds_per_row is None:
        raise OptionError("--draw of a layer needs the experts' work: --seconds-per-row, say.")
    found = layer_report.simulate(work, options.schedulers or _that_fit(work.topology))
    record = layer_report.record(work, found, options.preset)
    tables, parts = [layer_report.table(record)], [record]
    timed, levelled = [], []
    if work.seconds_per_row is not None:
        timed = layer_chunks.simulate(work, found)
        record["in_chunks"] = layer_chunks.record(work, timed)
        tables.append(layer_chunks.table(record["in_chunks"]))
        parts.append(record["in_chunks"])
    if work.copies:
        record["balanced"] = layer_balance.record(work, found, layer_chunks.best_of(timed))
        levelled = record["balanced"]["ways"]
        tables.append(layer_balance.table(record["balanced"]))
        parts.append(record["balanced"])
    if options.draw is not None:
        loads = [way["loads"] for way in levelled[:2]]
        draw_loads = lambda: plot.plot_loads(*loads, servers=work.topology.servers)  # noqa: E731
        draw_layers = lambda: plot.plot_layers(layer_chunks.to_draw(timed))  # noqa: E731
        _save(options.draw, draw_loads if levelled else draw_layers)
    gain = record["gain"] = layer_gain.record(work, found, timed, levelled[1:], options.layers)
    tables = tables if options.verbose else []
    tables.append(layer_gain.table(gain, experts=bool(timed)))
    words = [word for part in (gain, *parts) for word in part["verdict"]]
    _write(options, record, {"layer": layer_report.layer_section(record)}, tables, words)


def _write(
    options: argparse.Namespace,
    record: dict[str, Any],
    head: Mapping[str, text.Section],
    tables: Sequence[str],
    words: Sequence[str],
) -> None:
    """Writes the record, and shows what it says."""
    if options.json is not None:
        commands.write_json(options.json, record)
    supposed = costs.assumptions(record["fabric"], verbose=options.verbose)
    parts = [text.sections(head), *tables, text.sections({"simulated with": supposed})]
    sys.stdout.write("\n\n".join([*parts, "\n".join(words)]) + "\n")


def _that_fit(topology: fastjax.Topology) -> list[str]:
    """Schedulers that can plan for it, the one that chooses last; those that take no solver."""
    names = []
    for name in fastjax.schedulers():
        try:
            check_scheduler_fits(name, topology)
        except OptionError:
            continue
        if not scheduling.ALL[name].solves:
            names.append(name)
    return sorted(names, key=lambda name: scheduling.ALL[name].chooses)


def _save(path: Path, draw: Callable[[], Any]) -> None:
    commands.make_folder_of(path)
    try:
        draw().savefig(path)
    except ValueError as error:  # that is how matplotlib refuses types
        raise ArgumentError(f"{path}: {error}") from None
