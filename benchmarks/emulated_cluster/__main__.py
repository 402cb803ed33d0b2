"""`python benchmarks/emulated_cluster [bench|layer|overlap|train|down]`; bench by default."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: ours are found from the one above, the launcher in tests/
    sys.path[:0] = [
        str(Path(__file__).parents[1]),
        str(Path(__file__).parents[2] / "tests/support"),
    ]

import records

from emulated_cluster import bench, layer, overlap, system, training
from emulated_cluster.options import (
    BenchOptions,
    FabricOptions,
    LayerOptions,
    OverlapOptions,
    TrainingOptions,
)
from emulated_cluster.system import ClusterError

PROGRAM = "python benchmarks/emulated_cluster"
# By command: its options, and the module that measures, with its page's title.
MEASURED: dict[str, tuple[Any, Any, str]] = {
    "bench": (BenchOptions, bench, "Exchanges in an emulated cluster"),
    "layer": (LayerOptions, layer, "A layer of experts in an emulated cluster"),
    "overlap": (OverlapOptions, overlap, "Exchanges beside experts in an emulated cluster"),
    "train": (TrainingOptions, training, "Training in an emulated cluster"),
}


def measure(options: Any, module: Any, title: str) -> int:
    """Prints a page and writes a record; the exit status is 1 if a row or a token is wrong."""
    record = module.run(options)
    records.publish(module.page(record, title), record, options.json)
    return 1 if module.wrong(record) else 0


def down(options: FabricOptions) -> int:
    """Takes down what a killed run has left, and kills what runs in it."""
    fabric = options.fabric()
    with system.lock(fabric.name):
        fabric.down()
    return 0


def main(arguments: Sequence[str]) -> int:
    try:
        import tyro
    except ImportError:
        sys.stderr.write("this needs tyro: pip install 'fastjax[bench]'\n")
        return 2
    # A polite end takes everything down as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = arguments[0] if arguments and arguments[0] in (*MEASURED, "down") else "bench"
    rest = arguments[arguments[:1] == [name] :]
    try:
        if name == "down":
            return down(tyro.cli(FabricOptions, prog=f"{PROGRAM} down", args=rest))
        kind, module, title = MEASURED[name]
        return measure(tyro.cli(kind, prog=f"{PROGRAM} {name}", args=rest), module, title)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
