"""FAST's tables and figures, made anew by simulation.

    python benchmarks/paper --json paper.json --figures FOLDER

Cells that are done are kept in paper.json.part, so that a run that was stopped goes on where it
was; they are dropped when the planner, the simulator or these programs have changed. The exit
status is 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: ours are found from the one above
    sys.path.insert(0, str(Path(__file__).parents[1]))

import records
import resumed

import fastjax
from paper import contest, figures, grids, overlap, report, verdicts

Cell = dict[str, Any]
_SOURCES = ("ablations", "contest", "overlap", "peers", "rails")


def identity(cell: Cell) -> str:
    names = ("table", "preset", "servers", "workload", "size", "seed")
    return " ".join(str(cell[name]) for name in names)


def fingerprint() -> str:
    """Changes when the planner, the simulator or a contestant does."""
    package, here = Path(fastjax.__file__).parent, Path(__file__).parent
    sources = [Path(fastjax._core.__file__), *sorted(package.rglob("*.py"))]
    sources += sorted(package.glob("simulation/*.py"))
    sources += [here / f"{name}.py" for name in _SOURCES]
    sources += [here.parent / name for name in ("textbook.py", "workloads.py")]
    return resumed.digest(sources)


def run(options: argparse.Namespace) -> list[Cell]:
    """All cells, saying on stderr which one it is at."""
    wanted = list(grids.keys(options.tables, options.seeds))
    numbers = {identity(key): number for number, key in enumerate(wanted, 1)}
    begin = time.monotonic()

    def measure(key: Cell) -> Cell:
        at, seconds = numbers[identity(key)], time.monotonic() - begin
        print(f"{seconds:5.0f} s, {at} of {len(wanted)}: {identity(key)}", file=sys.stderr)
        if key["table"] == "overlap":
            return key | overlap.measure(key)
        return contest.measure(key)

    part = resumed.part_of(options.json) if options.json else None
    return resumed.run(wanted, measure, identity, part=part, state=fingerprint())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/paper", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tables", nargs="+", default=[*grids.TABLES], choices=grids.TABLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the record")
    parser.add_argument("--figures", type=Path, help="folder for the pictures; needs matplotlib")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be 1 or more, got {options.seeds}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    record = records.stamp(report.SCHEMA)
    cells = run(options)
    record["seeds"] = options.seeds
    record["figures"] = figures.draw_all(cells, options.figures) if options.figures else []
    record["cells"] = cells
    print(report.page(record, "FAST's tables, made anew"))
    if options.json:
        records.write(options.json, record)
        resumed.part_of(options.json).unlink()
    return 0 if all(verdict.met for verdict in verdicts.judge(cells)) else 1


if __name__ == "__main__":
    sys.exit(main())
