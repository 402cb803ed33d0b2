"""`python -m gpu_check`: builds for the GPU of this machine, tests, checks and measures.

Started by `make gpu`. The exit status is 0 if every part passed, 1 if one did not, and 2 if the
machine lacks something without which nothing can be run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from gpu_check import machine, report
from gpu_check.lineup import Lineup
from gpu_check.parts import PASSED, Outcome, Part, run_together

ROOT = Path(__file__).resolve().parents[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_check", description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--seconds", type=float, default=540, help="for all parts together")
    parser.add_argument("--commit", default="", help="of the source, in a copy without its history")
    parser.add_argument("--emulated", action="store_true", help="try it out, tiny, without a GPU")
    parser.add_argument("--programs", type=Path, help="with --emulated: a build folder of CMake's")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    os.environ["PATH"] = machine.search_path()
    # As Ctrl-C does, so that what runs is stopped and what was found is written.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    missing = [] if options.emulated else machine.lacks()
    if missing:
        print("make gpu cannot run here; this machine lacks", file=sys.stderr)
        print("\n".join(f"  {each}" for each in missing), file=sys.stderr)
        return 2
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for old in [each for kind in ("log", "json", "md") for each in folder.glob(f"*.{kind}")]:
        old.unlink()
    os.environ["PYTHONSAFEPATH"] = "1"  # fastjax/ in the source has no compiled module
    lineup = Lineup(ROOT, folder)
    programs = options.programs and options.programs.resolve()
    groups = lineup.emulated(programs) if options.emulated else lineup.on_gpu()
    record: dict[str, Any] = {
        "schema": "fastjax-gpu-1",
        "emulated": options.emulated,
        "commit": options.commit or machine.commit(ROOT),
        "machine": machine.describe(),
        "gpu": machine.gpu(),
        "versions": machine.versions(),
    }
    outcomes: list[Outcome] = []
    passed: set[str] = set()
    deadline = time.monotonic() + options.seconds
    try:
        for group in groups:
            outcomes += run_together(group, passed, folder, ROOT, deadline)
            # After each group: a run that is killed leaves what it has.
            write(folder, complete(record, outcomes, groups))
    finally:  # also one that is stopped, with what the part under way has written
        table = write(folder, complete(record, outcomes, groups))
        print(f"\n{table}\nRecord: {folder / 'gpu.json'}, table: gpu.md, logs beside.", flush=True)
    return 0 if all(outcome.status == PASSED for outcome in outcomes) else 1


def complete(
    record: dict[str, Any], outcomes: list[Outcome], groups: list[list[Part]]
) -> dict[str, Any]:
    """Adds how parts went, and the figures of those that have written any."""
    record["parts"] = [outcome.record() for outcome in outcomes]
    record["results"] = {}
    for part in (part for group in groups for part in group):
        if part.json is not None and part.json.exists():
            try:
                record["results"][part.name] = json.loads(part.json.read_text())
            except ValueError:  # it was stopped while it wrote
                continue
    return record


def write(folder: Path, record: dict[str, Any]) -> str:
    """The record, and the table, which is returned."""
    (folder / "gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    try:
        table = report.markdown(record)
    except Exception:  # noqa: BLE001  # the record can be made a table later, the time is gone
        table = f"No table of gpu.json could be made:\n{traceback.format_exc()}"
    (folder / "gpu.md").write_text(table)
    return table


if __name__ == "__main__":
    sys.exit(main())
