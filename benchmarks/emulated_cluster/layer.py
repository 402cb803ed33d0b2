"""A layer's dispatch and combine in the cluster: tokens that cross once against once a choice."""

import dataclasses
from typing import Any

import numpy as np
import records

from emulated_cluster import launch, layer_work
from emulated_cluster.bench import merge_run
from emulated_cluster.fabric import Fabric
from emulated_cluster.options import LayerOptions

SCHEMA = "fastjax-emulated-layer-1"


def run(options: LayerOptions) -> dict[str, Any]:
    """Makes the cluster, measures in it and returns the record."""
    names = ("rounds", "seconds", "backward", "row_bytes")
    with launch.recorded(SCHEMA, options, names) as (record, fabric):
        kinds = (kind.split(":") for kind in options.layers)
        drawn = [layer_work.of_seconds(options, int(e), int(k), float(x)) for e, k, x in kinds]
        layers = {_name(dataclasses.asdict(layer)): layer for layer in drawn}
        results = launch.run(
            fabric,
            "layer_worker.py",
            options,
            layers={name: dataclasses.asdict(layer) for name, layer in layers.items()},
            schemes=options.schemes,
            rounds=options.rounds,
            backward=options.backward,
        )
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
    crossings = layer_work.crossings(layer, layer.choices())
    ways = 2 if backward else 1
    limit = ways * crossings["once"].seconds(layer, fabric.rate)
    load = ways * 2 * crossings["once"].total * layer.row_bytes
    schemes = []
    for name in results[0]:
        parts = [result[name] for result in results]
        runs = list(zip(*(part["runs"] for part in parts), strict=True))
        seconds = [merge_run(run)["seconds"] for run in runs]
        # Of the NICs, without the trunk.
        sent = np.mean([[part["sent"][:-1] for part in run] for run in runs], axis=0)
        schemes.append(
            {
                "scheme": name,
                "wrong": sum(part["wrong"] for part in parts),
                "all_s": [round(s, 4) for s in seconds],
                "by_limit": float(np.median(seconds)) / limit,
                "sent_by_load": float(sent.sum()) / max(1, load),
                "machine_busy": round(max(merge_run(run)["machine"] for run in runs), 3),
            }
        )
    return {
        **dataclasses.asdict(layer),
        "rows": {name: dataclasses.asdict(crossing) for name, crossing in crossings.items()},
        "limit_s": limit,
        "schemes": schemes,
    }


def wrong(record: dict[str, Any]) -> int:
    """Tokens that differ from the reference."""
    return sum(scheme["wrong"] for layer in record["layers"] for scheme in layer["schemes"])


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    fabric, options = record["fabric"], record["options"]
    way = "Dispatch, combine and their gradients" if options["backward"] else "Dispatch and combine"
    about = (
        f"{way} of experts that do nothing, in {fabric['servers']} servers of {fabric['rails']} "
        f"devices with NICs of {fabric['rate'] / 1e6:g} Mbit/s, and a switch that queues "
        f"{fabric['port_buffer'] / 1024:g} KiB for each and drops the rest; float32 rows of "
        f"{options['row_bytes']} bytes. *limit*: one row for each token and other server that has "
        "an expert of its, at the busiest server, over all its NICs at line rate. *sent ÷ load*: "
        "bytes of all frames that NICs sent by those of these rows. Schemes run in turn, "
        f"{options['rounds']} times each, in random order."
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
