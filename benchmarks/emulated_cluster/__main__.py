"""`python benchmarks/emulated_cluster [bench|layer|overlap|train|down]`; bench by default."""

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: ours are found from the one above, the launcher in tests/
    sys.path[:0] = [
        str(Path(__file__).parents[1]),
        str(Path(__file__).parents[2] / "tests/support"),
    ]

import records

from emulated_cluster import bench, layer, overlap, report, system, training
from emulated_cluster.options import (
    BenchOptions,
    FabricOptions,
    LayerOptions,
    MeasuredOptions,
    OverlapOptions,
    TrainingOptions,
)
from emulated_cluster.system import ClusterError

PROGRAM = "python benchmarks/emulated_cluster"


def run_bench(options: BenchOptions) -> int:
    """Measures exchanges; the exit status is 1 if a row is wrong."""
    record = bench.run(options)
    _publish(report.page(record, "Exchanges in an emulated cluster"), record, options)
    return 1 if report.wrong(record) else 0


def run_layer(options: LayerOptions) -> int:
    """Measures a layer; the exit status is 1 if a token is wrong."""
    record = layer.run(options)
    _publish(layer.page(record, "A layer of experts in an emulated cluster"), record, options)
    return 1 if layer.wrong(record) else 0


def run_overlap(options: OverlapOptions) -> int:
    """Measures a layer in chunks; the exit status is 1 if a token is wrong."""
    record = overlap.run(options)
    _publish(
        overlap.page(record, "Exchanges beside experts in an emulated cluster"), record, options
    )
    return 1 if overlap.wrong(record) else 0


def run_training(options: TrainingOptions) -> int:
    """Trains, and times steps."""
    record = training.run(options)
    _publish(training.page(record, "Training in an emulated cluster"), record, options)
    return 0


def _publish(page: str, record: dict[str, Any], options: MeasuredOptions | TrainingOptions) -> None:
    sys.stdout.write(page)
    if options.json is not None:
        records.write(options.json, record)


def run_down(options: FabricOptions) -> int:
    """Takes down what a killed run has left, and kills what runs in it."""
    fabric = options.fabric()
    with system.lock(fabric.name):
        fabric.down()
    return 0


COMMANDS: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "bench": (BenchOptions, run_bench),
    "layer": (LayerOptions, run_layer),
    "overlap": (OverlapOptions, run_overlap),
    "train": (TrainingOptions, run_training),
    "down": (FabricOptions, run_down),
}


def main(arguments: Sequence[str]) -> int:
    try:
        import tyro
    except ImportError:
        sys.stderr.write("this needs tyro: pip install 'fastjax[bench]'\n")
        return 2
    # A polite end takes everything down as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = arguments[0] if arguments and arguments[0] in COMMANDS else "bench"
    rest = arguments[1:] if arguments and arguments[0] in COMMANDS else arguments
    kind, command = COMMANDS[name]
    try:
        return command(tyro.cli(kind, prog=f"{PROGRAM} {name}", args=rest))
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
