"""Long cables: a switch that hands every frame on a while after it came.

A kernel need not be able to delay frames. So a program in the switch's namespace takes them off the
ports of the rails, and puts them on the port of whom they are for, whose queue goes on from there.

    python delays.py SECONDS ROOM PORT=MAC ...
"""

import collections
import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

if not __package__:  # run as a program: ours are found from the folder above
    sys.path.insert(0, str(Path(__file__).parents[1]))

from emulated_cluster import system
from emulated_cluster.system import ClusterError

_SOL_PACKET = 263
_VNET_HDR = 15
_IGNORE_OUTGOING = 23
_SEND_ROOM, _RECEIVE_ROOM = 32, 33  # that only root may ask for
_ETH_P_ALL = 3
# Before each frame: what of its checksum is still to be summed, which the kernel leaves to the NIC.
_HEADER = 10
_LEAST_ROOM = 16 << 20
_LONGEST = 1 << 17  # of frames
_MOST = 128  # frames taken off a port before others are looked at
_READY = "ready"


def start(switch: str, delay: float, room: int, ports: Mapping[str, str]) -> None:
    """Starts the program in the switch's namespace; it ends with what else runs there.

    Args:
      switch: the namespace.
      delay: seconds.
      room: bytes that a port may queue.
      ports: addresses of the NICs behind them, by name.

    Raises:
      ClusterError: it could not begin, with what it said.
    """
    pairs = [f"{port}={mac}" for port, mac in ports.items()]
    command = [*system.prefix(switch), sys.executable, __file__, str(delay), str(room), *pairs]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert program.stdout is not None
    said = []
    for line in program.stdout:
        if line.strip() == _READY:
            # It is a child of this process, which has to see it off.
            watch = threading.Thread(target=_see_off, args=(program, program.stdout), daemon=True)
            watch.start()
            return
        said.append(line)
    program.stdout.close()
    program.wait()
    raise ClusterError(f"cables cannot be made longer: {''.join(said).strip()}")


def _see_off(program: subprocess.Popen[str], said: IO[str]) -> None:
    """Passes on what it says, until it ends."""
    with program, said:
        for line in said:
            sys.stderr.write(f"long cables: {line}")


class _Port:
    """A port of the switch, from which frames are taken and to which they are given."""

    def __init__(self, name: str, room: int):
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        self._socket.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        for which in (_SEND_ROOM, _RECEIVE_ROOM):
            # What is queued counts with the memory around it.
            self._socket.setsockopt(socket.SOL_SOCKET, which, max(_LEAST_ROOM, 4 * room))
        self._socket.setblocking(False)
        self._socket.bind((name, _ETH_P_ALL))

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> bytes | None:
        """The next frame; None if there is none, or while the port is down."""
        try:
            return self._socket.recv(_LONGEST)
        except OSError:
            return None

    def give(self, frame: bytes) -> None:
        """Into the port's queue; where that is full it is dropped, as a switch does."""
        with contextlib.suppress(OSError):
            self._socket.send(frame)


def forward(delay: float, ports: Mapping[bytes, _Port]) -> None:
    """Goes on until the process is ended."""
    # All wait alike, so that they leave in the order in which they came.
    waiting: collections.deque[tuple[float, _Port, bytes]] = collections.deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(list(ports.values()), [], [], pause)[0]:
            due = time.monotonic() + delay
            for _ in range(_MOST):
                frame = port.take()
                if frame is None:
                    break
                end = ports.get(frame[_HEADER : _HEADER + 6])
                if end is not None:
                    waiting.append((due, end, frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, end, frame = waiting.popleft()
            end.give(frame)


def main(arguments: Sequence[str]) -> None:
    delay, room, *pairs = arguments
    named = [pair.split("=") for pair in pairs]
    ports = {bytes.fromhex(mac.replace(":", "")): _Port(name, int(room)) for name, mac in named}
    sys.stdout.write(f"{_READY}\n")
    sys.stdout.flush()
    forward(float(delay), ports)


if __name__ == "__main__":
    main(sys.argv[1:])
