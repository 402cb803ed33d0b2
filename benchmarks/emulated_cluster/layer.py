"""A layer's dispatch and combine in the cluster: tokens that cross once against once a choice."""

import argparse
import dataclasses
import re
from typing import Any

import numpy as np
import records

from emulated_cluster import launch, layer_work
from emulated_cluster.bench import merged
from emulated_cluster.fabric import Fabric
from emulated_cluster.options import add_job, add_rows

SCHEMA = "fastjax-emulated-layer-1"


def add_options(parser: argparse.ArgumentParser) -> None:
    """A switch that queues all: no packet is lost, as on InfiniBand and lossless Ethernet."""
    add_job(parser, rounds=5)
    add_rows(parser, seconds=2.0)
    parser.set_defaults(rate="50mbit", port_buffer="4m")
    add = parser.add_argument
    add(
        "--layers",
        type=_layer,
        nargs="+",
        default=[(64, 8, 0.0), (64, 8, 0.8), (8, 2, 0.0)],
        help="experts:choices:exponent, 64:8:0.8; the exponent is of their popularity's Zipf law",
    )
    add("--backward", action="store_true", help="take the gradients too")


def _layer(text: str) -> tuple[int, int, float]:
    found = re.fullmatch(r"(\d+):(\d+):(\d+(?:\.\d+)?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"want experts:choices:exponent, 64:8:0.8; got {text!r}.")
    return int(found[1]), int(found[2]), float(found[3])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the cluster, measures in it and returns the record."""
    drawn = [layer_work.of_seconds(options, *layer) for layer in options.layers]
    layers = {_name(dataclasses.asdict(layer)): layer for layer in drawn}
    names = ("rounds", "seconds", "backward", "row_bytes")
    with launch.recorded(SCHEMA, options, names) as (record, fabric):
        results = launch.run(
            fabric,
            "layer_worker.py",
            options,
            layers={name: dataclasses.asdict(layer) for name, layer in layers.items()},
            rounds=options.rounds,
            backward=options.backward,
        )
    record["experts"] = "multiply a few columns of their rows"
    record["layers"] = [
        _summary(layer, fabric, [result[name] for result in results], options.backward)
        for name, layer in layers.items()
    ]
    return record


def _name(layer: dict[str, Any]) -> str:
    return f"{layer['top_k']} of {layer['experts']}, Zipf {layer['exponent']:g}"


def _summary(
    layer: layer_work.Layer, fabric: Fabric, results: list[dict[str, Any]], backward: bool
) -> dict[str, Any]:
    """What all processes saw of a layer, from the first start to the last end of each run."""
    crossing = layer_work.crossing_once(layer, layer.choices())
    ways = 2 if backward else 1
    limit = ways * crossing.seconds(layer, fabric.rate)
    load = ways * 2 * crossing.total * layer.row_bytes
    schemes = []
    for name in results[0]:
        seen = merged([result[name] for result in results])
        sent = seen.sent[:, :, :-1].mean(0).sum()  # of the NICs, without the trunk
        schemes.append(
            {
                "scheme": name,
                "wrong": seen.wrong,
                "all_s": [round(s, 4) for s in seen.seconds],
                "by_limit": float(np.median(seen.seconds)) / limit,
                "sent_by_load": float(sent) / max(1, load),
                "machine_busy": seen.machine_busy,
            }
        )
    return {**dataclasses.asdict(layer), "limit_s": limit, "schemes": schemes}


def wrong(record: dict[str, Any]) -> int:
    """Tokens that differ from the reference."""
    return sum(scheme["wrong"] for layer in record["layers"] for scheme in layer["schemes"])


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    fabric, options = record["fabric"], record["options"]
    way = "Dispatch, combine and their gradients" if options["backward"] else "Dispatch and combine"
    about = (
        f"{way} of experts that {record.get('experts', 'do nothing')}, in {fabric['servers']} "
        f"servers of {fabric['rails']} devices with NICs of {fabric['rate'] / 1e6:g} Mbit/s, and a "
        f"switch that queues {fabric['port_buffer'] / 1024:g} KiB for each and drops the rest; "
        f"float32 rows of {options['row_bytes']} bytes. *limit*: one row for each token and other "
        "server that has an expert of its, at the busiest server, over all its NICs at line rate. "
        "*sent ÷ load*: bytes of all frames that NICs sent by those of these rows. Schemes run in "
        f"turn, {options['rounds']} times each, in random order."
    )
    header = ["layer", "limit s", "scheme", "median s", "min", "max", "÷ limit", "sent ÷ load"]
    header += ["wrong", "CPU"]
    rows = []
    for layer in record["layers"]:
        for scheme in layer["schemes"]:
            points = np.percentile(scheme["all_s"], [50, 0, 100])
            rows.append(
                [
                    _name(layer),
                    f"{layer['limit_s']:.3f}",
                    scheme["scheme"],
                    *(f"{point:.3f}" for point in points),
                    f"{scheme['by_limit']:.2f}",
                    f"{scheme['sent_by_load']:.2f}",
                    str(scheme["wrong"]),
                    f"{scheme['machine_busy']:.0%}",
                ]
            )
    table = records.table(header, rows, texts=1)
    return "\n\n".join([f"# {title}", about, table, records.conditions(record)]) + "\n"
