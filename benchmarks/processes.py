"""What it costs to have the devices of one host in several processes, against one process.

    python benchmarks/processes.py --json processes.json

Both run side by side on this machine, by turns: the same rows, the same scheduler and topology. The
exit status is 1 where the median is more than --most times that of one process at 1 MiB a device or
more.
"""

import argparse
import itertools
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import connection
from pathlib import Path
from typing import Any

import exchange_server
import numpy as np
import records
from workloads import WORKLOADS

sys.path.append(str(Path(__file__).parents[1] / "tests/support"))

import multiprocess

SCHEMA = "fastjax-processes-1"
ROW_BYTES = 4096
SHAPE = (2, 4)
KIB = 1 << 10
JUDGED_FROM = 1 << 20
TURN_SECONDS = 0.05  # of exchanges, that a turn takes at least


class Fleet:
    """A job of one process and one of several, on this machine, that time what they are asked to.

    Args:
      stack: ends them.
    """

    def __init__(self, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self._jobs = [
            self._start(stack, f"{folder}/{processes}", processes, devices)
            for processes, devices in ((1, SHAPE[0] * SHAPE[1]), SHAPE)
        ]

    @staticmethod
    def _start(
        stack: ExitStack, address: str, processes: int, devices: int
    ) -> list[connection.Connection]:
        key = secrets.token_bytes(16)
        listener = stack.enter_context(connection.Listener(address, "AF_UNIX", authkey=key))
        stack.enter_context(
            multiprocess.Job(
                exchange_server.__file__,
                "serve",
                processes=processes,
                devices=devices,
                arguments={"address": address, "key": key.hex()},
            )
        )
        # All before any: their backends start together.
        asked = [stack.enter_context(listener.accept()) for _ in range(processes)]
        found = {process.recv(): process for process in asked}
        return [found[number] for number in sorted(found)]

    def network(self) -> Any:
        """State of the connections of the several."""
        return self._ask(self._jobs[1], "network")[0]

    def end(self) -> None:
        for process in itertools.chain(*self._jobs):
            process.send(("end",))

    @staticmethod
    def _ask(job: list[connection.Connection], *what: Any) -> list[Any]:
        """What every process of a job answers."""
        for process in job:
            process.send(what)
        return [process.recv() for process in job]

    def side_by_side(self, traffic: np.ndarray, scheduler: str, rounds: int) -> list[list[float]]:
        """Seconds of an exchange, of every turn of both jobs; by turns, in random order."""
        turns = []
        for job in self._jobs:
            wrong = sum(self._ask(job, "prepare", traffic, ROW_BYTES, scheduler, SHAPE))
            if wrong:
                raise AssertionError(f"{wrong} rows are wrong: {len(job)} processes, {scheduler}")
            one = max(self._ask(job, "run", 3)) / 3
            turns.append(max(1, round(TURN_SECONDS / one)))
        seconds: list[list[float]] = [[], []]
        rng = np.random.default_rng(0)
        for _ in range(rounds):
            for at in rng.permutation(2):
                took = max(self._ask(self._jobs[at], "run", turns[at]))
                seconds[at].append(took / turns[at])
        return seconds


def compare(
    sizes: Sequence[int], schedulers: Sequence[str], workload: str, rounds: int
) -> dict[str, Any]:
    """Exchanges of so many bytes a device."""
    cells = []
    with ExitStack() as stack:
        fleet = Fleet(stack)
        for size in sizes:
            traffic = WORKLOADS[workload](*SHAPE, size // ROW_BYTES, 0)
            tiles = traffic.reshape(SHAPE * 2).sum(axis=(1, 3))
            crossing = 1 - tiles.trace() / tiles.sum()
            for scheduler in schedulers:
                one, several = fleet.side_by_side(traffic, scheduler, rounds)
                ratios = np.array(several) / np.array(one)
                cell = {
                    "bytes": size,
                    "scheduler": scheduler,
                    "crossing": round(float(crossing), 3),
                }
                cell |= {"one": records.spread(one), "several": records.spread(several)}
                cell["ratio"] = round(float(np.median(several) / np.median(one)), 3)
                cell["ratios"] = [round(float(r), 3) for r in np.percentile(ratios, [25, 75])]
                cell["load"] = round(os.getloadavg()[0], 1)
                cells.append(cell)
                print(cell, flush=True)
        network = fleet.network()
        fleet.end()
    return {"cells": cells, "connections": repr(network["nics"])}


def size_table(cells: Sequence[dict[str, Any]]) -> str:
    header = ["scheduler", "KiB a device", "crossing", "one process, ms", "quartiles"]
    header += ["two processes, ms", "quartiles", "ratio", "quartiles of the turns' ratios", "load"]
    rows = []
    for cell in cells:
        row = [cell["scheduler"], f"{cell['bytes'] / KIB:g}", f"{cell['crossing']:.2f}"]
        for side in (cell["one"], cell["several"]):
            row += [f"{side['median']:.2f}", f"{side['p25']:.2f} to {side['p75']:.2f}"]
        low, high = cell["ratios"]
        rows.append([*row, f"{cell['ratio']:.2f}", f"{low:.2f} to {high:.2f}", f"{cell['load']:g}"])
    return records.table(header, rows, texts=1)


def page(record: dict[str, Any], title: str) -> str:
    work = record["workload"]
    about = (
        f"{SHAPE[0]} processes of {SHAPE[1]} CPU devices against one process of "
        f"{SHAPE[0] * SHAPE[1]}, on one host, by turns in random order ({work['rounds']} each): "
        f"{work['workload']}, rows of {ROW_BYTES} bytes, the same topology for both, output "
        "donated, every row compared with numpy's. A turn is some exchanges one after the other, "
        f"of {TURN_SECONDS * 1e3:g} ms or one exchange at least; figures are of one exchange, "
        "quartiles over turns. *crossing*: share of the rows that go from process to process. "
        "*load*: average of runnable programs."
    )
    connections = (
        f"Connections: `{record['connections']}`. Rows of more than 8 KiB are read from the memory "
        "of the process that has them; all else goes through memory that two processes share."
    )
    parts = [f"# {title}", about, size_table(record["cells"]), connections]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = [64, 256, 1024, 4096, 16384, 65536]
    parser.add_argument("--kib", type=int, nargs="+", default=sizes, help="of a device's rows")
    parser.add_argument("--schedulers", nargs="+", default=["direct", "spreadout", "fast"])
    parser.add_argument("--workload", default="pair-zipf 0.8", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--most", type=float, default=2.0, help="times one process's time")
    parser.add_argument("--json", type=Path, help="file for the record")
    options = parser.parse_args(arguments)
    if min(options.kib) < ROW_BYTES * SHAPE[0] * SHAPE[1] // KIB:
        parser.error("--kib must be 32 or more: a row for each pair of devices.")
    record = records.stamp(SCHEMA)
    record["workload"] = {
        "workload": options.workload,
        "rounds": options.rounds,
        "most": options.most,
    }
    sizes = [size * KIB for size in options.kib]
    record |= compare(sizes, options.schedulers, options.workload, options.rounds)
    records.publish(page(record, "Processes of one host"), record, options.json)
    judged = [cell for cell in record["cells"] if cell["bytes"] >= JUDGED_FROM]
    return 1 if any(cell["ratio"] > options.most for cell in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
