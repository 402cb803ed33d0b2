"""A job whose processes are stopped, killed and parted at places that are known for certain."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fault_job
import multiprocess

PROCESSES, DEVICES = 3, 2
VICTIM = 1  # not that of jax.distributed's coordinator
TIMEOUT = 3  # seconds: FASTJAX_TIMEOUT
JOIN = 30  # seconds that processes wait for each other at the start
HANG = 90  # seconds after which a process hangs: machines that run tests are slow at times


class SceneError(AssertionError):
    """The job did something that no fault excuses."""


class Scene:
    """A job and what can be done to it; a context manager, which leaves no process behind.

    Args:
      rounds, **play: as `fault_job.play` takes them, without the victim.
      stops: places where the victim stops itself, as FASTJAX_FAULT takes them.
      environment: variables of all processes.
      prefix: of each process's command.
      coordinator: as `multiprocess.Job` takes it.
    """

    def __init__(
        self,
        rounds: list[dict[str, Any]],
        *,
        stops: str = "",
        environment: dict[str, str] | None = None,
        prefix: dict[int, list[str]] | None = None,
        coordinator: str | None = None,
        **play: Any,
    ) -> None:
        prefix = dict(prefix or {})
        prefix[VICTIM] = [*prefix.get(VICTIM, []), "env", f"FASTJAX_FAULT={stops}"]
        self.job = multiprocess.Job(
            fault_job.__file__,
            "play",
            processes=PROCESSES,
            devices=DEVICES,
            arguments={"rounds": rounds, "victim": VICTIM, **play},
            environment={"FASTJAX_TIMEOUT": str(TIMEOUT), **(environment or {})},
            prefix=prefix,
            coordinator=coordinator,
            # One that comes back is kept waiting by JAX for so long.
            initialize={"initialization_timeout": JOIN},
        )
        self.survivors = [p for p in range(PROCESSES) if p != VICTIM]
        self.ports: dict[int, list[int]] = {}

    def __enter__(self) -> Scene:
        self.job.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.job.__exit__(*exception)

    def tell(self, name: str, how: str = "") -> None:
        """What processes wait for."""
        path = self.job.folder / f"{name}.partial"
        path.write_text(how)
        path.rename(self.job.folder / name)

    def go(self, number: int) -> None:
        """Has all processes begin a round."""
        self.tell(f"go {number}")

    def ready(self, processes: Iterable[int] = range(PROCESSES)) -> None:
        """Waits until processes have compiled all."""
        for process in processes:
            ready = self.report(process, "ready")
            if ready["error"]:
                raise SceneError(f"process {process} is not ready: {ready['error']}")
            self.ports[process] = ready["ports"]

    def report(self, process: int, name: str) -> dict[str, Any]:
        """What a process says of a round, of "ready", or of "closed", once it does."""
        path = self.job.folder / f"{process} {name}.json"
        child = self.job.processes[process]
        end = time.monotonic() + HANG
        while not path.exists():
            if child.poll() is not None and not path.exists():
                raise self._broken(process, f"ended with status {child.returncode}", name)
            if time.monotonic() > end:
                self.job.signal(process, signal.SIGUSR1)  # prints where its threads are
                time.sleep(1)
                raise self._broken(process, "hangs", name)
            time.sleep(0.01)
        return json.loads(path.read_text())

    def _broken(self, process: int, how: str, name: str) -> SceneError:
        words = (self.job.folder / f"{process}.txt").read_text(errors="replace")
        return SceneError(f"process {process} {how} before {name!r}:\n{words[-6000:]}")

    def until_stopped(self) -> float:
        """Waits until the victim has stopped itself; when that was seen."""
        path = Path(f"/proc/{self.job.processes[VICTIM].pid}/stat")
        end = time.monotonic() + HANG
        while path.read_text().rpartition(")")[2].split()[0] != "T":
            if self.job.processes[VICTIM].poll() is not None:
                raise self._broken(VICTIM, "ended", "it stopped")
            if time.monotonic() > end:
                raise self._broken(VICTIM, "went past the place", "it stopped")
            time.sleep(0.002)
        return time.monotonic()

    def signal(self, number: signal.Signals) -> None:
        """To the victim."""
        self.job.signal(VICTIM, number)

    def processor_time(self) -> float:
        """Seconds that the victim has had on processors."""
        # Linux's number of the clock of a process.
        return time.clock_gettime((~self.job.processes[VICTIM].pid << 3) | 2)

    def kill(self) -> None:
        """Ends the victim, and waits for that."""
        self.tell("struck")
        self.signal(signal.SIGKILL)
        self.job.processes[VICTIM].wait()

    def restart(self) -> str:
        """Starts the victim again, and waits until JAX has ended the survivors; what it said."""
        self.job.start(VICTIM)
        words = "unexpectedly tried to connect with a different incarnation"
        for process in self.survivors:
            try:
                self.job.processes[process].wait(HANG)
            except subprocess.TimeoutExpired:
                raise self._broken(process, "hangs", "JAX ended it") from None
            if words not in (self.job.folder / f"{process}.txt").read_text(errors="replace"):
                raise self._broken(process, "ended for another reason", "JAX ended it")
        return f"JAX ends all processes: {VICTIM} {words}. It has likely restarted."

    def leave(self, *, alive: bool) -> None:
        """Has all processes end; those that are left, at once, where one is dead."""
        how = "" if alive else "at once"
        self.tell("end", how)
        self.tell("leave", how)
        ended = self.job.wait(HANG)
        bad = [e for e in ended if e.hung or (e.status and (alive or e.process != VICTIM))]
        if bad:
            raise SceneError("\n".join(map(str, bad)))
