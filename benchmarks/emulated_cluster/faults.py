"""What can go wrong in a cluster, on demand: links and the switch."""

from collections.abc import Iterable

from emulated_cluster.fabric import TRUNK, Fabric
from emulated_cluster.system import ClusterError, batch

_APART = "apart"


def link(fabric: Fabric, server: int, rail: int, *, up: bool) -> None:
    """Pulls the cable out of a NIC (TRUNK: out of the trunk), or puts it back in."""
    state = "up" if up else "down"
    batch("ip", fabric.switch, [f"link set {fabric.port(server, rail)} {state}"])


def partition(fabric: Fabric, servers: Iterable[int]) -> None:
    """Parts these servers from the others: frames between the two sides vanish, on trunks too.

    Raises:
      ClusterError: its cables are long, so that no bridge is between the rails.
    """
    if fabric.delay:
        raise ClusterError("only a cluster without delay can be parted.")
    lines = []
    for bridge, cables in _bridges(fabric).items():
        name = f"{bridge}-{_APART}"
        lines += [f"link add name {name} type bridge", f"link set {name} mtu {fabric.mtu} up"]
        ports = [fabric.port(server, rail) for server in servers for rail in cables]
        lines += [f"link set {port} master {name}" for port in ports]
    batch("ip", fabric.switch, lines)


def heal(fabric: Fabric) -> None:
    """Ends a partition."""
    lines = []
    for bridge, cables in _bridges(fabric).items():
        ports = [fabric.port(server, k) for server in range(fabric.servers) for k in cables]
        lines += [f"link set {port} master {bridge}" for port in ports]
        lines += [f"link delete {bridge}-{_APART}"]
    batch("ip", fabric.switch, lines)


def _bridges(fabric: Fabric) -> dict[str, list[int]]:
    return {"rails": list(range(fabric.rails)), "trunks": [TRUNK]}


def slow_receiver(fabric: Fabric, server: int, factor: float = 10) -> None:
    """Makes the ports towards a server's NICs so many times slower; 1 is as they were."""
    lines = [fabric.port_queue(server, rail, factor) for rail in range(fabric.rails)]
    batch("tc", fabric.switch, lines)
