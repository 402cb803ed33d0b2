"""Parts of the run: commands with time limits, of which none keeps the others from running."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PASSED, FAILED, OUT_OF_TIME, SKIPPED = "passed", "failed", "out of time", "skipped"


@dataclasses.dataclass(frozen=True)
class Part:
    """A command.

    Attributes:
      name: of the part; its log is NAME.log.
      command: the program and its arguments.
      seconds: after so many it is stopped.
      environment: variables beyond those of this process.
      needs: names of parts without which this one means nothing.
      json: where it writes its figures, if it does.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    json: Path | None = None


@dataclasses.dataclass
class Outcome:
    """How a part went."""

    name: str
    status: str
    seconds: float = 0.0
    detail: str = ""

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 1)}


class _Running:
    def __init__(self, part: Part, seconds: float, folder: Path, root: Path) -> None:
        self.part = part
        self.log = folder / f"{part.name}.log"
        self.start = time.monotonic()
        self.end = self.start + seconds
        self.stopped = False
        self.child: subprocess.Popen[bytes] | None = None
        self.trouble = ""
        with self.log.open("wb") as log:
            log.write((" ".join(part.command) + "\n").encode())
            log.flush()
            try:
                self.child = subprocess.Popen(
                    part.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **part.environment},
                    cwd=root,
                    start_new_session=True,  # all that it starts is stopped with it
                )
            except OSError as error:
                self.trouble = str(error)

    def over(self) -> bool:
        if self.child is None or self.child.poll() is not None:
            return True
        if time.monotonic() >= self.end:
            self.stopped = True
            self.stop()
            return True
        return False

    def stop(self) -> None:
        if self.child is not None and self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def outcome(self) -> Outcome:
        seconds = time.monotonic() - self.start
        if self.child is None:
            return Outcome(self.part.name, FAILED, seconds, self.trouble)
        if self.stopped:
            detail = f"stopped after {seconds:.0f} s"
            return Outcome(self.part.name, OUT_OF_TIME, seconds, detail)
        status = self.child.returncode
        if status == 0:
            return Outcome(self.part.name, PASSED, seconds, _last_line(self.log))
        return Outcome(
            self.part.name, FAILED, seconds, f"exit status {status}: {_last_line(self.log)}"
        )


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()[1:]]
    return next((line for line in reversed(lines) if line), "")[:200]


def run_together(
    parts: Iterable[Part], passed: set[str], folder: Path, root: Path, deadline: float
) -> list[Outcome]:
    """Runs parts side by side; each ends by its own limit, or at `deadline` by time.monotonic()."""
    outcomes, running = [], []
    left = deadline - time.monotonic()
    try:
        for part in parts:
            missing = [name for name in part.needs if name not in passed]
            if missing:
                detail = f"needs {', '.join(missing)}"
                outcomes.append(Outcome(part.name, SKIPPED, 0.0, detail))
            elif left < 1:
                outcomes.append(Outcome(part.name, SKIPPED, 0.0, "no time was left"))
            else:
                running.append(_Running(part, min(part.seconds, left), folder, root))
        waiting = list(running)
        while waiting:
            waiting = [each for each in waiting if not _finish(each, outcomes)]
            time.sleep(0.05)
    finally:  # also when somebody stops us
        for each in running:
            each.stop()
    passed.update(outcome.name for outcome in outcomes if outcome.status == PASSED)
    return outcomes


def _finish(running: _Running, outcomes: list[Outcome]) -> bool:
    if not running.over():
        return False
    outcome = running.outcome()
    outcomes.append(outcome)
    print(
        f"{outcome.name}: {outcome.status} ({outcome.seconds:.0f} s) {outcome.detail}", flush=True
    )
    return True
