"""What plain TCP gets from the network: several flows that meet at one port."""

import dataclasses
import socket
import threading
import time
from collections.abc import Sequence

from emulated_cluster import system
from emulated_cluster.fabric import Fabric

_CHUNK = bytes(1 << 18)
_TIMEOUT = 60.0

Nic = tuple[int, int]  # server and rail


@dataclasses.dataclass(frozen=True)
class Flow:
    """A TCP connection from one NIC to another, over which so many bytes go."""

    sender: Nic
    receiver: Nic
    size: int


class _Connection:
    """Both ends of a flow. Its threads belong to this process, its sockets to the servers."""

    def __init__(self, fabric: Fabric, flow: Flow):
        self.size, self.done = flow.size, 0.0
        with system.inside(fabric.namespace(flow.receiver[0])):
            listener = socket.create_server((fabric.address(*flow.receiver), 0))
        with listener:
            source = (fabric.address(*flow.sender), 0)
            with system.inside(fabric.namespace(flow.sender[0])):
                self._out = socket.create_connection(
                    listener.getsockname(), timeout=_TIMEOUT, source_address=source
                )
            self._in, _ = listener.accept()
        self._in.settimeout(_TIMEOUT)

    def send(self) -> None:
        left = memoryview(_CHUNK)
        for at in range(0, self.size, len(_CHUNK)):
            self._out.sendall(left[: self.size - at])

    def receive(self) -> None:
        room, left = bytearray(len(_CHUNK)), self.size
        while left:
            got = self._in.recv_into(room)
            if not got:
                return  # the sender has failed: done stays 0
            left -= got
        self.done = time.monotonic()

    def close(self) -> None:
        self._out.close()
        self._in.close()


def completion(fabric: Fabric, flows: Sequence[Flow]) -> list[float]:
    """Seconds from the start of all flows to the end of each, over new connections.

    Raises:
      ClusterError: a flow stalled for a minute, or broke.
    """
    connections = [_Connection(fabric, flow) for flow in flows]
    work = [c.receive for c in connections] + [c.send for c in connections]
    threads = [threading.Thread(target=job, daemon=True) for job in work]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    for flow, connection in zip(flows, connections, strict=True):
        if not connection.done:
            raise system.ClusterError(f"{flow} did not get through.")
    return [connection.done - start for connection in connections]


def incast(fabric: Fabric, fan_in: int, seconds: float) -> float:
    """Goodput of `fan_in` equal flows into NIC (0, 0), as a share of the port's rate.

    Senders are the NICs of the other servers in turn, rail 0 first; counted until the last byte of
    the last flow, so that one that falls behind shows.
    """
    nics = [(server, rail) for rail in range(fabric.rails) for server in range(1, fabric.servers)]
    if not 1 <= fan_in <= len(nics):
        raise system.ClusterError(f"fan_in must be from 1 to {len(nics)} here, got {fan_in}.")
    size = max(1, int(seconds * fabric.rate / 8 / fan_in))
    times = completion(fabric, [Flow(nic, (0, 0), size) for nic in nics[:fan_in]])
    return fan_in * size * 8 / fabric.rate / max(times)
