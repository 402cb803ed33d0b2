"""Builds for the GPU of this machine, tests, checks and measures: `make gpu`, or without make

    python benchmarks/gpu_check --wheels FOLDER --out FOLDER

The exit status is 0 if every part passed that was not said to be skipped, 1 if one did not, and 2
if the machine lacks something without which nothing can be run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

if not __package__:  # run as a folder: ours are found from the one above
    sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_check import machine, report, wheels
from gpu_check.lineup import Lineup
from gpu_check.parts import run_together
from gpu_check.results import LOGS, PAGE, RECORD, Results

ROOT = Path(__file__).resolve().parents[2]

INSTALLED = "wheels"  # the folder inside ours that wheels are installed into


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--out", type=Path, help="of the three files that are kept; else FOLDER")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels, used by this run alone")
    parser.add_argument(
        "--seconds", type=float, help="for all parts together; 540, with --emulated 1500"
    )
    parser.add_argument("--skip", nargs="+", default=[], metavar="PART", help="that is not run")
    parser.add_argument("--commit", default="", help="of the source, in a copy without its history")
    parser.add_argument("--emulated", action="store_true", help="try it out, tiny, without a GPU")
    parser.add_argument(
        "--installed", action="store_true", help="the fastjax that is installed, instead of this"
    )
    parser.add_argument("--programs", type=Path, help="a build folder of CMake's that has them")
    options = parser.parse_args()
    if options.wheels and not wheels.found(options.wheels):
        parser.error(f"there are no wheels in {options.wheels}")
    if options.wheels and options.wheels.resolve() == options.folder.resolve() / INSTALLED:
        parser.error(f"wheels are installed into {options.wheels}: keep them in another folder")
    options.seconds = options.seconds or (1500 if options.emulated else 540)
    options.folder = options.folder.resolve()
    options.out = (options.out or options.folder).resolve()
    options.programs = options.programs and options.programs.resolve()
    return options


def main() -> int:
    options = arguments()
    os.environ["PATH"] = machine.search_path()
    os.environ["PYTHONSAFEPATH"] = "1"  # fastjax/ in the source has no compiled module
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")  # all it installs is in our folder
    # As Ctrl-C does, so that what runs is stopped and what was found is written.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    deadline = time.monotonic() + options.seconds
    results = Results(options.folder, options.out)
    passed: set[str] = set()
    if options.wheels:
        target = options.folder / INSTALLED
        prepare(options)
        wheels.remove(target)
        part = wheels.installation(options.wheels.resolve(), target)
        run_together([part], passed, options.folder, ROOT, deadline, results.add)
        wheels.use(target)
    missing = [] if options.emulated else machine.lacks()
    if missing:
        print("make gpu cannot run here; this machine lacks", file=sys.stderr)
        print("\n".join(f"  {each}" for each in missing), file=sys.stderr)
        return 2
    if not options.wheels:
        prepare(options)
    return run(options, results, passed, deadline)


def prepare(options: argparse.Namespace) -> None:
    """Makes the folders, and drops what another run wrote there."""
    for folder in (options.folder, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    old = [each for kind in ("log", "json") for each in options.folder.glob(f"*.{kind}")]
    for each in [*old, *(options.out / name for name in (RECORD, PAGE, LOGS))]:
        each.unlink(missing_ok=True)


def run(options: argparse.Namespace, results: Results, passed: set[str], deadline: float) -> int:
    lineup = Lineup(
        ROOT,
        options.folder,
        emulated=options.emulated,
        installed=options.installed,
        programs=options.programs,
        left_out=options.skip,
    )
    try:
        groups = lineup.groups()
    except ValueError as error:
        print(f"--skip: {error}", file=sys.stderr)
        return 2
    parts = [part for group in groups for part in group]
    skips = lineup.skips(parts)
    said = [f"  {skip.what}: {skip.why}" for skip in skips]
    print("\n".join(["Skipped:", *(said or ["  nothing"])]), flush=True)
    try:
        results.begin(
            {
                "schema": report.SCHEMA,
                "emulated": options.emulated,
                "commit": options.commit or machine.commit(ROOT),
                "machine": machine.describe(),
                "gpu": machine.gpu(),
                "versions": machine.versions(),
                "skipped": [{"what": skip.what, "why": skip.why} for skip in skips],
            },
            parts,
        )
        for group in groups:
            run_together(group, passed, options.folder, ROOT, deadline, results.add, results.look)
    finally:  # also of one that is stopped, with what the running parts have written
        results.write()
        names = f"page: {PAGE}, logs: {LOGS}"
        print(f"\n{results.page}\nRecord: {options.out / RECORD}, {names}.", flush=True)
    return 0 if results.all_well() else 1


if __name__ == "__main__":
    sys.exit(main())
