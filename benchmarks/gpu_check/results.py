"""What a run has found so far, in three files, each of which is whole at every moment."""

from __future__ import annotations

import json
import os
import tarfile
import traceback
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

from gpu_check import report
from gpu_check.parts import PASSED, Outcome, Part

RECORD, PAGE, LOGS = "gpu.json", "gpu.md", "gpu_logs.tar.gz"
NOT_ENDED = "not ended"
LOG_BYTES = 1 << 20  # of a log, in the archive: more is left out of its middle


class Results:
    """The record, its page, and the archive of logs.

    They are written anew whenever a part ends or has a new measurement, each first under another
    name: a run that is killed, however, leaves what was found before.

    Args:
      logs: the folder that parts write their logs in.
      out: the folder of the three files.
    """

    def __init__(self, logs: Path, out: Path) -> None:
        self._logs = logs
        self._out = out
        self._record: dict[str, Any] = {}
        self._parts: list[Part] = []
        self._outcomes: list[Outcome] = []
        self._measured: dict[str, Any] = {}
        self._seen: dict[str, int] = {}
        self.page = ""

    def begin(self, record: dict[str, Any], parts: Iterable[Part]) -> None:
        """Says what is known before, and which parts there are."""
        self._record = record
        self._parts = list(parts)
        self.write()

    def add(self, outcome: Outcome) -> None:
        """A part has ended."""
        self._outcomes.append(outcome)
        if self._record:
            self.write()

    def look(self) -> None:
        """Writes measurements that are new."""
        if self._read_measurements():
            self._write_record()

    def write(self) -> None:
        self._read_measurements()
        self._write_record()
        self._replace(LOGS, self._archive)

    def all_well(self) -> bool:
        """Whether all have passed, but for those of which was said before that they are skipped."""
        skipped = {part.name for part in self._parts if part.skip}
        return all(each.status == PASSED for each in self._outcomes if each.name not in skipped)

    def _read_measurements(self) -> bool:
        new = False
        for part in self._parts:
            try:
                if part.json is None or part.json.stat().st_mtime_ns == self._seen.get(part.name):
                    continue
                written = part.json.stat().st_mtime_ns
                self._measured[part.name] = json.loads(part.json.read_text())
            except (OSError, ValueError):  # there is none yet, or it is being written
                continue
            self._seen[part.name] = written
            new = True
        return new

    def _write_record(self) -> None:
        ended = {outcome.name for outcome in self._outcomes}
        waiting = [Outcome(part.name, NOT_ENDED) for part in self._parts if part.name not in ended]
        record = self._record | {
            "parts": [outcome.record() for outcome in [*self._outcomes, *waiting]],
            "results": {
                part.name: self._measured[part.name]
                for part in self._parts
                if part.name in self._measured
            },
        }
        text = json.dumps(record, indent=1) + "\n"
        self._replace(RECORD, lambda path: path.write_text(text))
        try:
            self.page = report.page(record)
        except Exception:  # noqa: BLE001  # the record can be made a page later, the time is gone
            self.page = f"No page of {RECORD} could be made:\n{traceback.format_exc()}"
        self._replace(PAGE, lambda path: path.write_text(self.page))

    def _archive(self, path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for log in sorted(self._logs.glob("*.log")):
                content = shortened(log)
                member = tarfile.TarInfo(f"gpu_logs/{log.name}")
                member.size, member.mtime = len(content), int(log.stat().st_mtime)
                archive.addfile(member, BytesIO(content))

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        partial = self._out / f".{name}.partial"
        write(partial)
        os.replace(partial, self._out / name)  # noqa: PTH105  # of one whole file by another


def shortened(log: Path, limit: int = LOG_BYTES) -> bytes:
    """A log, without its middle if it is long."""
    with log.open("rb") as file:
        size = log.stat().st_size
        if size <= limit:
            return file.read(limit)
        first = file.read(limit // 2)
        file.seek(size - limit // 2)
        left_out = size - 2 * (limit // 2)
        return first + f"\n[... {left_out} bytes ...]\n".encode() + file.read(limit // 2)
