"""Training in the cluster: what a step takes with fastjax, and with padded blocks over gloo."""

import argparse
import tempfile
from typing import Any

import numpy as np
import records

from emulated_cluster import launch
from emulated_cluster.options import add_job, count
from fastjax.scheduling import schedulers_in_programs

SCHEMA = "fastjax-training-1"
DENSE = "dense, padded"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_job(parser, rounds=7)
    add, known = parser.add_argument, schedulers_in_programs()
    add("--schedulers", nargs="+", default=known, choices=known, help="those to measure")
    add(
        "--ways",
        nargs="+",
        default=["once:1", "once:4", "each:1", "each:4"],
        help="other layers to measure: how often a token crosses to a server, and chunks",
    )
    add("--steps", type=count, default=30, help="of training first, so that routing is real")
    add("--sequences", type=count, default=4, help="of 64 bytes, of a device in a step")
    add("--width", type=count, default=64, help="of a token")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the cluster, trains in it and returns the record."""
    names = ("steps", "rounds", "sequences", "width")
    with (
        launch.recorded(SCHEMA, options, names) as (record, fabric),
        tempfile.TemporaryDirectory() as folder,
    ):
        to_train = {
            **record["options"],
            "compared": options.schedulers,
            "compared_ways": options.ways,
            "processes": fabric.servers,
            "devices": fabric.servers * fabric.rails,
            "folder": folder,
        }
        results = launch.run(fabric, "training_worker.py", options, training=to_train)
    record["losses"] = [round(loss, 6) for loss in results[0]["losses"]]
    record["layers"] = [
        {"layer": layer, "all_s": _slowest([result["compared"][layer] for result in results])}
        for layer in results[0]["compared"]
    ]
    return record


def _slowest(seconds: list[list[float]]) -> list[float]:
    """Of each round: a step has ended when all processes have ended it."""
    return np.max(seconds, axis=0).round(4).tolist()


def wrong(_: dict[str, Any]) -> int:
    """Nothing is compared here."""
    return 0


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    fabric, options = record["fabric"], record["options"]
    dense = next(e["all_s"] for e in record["layers"] if e["layer"] == DENSE)
    rows = []
    for entry in record["layers"]:
        points = np.percentile(entry["all_s"], [50, 25, 75, 0, 100])
        # Both ran in every round, minutes apart from no other.
        faster = np.median(np.divide(dense, entry["all_s"]))
        rows.append([entry["layer"], *(f"{p:.3f}" for p in points), f"{faster:.2f}"])
    header = ["layer", "median s", "p25", "p75", "min", "max", "times the dense one's speed"]
    about = (
        f"Steps of `examples/train_moe.py`, forward, backward and update, {fabric['servers']} "
        f"processes of {fabric['rails']} CPU devices, each with {options['sequences']} sequences "
        f"of 64 bytes, width {options['width']}, three layers of 8 experts, 2 for each token; "
        f"after {options['steps']} steps of training, loss {record['losses'][0]:.3f} to "
        f"{record['losses'][-1]:.3f}. NICs of {fabric['rate'] / 1e6:g} Mbit/s. All layers run once "
        f"in each of {options['rounds']} rounds, in random order; speeds are compared round by "
        "round. *once:4* is the layer in 4 chunks with tokens that cross once to each server, "
        "*each:1* that in one chunk with rows that cross once for each choice; the others choose. "
        "The dense layer pads to a slot for each token at each expert and sends by "
        "`jax.lax.all_to_all` over gloo, which has all NICs of a server together."
    )
    table = records.table(header, rows, texts=1)
    return "\n\n".join([f"# {title}", about, table, records.conditions(record)]) + "\n"
