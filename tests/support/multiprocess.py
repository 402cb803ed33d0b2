"""Jobs of several JAX processes on this machine: the one launcher, for tests and benchmarks.

    results = multiprocess.run(__file__, "function", processes=2, devices=2, arguments={"seed": 3})

runs `function(seed=3)` of that file in two processes of two CPU devices each, with
`jax.distributed` initialised, and returns what each returned: a dict of arrays and of what JSON
holds. A process that fails, or a job that does not end, is an error with everyone's last words.
`Job` is the same step by step, for tests that hurt a process while it runs.

Run as a script, this file is a process of such a job.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

_PR_SET_PDEATHSIG = 1
_WORDS = 4000  # of the first and the last that a process wrote


class JobError(AssertionError):
    """A job that did not end as it should."""


@dataclasses.dataclass
class Ended:
    """How a process ended.

    Attributes:
      process: its number.
      status: its exit status; minus the signal that ended it.
      hung: whether it had to be killed when time was up.
      result: what the function returned, if it did.
      output: all that the process wrote.
    """

    process: int
    status: int
    hung: bool
    result: dict[str, Any] | None
    output: str

    def __str__(self) -> str:
        how = "hung and was killed" if self.hung else f"ended with status {self.status}"
        returned = "" if self.result is not None else ", without a result"
        words = self.output
        if len(words) > 2 * _WORDS:
            words = f"{words[:_WORDS]}\n[...]\n{words[-_WORDS:]}"
        return f"--- process {self.process} {how}{returned}:\n{words}"


class Job:
    """A job that runs; a context manager, which leaves no process behind.

    Args:
      file, function: what each process runs.
      processes, devices: how many, and how many devices in each.
      arguments: keywords for the function; JSON.
      environment: variables beyond those of this process.
      initialize: further arguments of `jax.distributed.initialize`.
      prefix: of each process's command, by process: to start it elsewhere.
      coordinator: "host:port" for jax.distributed; by default a free port of this machine.
    """

    def __init__(
        self,
        file: str | Path,
        function: str,
        *,
        processes: int,
        devices: int,
        arguments: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        initialize: Mapping[str, Any] | None = None,
        prefix: Mapping[int, list[str]] | None = None,
        coordinator: str | None = None,
    ) -> None:
        self._port = hold_port()
        self._spec = {
            "file": str(file),
            "function": function,
            "processes": processes,
            "devices": devices,
            "arguments": dict(arguments or {}),
            "initialize": {"initialization_timeout": 120, **(initialize or {})},
            "coordinator": coordinator or f"127.0.0.1:{self._port.getsockname()[1]}",
        }
        self._environment = _environment(devices) | dict(environment or {})
        self._prefix = prefix or {}
        self._folder = tempfile.TemporaryDirectory(prefix="fastjax-job-")
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Job:
        try:
            for process in range(self._spec["processes"]):
                self.start(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number, child in enumerate(self.processes):
            self.signal(number, signal.SIGKILL)
            child.wait()
        self._folder.cleanup()
        self._port.close()

    @property
    def folder(self) -> Path:
        """A folder that the processes share: `multiprocess.folder()` in them."""
        return Path(self._folder.name)

    def start(self, process: int) -> None:
        """Starts a process: at first each, and again one that has ended."""
        spec = {
            **self._spec,
            "process": process,
            "folder": self._folder.name,
            "parent": os.getpid(),
        }
        with (self.folder / f"{process}.txt").open("ab") as output:
            child = subprocess.Popen(
                [*self._prefix.get(process, []), sys.executable, __file__, json.dumps(spec)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if process < len(self.processes):
            self.processes[process] = child
        else:
            self.processes.append(child)

    def signal(self, process: int, number: signal.Signals) -> None:
        """Sends a signal to a process, and to what stands before it; nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.processes[process].returncode is None:
                os.killpg(self.processes[process].pid, number)

    def wait(self, seconds: float = 240) -> list[Ended]:
        """Waits for all processes to end; those that do not are made to say where they are."""
        end = time.monotonic() + seconds
        hung = []
        for number, child in enumerate(self.processes):
            try:
                child.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                hung.append(number)
        for number in hung:
            self.signal(number, signal.SIGUSR1)  # prints where its threads are
        if hung:
            time.sleep(1)
        for number in hung:
            self.signal(number, signal.SIGKILL)
        return [self._ended(number, number in hung) for number in range(len(self.processes))]

    def _ended(self, process: int, hung: bool) -> Ended:
        status = self.processes[process].wait()
        output = (self.folder / f"{process}.txt").read_text(errors="replace")
        result = None
        if (self.folder / f"{process}.json").exists():
            result = json.loads((self.folder / f"{process}.json").read_text())
            with np.load(self.folder / f"{process}.npz") as arrays:
                result |= dict(arrays)
        return Ended(process, status, hung, result, output)


