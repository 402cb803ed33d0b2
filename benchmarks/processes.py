"""What it costs to have the devices of one host in several processes, against one process.

    python benchmarks/processes.py --json processes.json

Both run side by side on this machine, by turns: the same rows, the same scheduler and topology. The
exit status is 1 where the median is more than --most times that of one process at 1 MiB a device or
more. Then small exchanges: nothing to send, which is the rendezvous of the processes and their
devices, and a row for each pair of devices.
"""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
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
SMALL_SHAPES = ((2, 1), (2, 4), (4, 2))
SMALL_ELEMENTS = 16
KIB = 1 << 10
JUDGED_FROM = 1 << 20
TURN_SECONDS = 0.05  # of exchanges, that a turn takes at least


@contextmanager
def fleet_of(*shapes: tuple[int, int]) -> Generator["Fleet"]:
    """Jobs on this machine, of so many processes and devices of each."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleet = Fleet({shape: _start(stack, f"{folder}/{shape}", shape) for shape in shapes})
        yield fleet
        for shape in shapes:
            fleet.tell(shape, "end")


def _start(stack: ExitStack, address: str, shape: tuple[int, int]) -> list[connection.Connection]:
    key = secrets.token_bytes(16)
    listener = stack.enter_context(connection.Listener(address, "AF_UNIX", authkey=key))
    stack.enter_context(
        multiprocess.Job(
            exchange_server.__file__,
            "serve",
            processes=shape[0],
            devices=shape[1],
            arguments={"address": address, "key": key.hex()},
        )
    )
    # All before any: their backends start together.
    processes = [stack.enter_context(listener.accept()) for _ in range(shape[0])]
    found = {process.recv()[1]: process for process in processes}
    return [found[number] for number in sorted(found)]


class Fleet:
    """Jobs that time what they are asked to.

    Args:
      processes: of each job, by its shape.
    """

    def __init__(self, processes: dict[tuple[int, int], list[connection.Connection]]) -> None:
        self._processes = processes

    def tell(self, shape: tuple[int, int], *what: Any) -> None:
        for process in self._processes[shape]:
            process.send(what)

    def ask(self, shape: tuple[int, int], *what: Any) -> list[Any]:
        """What every process of the job answers."""
        self.tell(shape, *what)
        return [process.recv() for process in self._processes[shape]]

    def side_by_side(
        self,
        traffic: np.ndarray,
        elements: int,
        scheduler: str,
        topology: tuple[int, int],
        rounds: int,
    ) -> list[list[float]]:
        """Seconds of an exchange, of every turn of every job; by turns, in random order."""
        turns, shapes = {}, list(self._processes)
        for shape in shapes:
            wrong = sum(self.ask(shape, "prepare", traffic, elements, scheduler, topology))
            if wrong:
                raise AssertionError(f"{wrong} rows are wrong: {shape}, {scheduler}, {topology}")
            one = max(self.ask(shape, "run", 3)) / 3
            turns[shape] = max(1, round(TURN_SECONDS / one))
        seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
        rng = np.random.default_rng(0)
        for _ in range(rounds):
            for at in rng.permutation(len(shapes)):
                shape = shapes[at]
                took = max(self.ask(shape, "run", turns[shape]))
                seconds[shape].append(took / turns[shape])
        return [seconds[shape] for shape in shapes]


def compare(
    sizes: Sequence[int], schedulers: Sequence[str], workload: str, rounds: int
) -> dict[str, Any]:
    """Exchanges of so many bytes a device."""
    cells = []
    with fleet_of((1, SHAPE[0] * SHAPE[1]), SHAPE) as fleet:
        for size in sizes:
            traffic = WORKLOADS[workload](*SHAPE, size // ROW_BYTES, 0)
            tiles = traffic.reshape(SHAPE * 2).sum(axis=(1, 3))
            crossing = 1 - tiles.trace() / tiles.sum()
            for scheduler in schedulers:
                one, several = fleet.side_by_side(traffic, ROW_BYTES // 4, scheduler, SHAPE, rounds)
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
        network = fleet.ask(SHAPE, "network")[0]
    return {"cells": cells, "connections": repr(network["nics"])}


def small(rounds: int) -> list[dict[str, Any]]:
    """Exchanges of a row for each pair of devices, and of nothing."""
    cells = []
    for shape in SMALL_SHAPES:
        devices = shape[0] * shape[1]
        kinds = {
            "no exchange": (np.zeros((devices, devices), np.int64), ""),
            "nothing to send": (np.zeros((devices, devices), np.int64), "fast"),
            "a row for each": (np.ones((devices, devices), np.int64), "fast"),
        }
        with fleet_of((1, devices), shape) as fleet:
            for name, (traffic, scheduler) in kinds.items():
                one, several = fleet.side_by_side(traffic, SMALL_ELEMENTS, scheduler, shape, rounds)
                cell = {
                    "shape": shape,
                    "name": name,
                    "one": records.spread(one),
                    "several": records.spread(several),
                }
                cells.append(cell)
                print(cell, flush=True)
    return cells


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


def small_table(cells: Sequence[dict[str, Any]]) -> str:
    header = ["processes x devices", "program", "µs", "quartiles", "one process, µs"]
    header += ["quartiles", "share of the meeting"]
    rows = []
    by_key = {(*cell["shape"], cell["name"]): cell["several"]["median"] for cell in cells}
    for cell in cells:
        row = [f"{cell['shape'][0]} x {cell['shape'][1]}", cell["name"]]
        for side in (cell["several"], cell["one"]):
            low, middle, high = (side[part] * 1e3 for part in ("p25", "median", "p75"))
            row += [f"{middle:.0f}", f"{low:.0f} to {high:.0f}"]
        none, nothing, few = (
            by_key[*cell["shape"], name]
            for name in ("no exchange", "nothing to send", "a row for each")
        )
        share = f"{(nothing - none) / (few - none):.0%}" if cell["name"] == "a row for each" else ""
        rows.append([*row, share])
    return records.table(header, rows)


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
    if record["small"]:
        meeting = (
            f"Small exchanges, rows of {4 * SMALL_ELEMENTS} bytes. *share of the meeting*: of what "
            "an exchange adds to the program, the part that it takes to meet and to learn each "
            "other's sizes, which is all there is when there is nothing to send."
        )
        parts += [meeting, small_table(record["small"])]
    return "\n\n".join([*parts, records.conditions(record)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = [64, 256, 1024, 4096, 16384, 65536]
    parser.add_argument("--kib", type=int, nargs="+", default=sizes, help="of a device's rows")
    parser.add_argument("--schedulers", nargs="+", default=["direct", "spreadout", "fast"])
    parser.add_argument("--workload", default="pair-zipf 0.8", choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True)
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
    record["small"] = small(options.rounds) if options.small else []
    records.publish(page(record, "Processes of one host"), record, options.json)
    judged = [cell for cell in record["cells"] if cell["bytes"] >= JUDGED_FROM]
    return 1 if any(cell["ratio"] > options.most for cell in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
