"""Faults x phases: what the processes of a job say when one of them is hurt, and how soon.

    python benchmarks/fault_matrix.py                          # a quarter of an hour
    python benchmarks/fault_matrix.py --only "kill -9" --json build/faults.json

What must hold is in tests/faults/fault_cells.py; the exit status is 1 where it did not. Links are
cut in an emulated cluster, which needs Linux and root: elsewhere those rows are left out, which is
said.
"""

import argparse
import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import records

SCHEMA = "fastjax-faults-1"
LATE = 5  # seconds after the time-out that an error may take
_CALL = re.compile(r"(\w+) over axis '\w+' \(channel \d+\): ")


def run(only: str) -> dict[str, Any]:
    """Runs all jobs of the matrix that have this in their names; returns the record."""
    tests = Path(__file__).parents[1] / "tests"
    sys.path[:0] = map(str, [tests / "faults", tests / "support", tests])
    import fault_cells
    import fault_kinds
    import fault_scene
    import leftovers

    record = records.stamp(SCHEMA) | {"timeout_s": fault_scene.TIMEOUT}
    record["no_hosts"] = fault_kinds.no_hosts()
    cells: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    with contextlib.ExitStack() as stack:
        worlds = [fault_kinds.World()]
        if not record["no_hosts"]:
            worlds.append(stack.enter_context(fault_kinds.three_hosts("fjmatrix")))
        for world in worlds:
            for name, job in fault_cells.runs(world).items():
                if only not in name:
                    continue
                before = leftovers.Leftovers()
                try:
                    for cell in job():
                        cells.append(portable(dataclasses.asdict(cell)))
                        print(" | ".join(row(cells[-1])), flush=True)
                    if left := before.after(fault_scene.HANG):
                        raise fault_scene.SceneError(f"left behind: {left}")
                except Exception as error:  # noqa: BLE001  # the others are run all the same
                    failed.append({"job": name, "where": world.name, "why": str(error)})
                    print(f"FAILED: {name}, {world.name}: {error}", flush=True)
    return record | {"cells": cells, "failed": failed}


def portable(what: Any) -> Any:
    """The same without the folders of this machine's libraries."""
    if isinstance(what, dict):
        return {key: portable(value) for key, value in what.items()}
    if isinstance(what, list):
        return [portable(value) for value in what]
    return re.sub(r"/\S+/(lib\w+\.so[\d.]*)", r"\1", what) if isinstance(what, str) else what


def short(text: str) -> str:
    """An error without what all of them say, for a table."""
    # Calls of layers keep their names.
    text = _CALL.sub(lambda m: "" if m[1] == "fast_ragged_all_to_all" else f"{m[1]}: ", text)
    text = re.sub(r"which did not reach this call: .*?(forwards|planning|gathering)", "...", text)
    text = re.sub(r" (Look for a process that|Every process must).*", "", text)
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= 200 else text[:197] + "..."


def said(errors: Sequence[str]) -> str:
    """What survivors said: one that found out by itself, where not all results are right."""
    found = [error for error in errors if error]
    if not found:
        return "all right"
    own = [error for error in found if " gave up: " not in error]
    rest = f"; {len(errors) - len(found)} right" if len(found) < len(errors) else ""
    return short((own or found)[0]) + rest


def row(cell: dict[str, Any]) -> list[str]:
    """A line of the table."""
    victim = "-" if cell["victim"] is None else short(cell["victim"]) or "right"
    then = short(cell["then"]) or "-"
    time = f"{abs(cell['seconds']):.2f}"
    return [
        cell["fault"],
        cell["phase"],
        cell["where"],
        said(cell["survivors"]),
        victim,
        then,
        time,
    ]


def late(record: dict[str, Any]) -> Iterator[str]:
    """Errors that took too long."""
    for cell in record["cells"]:
        # A process that has not joined is waited for five times as long.
        timeouts = 5 if cell["phase"].startswith("bootstrap") else 1
        if any(cell["survivors"]) and cell["seconds"] > timeouts * record["timeout_s"] + LATE:
            yield f"{cell['fault']}, {cell['phase']}: {cell['seconds']} s"


def page(record: dict[str, Any], title: str) -> str:
    """The record for people."""
    header = ["fault", "phase", "where", "survivors said", "the process hurt said"]
    header += ["next exchange", "seconds"]
    table = records.table(header, (row(cell) for cell in record["cells"]), texts=6)
    missing = f" None on three hosts: {record['no_hosts']}." if record["no_hosts"] else ""
    failed = "".join(f"\n\nFailed: {one['job']}, {one['where']}." for one in record["failed"])
    return (
        f"# {title}\n\n"
        "Three processes of two devices, of which process 1 is hurt; "
        f"`FASTJAX_TIMEOUT={record['timeout_s']}`. *seconds*: from the fault, or from the begin of "
        "the exchange if that is later, to the last survivor's error or result. *three hosts*: an "
        "emulated cluster, 20 Mbit/s a NIC. Errors are shortened, and without their first words, "
        f"which name the exchange. [What each fault does](../../docs/faults.md).{missing}\n\n"
        f"{table}{failed}\n\n{records.conditions(record)}\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="jobs that have this in their names")
    parser.add_argument("--json", type=Path, help="where to write the record")
    options = parser.parse_args(argv)
    record = run(options.only)
    too_late = list(late(record))
    for each in too_late:
        print(f"LATE: {each}")
    print(f"{len(record['cells'])} cells, {len(record['failed'])} jobs failed")
    records.publish(page(record, "Faults"), record, options.json)
    return int(bool(record["failed"] or too_late or not record["cells"]))


if __name__ == "__main__":
    sys.exit(main())