def run(file: str | Path, function: str, *, seconds: float = 240, **job: Any) -> list[Any]:
    """Runs a job; returns what the function returned in each process.

    Args:
      file, function: what each process runs.
      seconds: how long that may take.
      **job: what else `Job` takes.

    Raises:
      JobError: a process failed or hung.
    """
    with Job(file, function, **job) as running:
        ended = running.wait(seconds)
    if all(one.status == 0 and one.result is not None for one in ended):
        return [one.result for one in ended]
    hung = [one.process for one in ended if one.hung]
    failed = [one.process for one in ended if one.status and not one.hung]
    raise JobError(
        f"{function}: processes {failed} failed and {hung} hung (after {seconds} s)\n"
        + "\n".join(map(str, ended))
    )


def hold_port() -> socket.socket:
    """A free port of this machine, which no other program gets until the socket is closed.

    Whoever serves there shares it by SO_REUSEPORT, as gRPC does, and so jax.distributed.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _environment(devices: int) -> dict[str, str]:
    """That of this process, but for what gets between processes of one machine."""
    kept = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    kept |= {"JAX_PLATFORMS": "cpu", "PYTHONSAFEPATH": "1"}
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 12):
        # jaxlib parks a thread for each device of each launch in flight; see conftest.py.
        kept["NPROC"] = str(devices * 33)
    return kept


# What follows runs in the processes of a job.


def folder() -> Path:
    """Inside a process of a job: the folder that all of them share."""
    return Path(_spec()["folder"])


def barrier(name: str, seconds: float = 120) -> None:
    """Inside a process of a job: waits until all have come, by the coordinator and not by devices.

    JAX's own barrier is a collective of XLA's, which NCCL carries out between GPUs.

    Args:
      name: of no other barrier of the job.
      seconds: after so many without all of them it is an error.
    """
    from fastjax import jax_compat

    job = jax_compat.job()
    assert job is not None, "a barrier between processes, and no job"
    job.client.wait_at_barrier(name, int(1000 * seconds))


def _spec() -> dict[str, Any]:
    return json.loads(sys.argv[1])


def _die_with(parent: int) -> None:
    """Has the system end this process when the one that started it ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not Path(f"/proc/{parent}").exists():  # it ended before
        sys.exit("the process that started this one is gone")


def _main() -> None:
    import faulthandler
    import gc

    gc.set_threshold(100_000, 50, 100)  # as in tests/conftest.py
    spec = _spec()
    _die_with(spec["parent"])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    jax.config.update("jax_num_cpu_devices", spec["devices"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        spec["coordinator"], spec["processes"], spec["process"], **spec["initialize"]
    )
    file = Path(spec["file"])
    # Beside this file lie the helpers, and above it exchange_checks.
    sys.path[:0] = map(str, [file.parent, *Path(__file__).parents[:2]])
    function = getattr(importlib.import_module(file.stem), spec["function"])
    _write(spec, function(**spec["arguments"]) or {})


def _write(spec: dict[str, Any], result: dict[str, Any]) -> None:
    stem = Path(spec["folder"]) / str(spec["process"])
    arrays = {k: v for k, v in result.items() if isinstance(v, (np.ndarray, jax.Array))}
    np.savez(stem.with_suffix(".npz"), **{k: np.asarray(v) for k, v in arrays.items()})
    rest = {k: v for k, v in result.items() if k not in arrays}
    partial = stem.with_suffix(".partial")
    partial.write_text(json.dumps(rest))
    partial.rename(stem.with_suffix(".json"))


if __name__ == "__main__":
    _main()
