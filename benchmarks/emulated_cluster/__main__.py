"""`python benchmarks/emulated_cluster [bench|layer|overlap|train|down]`; bench by default."""

import argparse
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

from emulated_cluster import bench, layer, options, overlap, system, training
from emulated_cluster.system import ClusterError

PROGRAM = "python benchmarks/emulated_cluster"
# By command: the module that measures, and its page's title.
MEASURED: dict[str, tuple[Any, str]] = {
    "bench": (bench, "Exchanges in an emulated cluster"),
    "layer": (layer, "A layer of experts in an emulated cluster"),
    "overlap": (overlap, "Exchanges beside experts in an emulated cluster"),
    "train": (training, "Training in an emulated cluster"),
}


def measure(module: Any, title: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Prints a page and writes a record; the exit status is 1 if a row or a token is wrong."""
    module.add_options(parser)
    given = parser.parse_args(words)
    record = module.run(given)
    records.publish(module.page(record, title), record, given.json)
    return 1 if module.wrong(record) else 0


def down(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Takes down what a killed run has left, and kills what runs in it."""
    fabric = options.fabric_of(parser.parse_args(words))
    with system.lock(fabric.name):
        fabric.down()
    return 0


def main(arguments: Sequence[str]) -> int:
    # A polite end takes everything down as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = arguments[0] if arguments and arguments[0] in (*MEASURED, "down") else "bench"
    rest = arguments[arguments[:1] == [name] :]
    module, title = MEASURED.get(name, (None, ""))
    about = module.__doc__ if module else down.__doc__
    parser = options.of_network(f"{PROGRAM} {name}", f"{about} As root on Linux.")
    try:
        return measure(module, title, parser, rest) if module else down(parser, rest)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
