"""Processes in the servers: what starts a command there, and what ends all that run there."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from emulated_cluster import system
from emulated_cluster.system import ClusterError


def prefix(namespace: str) -> list[str]:
    """What to put before a command so that it runs in a namespace, under its name as host name.

    Whatever is started so dies with the thread that started it, even if that is killed.
    """
    rename = 'hostname "$0" && exec "$@"'
    return [
        *("setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace),
        *("unshare", "--uts", "sh", "-c", rename, namespace),
    ]


def kill_all(namespace: str, seconds: float = 10) -> None:
    """Kills all processes of a namespace and waits until they are gone.

    Raises:
      ClusterError: one is still there after `seconds`.
    """
    limit = time.monotonic() + seconds
    while pids := system.processes_in(namespace):
        if time.monotonic() > limit:
            raise ClusterError(f"processes {pids} in {namespace} do not die.")
        send(pids, signal.SIGKILL)
        # Between their death and the moment the kernel has done with them.
        time.sleep(0.01)


def send(pids: Sequence[int], which: signal.Signals) -> None:
    """Sends a signal to processes, some of which may have ended by themselves."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)
