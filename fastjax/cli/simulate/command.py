"""What an exchange, or a layer, would cost, on the command line: `python -m fastjax simulate`."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import fastjax
from fastjax import plot, scheduling
from fastjax.cli.shared import options, statistics, text
from fastjax.cli.simulate import balance, exchange, layer
from fastjax.simulation import INCAST, PRESETS, SYNCHRONIZATIONS, Fabric

DESCRIPTION = (
    "Plans one exchange with several schedulers, simulates each plan on a cluster, and says what "
    "planning gains over sending all at once, and what limits it. Or dispatch and combine of a "
    "layer of experts: what they take as people have them, and planned, deduplicated, in chunks or "
    "with levelled experts. Nothing is measured."
)
EPILOG = options.BUSIEST


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    add = parser.add_argument
    options.add_traffic(parser)
    layer.add_options(parser)
    known = f"of {', '.join(fastjax.schedulers())}; default: all that can plan for this fabric, "
    add(
        "--schedulers",
        nargs="+",
        choices=fastjax.schedulers(),
        metavar="NAME",
        help=f"{known}without optimal",
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
    options.add_fabric(parser)
    add("--verbose", action="store_true", help="show all numbers")
    add(
        "--draw",
        type=Path,
        metavar="FILE",
        help="draw what happens when, of the best one: .png, .svg, .pdf, ...; of a layer, of its "
        "ways in one chunk, the best one and the default; with --balance, the rows of its devices "
        "before and after",
    )


Shown = tuple[fastjax.Topology, list[str], list[str]]
"""The fabric's rates, what was found, and what it means: sentences."""


def run(given: argparse.Namespace) -> None:
    """Simulates, and shows what it would cost."""
    fabric = fabric_of(given)
    simulated = _layer if layer.is_asked_for(given) else _exchange
    topology, parts, words = simulated(given, fabric)
    parts += [text.sections({"simulated with": _assumptions(given, topology, fabric)})]
    sys.stdout.write("\n\n".join([*parts, "\n".join(words)]) + "\n")


def fabric_of(given: argparse.Namespace) -> Fabric:
    """How the fabric behaves."""
    incast = given.incast or (PRESETS[given.preset].incast if given.preset else "none")
    return Fabric(given.synchronization, incast, given.oversubscription)


def schedulers_of(given: argparse.Namespace, topology: fastjax.Topology) -> list[str]:
    """Those asked for; or those that can plan there without a solver, the one that chooses last."""
    names = [n for n in scheduling.schedulers_in_programs() if scheduling.fits(n, topology)]
    return given.schedulers or sorted(names, key=lambda name: scheduling.ALL[name].chooses)


def _exchange(given: argparse.Namespace, fabric: Fabric) -> Shown:
    source = options.load(given)
    costs = exchange.simulate(source, fabric, schedulers_of(given, source.topology))
    if given.draw is not None:
        options.save_picture(given.draw, costs.best.timeline.plot)
    traffic = statistics.traffic_section(costs.best.plan, source.name)
    parts = [text.sections({"traffic": traffic}), exchange.table(costs, verbose=given.verbose)]
    return source.topology, parts, exchange.verdict(costs)


def _layer(given: argparse.Namespace, fabric: Fabric) -> Shown:
    work = layer.load(given, fabric)
    schedulers = schedulers_of(given, work.topology)
    theirs, ours = layer.peers(work), layer.simulate(work, schedulers)
    compared, others, words = layer.compared(work, ours), {}, []
    draw = functools.partial(plot.plot_layers, [*compared.values()])
    if work.levelled is not None and work.model is not None:
        levelled, _ = work.levelled
        found = layer.simulate(levelled, schedulers)
        best = layer.best_of(found)
        compared[f"{best}, levelled"] = found[best]
        others = layer.as_eplb(work, schedulers)
        words = balance.verdict(work.model, work.counts, work.tokens.count, work.tokens.top_k)
        loads = (each.traffic.each.sum(0) for each in (work, levelled))
        draw = functools.partial(plot.plot_loads, *loads, servers=work.topology.servers)
    if given.draw is not None:
        options.save_picture(given.draw, draw)
    if given.verbose:
        known = {id(times) for times in compared.values()}
        others |= {name: times for name, times in ours.items() if id(times) not in known}
    parts = [
        text.sections({"layer": layer.section(work)}),
        layer.table(work, theirs | compared | others, verbose=given.verbose),
    ]
    return work.topology, parts, layer.verdict(work, theirs, compared) + words


def _assumptions(
    given: argparse.Namespace, topology: fastjax.Topology, fabric: Fabric
) -> text.Section:
    """What the simulation supposes of the fabric, for people."""
    up, out = topology.scale_up_bandwidth / 1e9, topology.scale_out_bandwidth / 1e9
    starts = map(text.seconds, (topology.scale_up_latency, topology.scale_out_latency))
    return {
        **options.preset_section(given.preset),
        "rates": f"{up:.3g} GB/s a device inside servers, {out:.3g} GB/s a NIC; to start takes "
        f"{' and '.join(starts)}",
        "fabric": str(fabric),
        "measured": "nothing",
    }
