"""What outlives processes of jobs that do not see to it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Leftovers:
    """Looks at the machine before and after."""

    def __init__(self) -> None:
        self._before = _found()

    def after(self, seconds: float) -> list[str]:
        """What is there for so long that was not there before; other programs come and go."""
        end = time.monotonic() + seconds
        while (left := _found() - self._before) and time.monotonic() < end:
            time.sleep(0.1)
        return sorted(left)


def _found() -> set[str]:
    return {*_shared_files(), *_segments(), *_processes()}


def _shared_files() -> Iterator[str]:
    for path in Path("/dev/shm").glob("ucx*"):
        yield str(path)


def _segments() -> Iterator[str]:
    """System V's shared memory whose maker is gone."""
    table = Path("/proc/sysvipc/shm")
    for line in table.read_text().splitlines()[1:] if table.exists() else ():
        fields = line.split()
        if not Path(f"/proc/{fields[4]}").exists():
            yield f"shared memory segment {fields[1]}"


def _processes() -> Iterator[str]:
    """Processes of jobs that this one has started."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError, ValueError, IndexError, TypeError, KeyError):
            spec = json.loads(path.read_bytes().split(b"\0")[-2])
            if spec["parent"] == os.getpid():
                yield f"process {path.parent.name}"
