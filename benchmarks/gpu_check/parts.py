"""Parts of the run: commands with time limits, of which none keeps the others from running."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

PASSED, FAILED, OUT_OF_TIME, SKIPPED = "passed", "failed", "out of time", "skipped"
STOPPED = "stopped"  # with the whole run, before its own end


@dataclasses.dataclass(frozen=True)
class Part:
    """A command.

    Attributes:
      name: of the part; its log is NAME.log.
      command: the program and its arguments.
      seconds: after so many it is stopped.
      environment: variables beyond those of this process.
      needs: names of parts without which this one means nothing.
      json: where it writes its measurements, if it does.
      skip: why it is not run here; empty if it is.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    json: Path | None = None
    skip: str = ""


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
        self.late = False
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
            self.late = True
            self._kill()
            return True
        return False

    def stop(self) -> Outcome:
        """Ends it now; a part that has ended by itself keeps its outcome."""
        if self.over():
            return self.outcome()
        self._kill()
        return Outcome(self.part.name, STOPPED, time.monotonic() - self.start, "with the run")

    def _kill(self) -> None:
        if self.child is not None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()

    def outcome(self) -> Outcome:
        seconds = time.monotonic() - self.start
        if self.child is None:
            return Outcome(self.part.name, FAILED, seconds, self.trouble)
        if self.late:
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
    parts: Iterable[Part],
    passed: set[str],
    folder: Path,
    root: Path,
    deadline: float,
    ended: Callable[[Outcome], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Runs parts side by side; each ends by its own limit, or at `deadline` by time.monotonic().

    Args:
      parts: of which those are skipped that say why, or need one that has not passed.
      passed: names of parts that have; those that do here are added.
      folder: for their logs.
      root: the folder they run in.
      deadline: see above.
      ended: is called with each outcome as soon as it is known, also when somebody stops us.
      meanwhile: is called again and again.
    """

    def end(outcome: Outcome) -> None:
        if outcome.status == PASSED:
            passed.add(outcome.name)
        ended(outcome)  # first: whoever reads what is printed may be gone
        seconds = f"{outcome.seconds:.0f} s"
        print(f"{outcome.name}: {outcome.status} ({seconds}) {outcome.detail}", flush=True)

    running: list[_Running] = []
    left = deadline - time.monotonic()
    before = frozenset(passed)
    try:
        for part in parts:
            why = _why_not(part, before, left)
            if why:
                end(Outcome(part.name, SKIPPED, 0.0, why))
            else:
                running.append(_Running(part, min(part.seconds, left), folder, root))
        while running:
            for each in [each for each in running if each.over()]:
                running.remove(each)
                end(each.outcome())
            meanwhile()
            time.sleep(0.05)
    finally:
        while running:
            end(running.pop().stop())


def _why_not(part: Part, passed: frozenset[str], left: float) -> str:
    missing = [name for name in part.needs if name not in passed]
    if part.skip:
        return part.skip
    if missing:
        return f"needs {', '.join(missing)}"
    return "no time was left" if left < 1 else ""
