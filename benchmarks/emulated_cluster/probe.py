"""What plain TCP gets from the network: several flows that meet at one port."""

import contextlib
import socket
import threading
import time

from emulated_cluster import system
from emulated_cluster.fabric import Fabric

_CHUNK = bytes(1 << 18)
_TIMEOUT = 60.0

Nic = tuple[int, int]  # server and rail


class _Connection:
    """Both ends of a flow. Its threads belong to this process, its sockets to the servers."""

    def __init__(self, fabric: Fabric, sender: Nic, receiver: Nic, size: int):
        self.size, self.done = size, 0.0
        with system.inside(fabric.namespace(receiver[0])):
            listener = socket.create_server((fabric.address(*receiver), 0))
        with listener:
            source = (fabric.address(*sender), 0)
            with system.inside(fabric.namespace(sender[0])):
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


def incast(fabric: Fabric, fan_in: int, seconds: float) -> float:
    """Goodput of `fan_in` equal flows into NIC (0, 0), as a share of the port's rate.

    Senders are the NICs of the other servers in turn, rail 0 first; counted until the last byte of
    the last flow, so that one that falls behind shows. Connections are new.

    Raises:
      ClusterError: a flow stalled for a minute, or broke.
    """
    nics = [(server, rail) for rail in range(fabric.rails) for server in range(1, fabric.servers)]
    size = max(1, int(seconds * fabric.rate / 8 / fan_in))
    with contextlib.ExitStack() as stack:
        flows = []
        for nic in nics[:fan_in]:
            flows.append(_Connection(fabric, nic, (0, 0), size))
            stack.callback(flows[-1].close)
        work = [flow.receive for flow in flows] + [flow.send for flow in flows]
        threads = [threading.Thread(target=job, daemon=True) for job in work]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for nic, flow in zip(nics, flows, strict=False):
        if not flow.done:
            raise system.ClusterError(f"a flow from NIC {nic} did not get through.")
    return fan_in * size * 8 / fabric.rate / (max(flow.done for flow in flows) - start)
