"""A layer in chunks in the cluster: experts that take a set time, beside exchanges."""

import argparse
import dataclasses
from typing import Any

import numpy as np
import records

from emulated_cluster import launch, layer_work, timelines
from emulated_cluster.bench import merged
from emulated_cluster.options import add_job, add_rows, count, positive

SCHEMA = "fastjax-emulated-overlap-3"


def add_options(parser: argparse.ArgumentParser) -> None:
    """NICs that are slow, so that two cores copy and send in a small part of what rows take.

    Rows are small, since of few tokens a chunk's experts would be less equally popular. Ports of
    the switch queue all, so that no packet is lost.
    """
    add_job(parser, rounds=5)
    add_rows(parser, seconds=1.0, row_bytes=512)
    parser.set_defaults(rate="12500kbit", port_buffer="4m", nic_buffer="512k")
    add = parser.add_argument
    add("--experts", type=count, default=64, help="of all devices together")
    add("--top-k", type=count, default=8, help="choices of a token")
    add("--chunks", type=count, nargs="+", default=[1, 2, 4], help="beside what moe.layer chooses")
    add(
        "--ratios",
        type=positive,
        nargs="+",
        default=[0.5, 1.0, 2.0],
        help="what experts take, as a multiple of what exchanges take alone",
    )
    add("--exponent", type=float, default=0.0, help="of the Zipf law of experts' popularity")
    add("--backward", action="store_true", help="take the gradients too")
    add(
        "--deduplicate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether a token crosses once to each server",
    )
    add("--balance", action="store_true", help="measure all with levelled experts, too")
    add(
        "--timelines",
        action="store_true",
        help="record when experts work and NICs send, in one more run of the fewest and of the "
        "most chunks, at the ratio nearest to 1",
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the cluster, measures in it and returns the record."""
    layer = layer_work.of_seconds(options, options.experts, options.top_k, options.exponent)
    names = ("rounds", "backward", "deduplicate", "balance")
    with launch.recorded(SCHEMA, options, names) as (record, fabric):
        record["layer"] = dataclasses.asdict(layer)
        results = launch.run(
            fabric,
            "overlap_worker.py",
            options,
            layer=record["layer"],
            chunks=options.chunks,
            ratios=options.ratios,
            timelines=options.timelines,
            **record["options"],
        )
    record["cells"] = [
        _cell(float(ratio), name, [result[ratio][name] for result in results])
        for ratio in results[0]
        for name in results[0][ratio]
    ]
    (first, *_), *_ = (programs.values() for programs in results[0].values())
    record["one_token_s"] = round(first["one_token_s"], 4)
    if options.timelines:
        record["timelines"] = _timelines(results, fabric.rate)
    return record


def _cell(ratio: float, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all processes saw of a program."""
    seen = merged(parts)
    sent = seen.sent[:, :, :-1].sum((1, 2))  # of the NICs of all servers, without trunks
    return {
        "ratio": ratio,
        "program": name,
        "wrong": seen.wrong,
        "all_s": [round(s, 4) for s in seen.seconds],
        "sent_bytes": round(float(np.median(sent))),
        "model_s": round(parts[0]["model_s"], 4),
        "machine_busy": seen.machine_busy,
    }


def _timelines(results: list[dict[str, Any]], rate: float) -> list[dict[str, Any]]:
    """Those that processes have recorded, one for each program and server."""
    return [
        timeline
        for ratio, programs in results[0].items()
        for name, measured in programs.items()
        if "timeline" in measured
        for timeline in timelines.merged(
            float(ratio), name, rate, [result[ratio][name]["timeline"] for result in results]
        )
    ]


def wrong(record: dict[str, Any]) -> int:
    """Tokens whose value or gradient differs from the reference."""
    return sum(cell["wrong"] for cell in record["cells"])


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    fabric, layer, options = record["fabric"], record["layer"], record["options"]
    way = "forward and backward" if options["backward"] else "forward"
    once = "once to each server" if options["deduplicate"] else "once for each choice"
    popular = f"popular by Zipf's law with {layer['exponent']:g}, " if layer["exponent"] else ""
    taking, levelled = "experts alone take", ""
    if options.get("balance"):
        taking = "experts take on average"
        levelled = "*levelled*: devices compute for others of their server. "
    counted = ""
    if _has_sent(record):
        counted = "*sent*: all frames of all NICs, by their interfaces' counters, the median. "
    about = (
        f"A layer, {way}, in {fabric['servers']} servers of {fabric['rails']} devices with NICs of "
        f"{fabric['rate'] / 1e6:g} Mbit/s: {layer['tokens']} tokens of {layer['row_bytes']} bytes "
        f"on each device, {layer['top_k']} of {layer['experts']} experts, {popular}sent {once}. "
        "Experts "
        "sleep for a time that is proportional to their rows: they use no processor of this "
        f"machine, as if they had one of their own. *ratio*: what {taking}, by what "
        f"exchanges alone take. {levelled}*÷ one chunk*, *÷ longer*: the median, by that of one "
        "chunk and by "
        f"that of the longer of the two alone. Programs run in turn, {options['rounds']} times "
        f"each, in random order. {counted}*model*: what the model of a layer predicts, and that by "
        "the median. It knows the rates and latencies of the fabric, and takes a backward pass for "
        "a layer whose experts take twice as long. It leaves out what counts take, and what this "
        "machine takes to begin anything. So what a layer of one token in one chunk takes longer "
        f"than the model says is added: it takes {record['one_token_s']:.3f} s here."
    )
    header = ["ratio", "program", "median s", "min", "max", "÷ one chunk", "÷ longer", "wrong"]
    header += ["model s", "model", "CPU"] + ["sent MB"] * _has_sent(record)
    rows = [_row(cell, record["cells"]) for cell in record["cells"]]
    table = records.table(header, rows, texts=2)
    return "\n\n".join([f"# {title}", about, table, records.conditions(record)]) + "\n"


def _row(cell: dict[str, Any], cells: list[dict[str, Any]]) -> list[str]:
    medians = {
        other["program"]: np.median(other["all_s"])
        for other in cells
        if other["ratio"] == cell["ratio"]
    }
    points = np.percentile(cell["all_s"], [50, 0, 100])
    longer = max(median for name, median in medians.items() if name.endswith("alone"))
    by_one = f"{points[0] / medians['1']:.2f}" if "1" in medians else ""
    name = cell["program"]
    return [
        f"{cell['ratio']:g}",
        name if name.endswith("alone") else f"chunks: {name}",
        *(f"{point:.3f}" for point in points),
        by_one,
        f"{points[0] / longer:.2f}",
        str(cell["wrong"]),
        f"{cell['model_s']:.3f}",
        f"{cell['model_s'] / points[0]:.2f}",
        f"{cell['machine_busy']:.0%}",
        *([f"{cell['sent_bytes'] / 1e6:.3f}"] if "sent_bytes" in cell else []),
    ]


def _has_sent(record: dict[str, Any]) -> bool:
    """Whether bytes were counted."""
    return all("sent_bytes" in cell for cell in record["cells"])
