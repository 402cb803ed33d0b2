"""Builds for the GPU of this machine, tests, checks and measures: `make gpu`, or without make

    python benchmarks/gpu_check --out FOLDER

The exit status is 0 if every part passed that was not said to be skipped, 1 if one did not, and 2
if the machine lacks something without which nothing can be run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: ours are found from the one above
    sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu_check import machine, report
from gpu_check.parts import ROOT, Part, Setup

RECORD, PAGE, LOGS = "gpu.json", "gpu.md", "gpu_logs.tar.gz"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--out", type=Path, help="of the three files that are kept; else FOLDER")
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
    options.seconds = options.seconds or (1500 if options.emulated else 540)
    options.folder = options.folder.resolve()
    options.out = (options.out or options.folder).resolve()
    options.programs = options.programs and options.programs.resolve()
    return options


class Running:
    """A part that has been started."""

    def __init__(self, part: Part, log: Path, end: float) -> None:
        self.part = part
        self.log = log
        self.start = time.monotonic()
        self.end = min(self.start + part.seconds, end)
        self.child: subprocess.Popen[bytes] | None = None
        with log.open("wb") as file:
            file.write((" ".join(part.command) + "\n").encode())
            file.flush()
            try:
                self.child = subprocess.Popen(
                    part.command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **part.environment},
                    cwd=ROOT,
                    start_new_session=True,  # all that it starts is stopped with it
                )
            except OSError as error:
                file.write(str(error).encode())

    def over(self, *, stop: bool = False) -> bool:
        """Whether it has ended, now at the latest if it is to stop; says in the part how."""
        took = self.part.took = time.monotonic() - self.start
        status = 1 if self.child is None else self.child.poll()
        late = time.monotonic() >= self.end
        if status is None and self.child is not None and (stop or late):
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            self.part.status = "out of time" if late else "stopped"
            self.part.detail = f"after {took:.0f} s"
        elif status is not None:
            said = [line.strip() for line in self.log.read_text(errors="replace").splitlines()[1:]]
            last = next((line for line in reversed(said) if line), "")[:200]
            self.part.status = "failed" if status else "passed"
            self.part.detail = f"exit status {status}: {last}" if status else last
        else:
            return False
        return True


def run_together(
    parts: list[Part], passed: set[str], folder: Path, deadline: float, ended: Callable[[], None]
) -> None:
    """Runs parts side by side; each ends by its own limit, or at `deadline` by time.monotonic().

    Args:
      parts: of which those are skipped that say why, or need one that has not passed.
      passed: names of parts that have; those that do here are added.
      folder: for their logs.
      deadline: see above.
      ended: is called as soon as one has, also when somebody stops us.
    """

    def end(part: Part) -> None:
        if part.status == "passed":
            passed.add(part.name)
        ended()  # first: whoever reads what is printed may be gone
        print(f"{part.name}: {part.status} ({part.took:.0f} s) {part.detail}", flush=True)

    running: list[Running] = []
    missing = {part.name: [name for name in part.needs if name not in passed] for part in parts}
    try:
        for part in parts:
            late = "" if time.monotonic() < deadline else "no time was left"
            needs = ", ".join(missing[part.name])
            part.detail = part.skip or (f"needs {needs}" if needs else late)
            if part.detail:
                part.status = "skipped"
                end(part)
            else:
                running.append(Running(part, folder / f"{part.name}.log", deadline))
        while running:
            for each in [each for each in running if each.over()]:
                running.remove(each)
                end(each.part)
            time.sleep(0.05)
    finally:
        for each in running:
            each.over(stop=True)
            end(each.part)


class Results:
    """The record, its page, and the archive of logs, written anew whenever a part ends.

    Each is first written under another name: a run that is killed leaves what was found before.
    """

    def __init__(self, head: dict[str, Any], parts: list[Part], folder: Path, out: Path) -> None:
        self._head = head
        self._parts = parts
        self._folder = folder
        self._out = out
        self.page = ""

    def write(self) -> None:
        parts = [
            {
                "name": part.name,
                "status": part.status,
                "seconds": round(part.took, 1),
                "detail": part.detail,
            }
            for part in self._parts
        ]
        results = {}
        for part in self._parts:
            with contextlib.suppress(OSError, ValueError):  # none yet, or one that is being written
                results[part.name] = json.loads((self._folder / f"{part.name}.json").read_text())
        record = {**self._head, "parts": parts, "results": results}
        self.page = report.page(record)
        self._replace(RECORD, lambda path: path.write_text(report.lines(record) + "\n"))
        self._replace(PAGE, lambda path: path.write_text(self.page))
        self._replace(LOGS, self._archive)

    def _archive(self, path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for log in sorted(self._folder.glob("*.log")):
                archive.add(log, f"gpu_logs/{log.name}")

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        partial = self._out / f".{name}.partial"
        write(partial)
        partial.replace(self._out / name)


def main() -> int:
    options = arguments()
    os.environ["PATH"] = machine.search_path()
    os.environ["PYTHONSAFEPATH"] = "1"  # fastjax/ in the source has no compiled module
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")  # all it installs is in our folder
    # As Ctrl-C does, so that what runs is stopped and what was found is written.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    missing = [] if options.emulated else machine.lacks()
    if missing:
        lines = "\n  ".join(["make gpu cannot run here; this machine lacks", *missing])
        print(lines, file=sys.stderr)
        return 2
    setup = Setup(options.folder, options.emulated, options.installed, options.programs)
    groups = setup.groups()
    parts = {part.name: part for group in groups for part in group}
    if unknown := set(options.skip) - set(parts):
        print(f"--skip: no part is called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for name in options.skip:
        parts[name].skip = "--skip names it"
    return run(options, groups, setup.left_out())


def run(options: argparse.Namespace, groups: list[list[Part]], left_out: dict[str, str]) -> int:
    for folder in (options.folder, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    for old in (*options.folder.glob("*.log"), *options.folder.glob("*.json")):
        old.unlink()
    parts = [part for group in groups for part in group]
    whys: dict[str, list[str]] = {}
    for part in parts:
        if part.skip:
            whys.setdefault(part.skip, []).append(part.name)
    skipped = {", ".join(names): why for why, names in whys.items()} | left_out
    print("Skipped:", *(f"{what}: {why}" for what, why in skipped.items()), sep="\n  ", flush=True)
    head = {
        "schema": report.SCHEMA,
        "emulated": options.emulated,
        "commit": options.commit or machine.commit(ROOT),
        "machine": machine.describe(),
        "gpu": machine.gpu(),
        "versions": machine.versions(),
        "skipped": [{"what": what, "why": why} for what, why in skipped.items()],
    }
    results = Results(head, parts, options.folder, options.out)
    passed: set[str] = set()
    deadline = time.monotonic() + options.seconds
    try:
        for group in groups:
            run_together(group, passed, options.folder, deadline, results.write)
    finally:  # also of one that is stopped, with what the running parts have written
        results.write()
        names = f"page: {PAGE}, logs: {LOGS}"
        print(f"\n{results.page}\nRecord: {options.out / RECORD}, {names}.", flush=True)
    return 0 if all(part.skip or part.name in passed for part in parts) else 1


if __name__ == "__main__":
    sys.exit(main())
