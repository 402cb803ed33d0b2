"""Several processes of one script on this machine: a job of `jax.distributed`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

GRACE_SECONDS = 20.0  # for the others to end by themselves, after one failed


def start_backend(devices: int, coordinator: str, processes: int, process: int) -> None:
    """Starts JAX, with so many CPU devices in this process; in a job, joins it."""
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 12):
        # For launches that wait in a queue; see "Queue many launches" in docs/errors.md.
        os.environ["NPROC"] = str(devices * 33)
    with contextlib.suppress(RuntimeError):  # it has started; whether it fits shows below
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_platforms", "cpu")
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, processes, process)
    if jax.local_device_count() != devices:
        raise ValueError(
            f"this needs {devices} CPU devices in each process, but JAX has started with "
            f"{jax.local_device_count()}."
        )


def run(script: str, arguments: Sequence[str], processes: int) -> int:
    """Runs a script in several processes, which find each other by two more options.

    Process 0 writes where this process does; what others write is shown where one fails.

    Args:
      script: of Python.
      arguments: of each process; it also gets --coordinator and --process.
      processes: how many.

    Returns:
      The exit status: 0, or that of the first process that failed.
    """
    # A proxy for other hosts would be asked for this one too.
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="train-moe-") as folder, _held_port() as port:
        coordinator = f"127.0.0.1:{port.getsockname()[1]}"
        logs = [Path(folder, f"{number}.txt") for number in range(processes)]
        try:
            for number in range(processes):
                more = ["--coordinator", coordinator, "--process", str(number)]
                with logs[number].open("wb") as log:
                    output = None if number == 0 else log
                    command = [sys.executable, script, *arguments, *more]
                    children.append(
                        subprocess.Popen(command, env=environment, stdout=output, stderr=output)
                    )
            failed = _first_failed(children)
            if failed is None:
                return 0
            sys.stderr.write(f"Process {failed} failed.\n")
            for number in range(1, processes):
                sys.stderr.write(f"--- process {number}:\n{logs[number].read_text()[-4000:]}\n")
            return abs(children[failed].wait())
        finally:
            for child in children:
                child.kill()
                child.wait()


def _first_failed(children: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Waits for all to end; of one that fails, the number, some time after."""
    while True:
        states = [child.poll() for child in children]
        failed = next((i for i, state in enumerate(states) if state), None)
        if failed is not None:
            end = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < end and any(child.poll() is None for child in children):
                time.sleep(0.1)
            return failed
        if None not in states:
            return None
        time.sleep(0.1)


def _held_port() -> socket.socket:
    """A free port that no other program gets meanwhile; jax.distributed shares it."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held
