"""What the cluster asks of Linux: commands, namespaces and processes in them, and a lock."""

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
# Commands that a cluster is made of, and the packages of Debian that have them.
NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "hostname": "hostname",
}

_libc = ctypes.CDLL(None, use_errno=True)


class ClusterError(RuntimeError):
    """The machine cannot do what the cluster needs; says what, and what the kernel said."""


def run(command: Sequence[str], text: str = "") -> str:
    """Runs a command with `text` as its input; returns what it prints.

    Raises:
      ClusterError: it failed, with the command and its own words.
    """
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise ClusterError(f"{' '.join(command)}: {said}")
    return done.stdout


def batch(tool: str, namespace: str | None, commands: Iterable[str]) -> None:
    """Gives `ip` or `tc` many commands at once, in a namespace.

    Raises:
      ClusterError: one failed, with what it was; those behind it were not run.
    """
    lines = list(commands)
    at = ["-n", namespace] if namespace else []
    try:
        run([tool, *at, "-batch", "-"], "\n".join(lines) + "\n")
    except ClusterError as error:
        failed = re.search(r"Command failed -:(\d+)", str(error))
        if not failed:
            raise
        raise ClusterError(f"{error}: {lines[int(failed[1]) - 1]}") from None


def why_not() -> str | None:
    """Why there can be no cluster here; None if there can be."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces are made by root, and this user is not"
    missing = [f"{tool} (package {NEEDED[tool]})" for tool in NEEDED if shutil.which(tool) is None]
    if missing:
        return f"there is no command {', '.join(missing)}"
    return _refused()


def _refused() -> str | None:
    """What the kernel refuses of a link with a rate and a bridge, if anything."""
    trial = f"fjx-trial-{os.getpid()}"
    link = [
        "link add name nic type veth peer name port",
        "link add name hub type bridge",
        "link set port master hub",
    ]
    try:
        run(["ip", "netns", "add", trial])
        batch("ip", trial, link)
        batch("tc", trial, ["qdisc add dev nic root tbf rate 1mbit burst 16kb limit 64kb"])
    except ClusterError as error:
        return str(error)
    finally:
        delete_namespace(trial)
    return None


def namespaces(prefix: str) -> list[str]:
    """Names of the network namespaces that begin with `prefix`."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(p.name for p in NAMESPACES.iterdir() if p.name.startswith(prefix))


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
    while pids := run(["ip", "netns", "pids", namespace]).split():
        if time.monotonic() > limit:
            raise ClusterError(f"processes {', '.join(pids)} in {namespace} do not die.")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(int(pid), signal.SIGKILL)
        # Between their death and the moment the kernel has done with them.
        time.sleep(0.01)


def delete_namespace(namespace: str) -> None:
    """Deletes a namespace if there is one; what still runs in it keeps its links alive."""
    if (NAMESPACES / namespace).exists():
        run(["ip", "netns", "delete", namespace])


@contextlib.contextmanager
def inside(namespace: str) -> Generator[None]:
    """The calling thread is in a namespace; sockets it makes there stay there.

    Raises:
      ClusterError: there is no such namespace.
    """
    with Path("/proc/thread-self/ns/net").open("rb") as original:
        try:
            with (NAMESPACES / namespace).open("rb") as there:
                _enter(there.fileno())
        except OSError as error:
            raise ClusterError(f"cannot enter namespace {namespace}: {error}") from error
        try:
            yield
        finally:
            _enter(original.fileno())


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def lock(name: str) -> Generator[None]:
    """Nobody else has a cluster of that name meanwhile; ends with the process at the latest.

    Raises:
      ClusterError: another process has one.
    """
    # An abstract name: no file, and free again as soon as its process is gone.
    address = f"\0fastjax-emulated-cluster-{name}"
    with socket.socket(socket.AF_UNIX) as owner:
        try:
            owner.bind(address)
        except OSError:
            raise ClusterError(
                f"{_owner(address)} has a cluster named {name}: wait for it, end it, or take "
                "another --name."
            ) from None
        owner.listen()
        yield


def _owner(address: str) -> str:
    """Who listens at an address, for people."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(address)
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except OSError:
            return "Another process"
    return f"Process {struct.unpack('iii', credentials)[0]}"
