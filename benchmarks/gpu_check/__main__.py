"""Builds for the GPU of this machine, tests, checks and measures: `make gpu`, or without make

    python benchmarks/gpu_check --out FOLDER

The exit status is 0 if every part passed that was not said to be skipped, 1 if one did not, and 2
if the machine lacks something without which nothing can be run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import signal
import sys
import tarfile
import time
from pathlib import Path

if not __package__:  # run as a folder: ours are found from the one above
    sys.path.insert(0, str(Path(__file__).parents[1]))

import records

from gpu_check import machine, report
from gpu_check.parts import ROOT, Part, groups


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--out", type=Path, help="of the three files that are kept; else FOLDER")
    parser.add_argument(
        "--seconds", type=float, help="for all parts together; 540, with --emulated 1500"
    )
    parser.add_argument(
        "--skip",
        nargs="+",
        default=[],
        metavar="PART",
        help="that is not run; without `package`, the fastjax of the folder's last run is used, or "
        "else the one that is installed",
    )
    parser.add_argument("--commit", default="", help="of the source, in a copy without its history")
    parser.add_argument("--emulated", action="store_true", help="try it out, tiny, without a GPU")
    options = parser.parse_args()
    options.seconds = options.seconds or (1500 if options.emulated else 540)
    options.folder = options.folder.resolve()
    options.out = (options.out or options.folder).resolve()
    return options


class Run:
    """All parts, side by side in groups, and what is written of them.

    Args:
      parts: of the groups.
      options: of the command.
    """

    def __init__(self, parts: list[list[Part]], options: argparse.Namespace) -> None:
        self._groups = parts
        self._parts = {part.name: part for group in parts for part in group}
        self._folder, self._out = options.folder, options.out
        self._deadline = time.monotonic() + options.seconds
        self._head = {
            "schema": report.SCHEMA,
            "emulated": options.emulated,
            "commit": options.commit or machine.commit(ROOT),
            "machine": machine.describe(),
            "gpu": machine.gpu(),
            "versions": machine.versions(),
        }

    async def run(self) -> bool:
        """Returns whether every part passed that was to be run."""
        try:
            for group in self._groups:
                await asyncio.gather(*map(self._run, group))
        finally:
            page = self._write()
            print(f"\n{page}\nThis page, its record and all logs: {self._out}.", flush=True)
        return all(part.skip or part.status == "passed" for part in self._parts.values())

    async def _run(self, part: Part) -> None:
        """One part, unless it is skipped; says in it how it went."""
        start = time.monotonic()
        needed = self._parts.get(part.needs)
        part.status, part.detail = "skipped", part.skip
        if not part.skip and needed and not needed.skip and needed.status != "passed":
            part.detail = f"needs {part.needs}"
        elif not part.skip and start >= self._deadline:
            part.detail = "no time was left"
        try:
            if not part.detail:
                await self._execute(part, min(part.seconds, self._deadline - start))
        finally:
            part.took = time.monotonic() - start
            self._write()  # first: whoever reads what is printed may be gone
            print(f"{part.name}: {part.status} ({part.took:.0f} s) {part.detail}", flush=True)

    async def _execute(self, part: Part, seconds: float) -> None:
        log = self._folder / f"{part.name}.log"
        part.status, part.detail = "stopped", ""
        with log.open("w") as file:
            print(*part.command, file=file, flush=True)
            try:
                child = await asyncio.create_subprocess_exec(
                    *part.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=file,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **part.environment},
                    cwd=ROOT,
                    start_new_session=True,  # all that it starts is stopped with it
                )
            except OSError as error:
                part.status, part.detail = "failed", str(error)
                return
        try:
            status = await asyncio.wait_for(child.wait(), seconds)
        except TimeoutError:
            part.status, part.detail = "out of time", f"after {seconds:.0f} s"
            return
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # it may just have ended
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        said = [line.strip() for line in log.read_text(errors="replace").splitlines()[1:]]
        last = next(filter(None, reversed(said)), "")[:200]
        part.status = "failed" if status else "passed"
        part.detail = f"exit status {status}: {last}" if status else last

    def _write(self) -> str:
        """Writes the record, its page and the archive of logs anew; returns the page."""
        parts = [
            {"name": p.name, "status": p.status, "seconds": round(p.took, 1), "detail": p.detail}
            for p in self._parts.values()
        ]
        results = {}
        for name in self._parts:
            with contextlib.suppress(OSError, ValueError):  # none yet, or one that is being written
                results[name] = json.loads((self._folder / f"{name}.json").read_text())
        record = {**self._head, "parts": parts, "results": results}
        page = report.page(record)
        logs = io.BytesIO()
        with tarfile.open(fileobj=logs, mode="w:gz") as archive:
            for log in sorted(self._folder.glob("*.log")):
                archive.add(log, f"gpu_logs/{log.name}")
        files: dict[str, str | bytes] = {"gpu.json": records.text(record), "gpu.md": page}
        for name, content in {**files, "gpu_logs.tar.gz": logs.getvalue()}.items():
            records.replace(self._out / name, content)
        return page


def main() -> int:
    options = arguments()
    os.environ["PATH"] = machine.search_path()
    os.environ["PYTHONSAFEPATH"] = "1"  # fastjax/ in the source has no compiled module
    # As Ctrl-C does, so that what runs is stopped and what was found is written.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")  # all it installs is in our folder
    missing = [] if options.emulated else machine.lacks()
    if missing:
        print("make gpu cannot run here; this machine lacks", *missing, sep="\n  ", file=sys.stderr)
        return 2
    parts = groups(options.folder, options.emulated)
    by_name = {part.name: part for group in parts for part in group}
    for name in options.skip:
        if name not in by_name:
            print(f"--skip: no part is called {name}", file=sys.stderr)
            return 2
        by_name[name].skip = "--skip names it"
    for folder in (options.folder, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    for old in (*options.folder.glob("*.log"), *options.folder.glob("*.json")):
        old.unlink()
    return 0 if asyncio.run(Run(parts, options).run()) else 1


if __name__ == "__main__":
    sys.exit(main())
