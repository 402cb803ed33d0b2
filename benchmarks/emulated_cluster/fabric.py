"""The network: servers with a NIC for each device, and a switch whose ports have a rate.

Each server is a network namespace, the switch is one with a bridge in it. A cable is a veth pair:
its end in the server is the NIC, the other one the port of the switch. Both send at the rate of the
fabric; the NIC queues deeply, as a NIC that holds back its sender does, and the port drops what its
small buffer does not hold.

NIC k of server s is 10.77.k.(s + 1). A NIC reaches all others, of its own rail and of others; what
is sent from its address leaves by it. Beside the rails there is a trunk, 10.77.255.(s + 1), one NIC
with the rate of all rails together: for programs that use one interface.
"""

import contextlib
import dataclasses
import re
from collections.abc import Generator, Iterator
from pathlib import Path

from emulated_cluster import delays, system
from emulated_cluster.system import ClusterError, batch

TRUNK = 255
ETC = Path("/etc/netns")
# Room for one frame and a bit: what makes tbf cut the stack's large packets into frames.
_BURST_FRAMES = 2


@dataclasses.dataclass(frozen=True)
class Fabric:
    """A cluster's shape and rates.

    Attributes:
      servers: number of servers, 2 to 200.
      rails: NICs of each, 1 to 100.
      rate: of a NIC and of a port, in bit/s of whole frames.
      port_buffer: bytes that a port of the switch queues; it drops what comes on top.
      nic_buffer: bytes that a NIC queues.
      mtu: bytes of a packet.
      congestion_control: of TCP.
      delay: seconds that the rails take from one end to the other, 0 to 0.1; the trunk takes none.
      name: of the cluster; its namespaces begin with it.
    """

    servers: int = 4
    rails: int = 2
    rate: int = 100_000_000
    port_buffer: int = 128 * 1024
    nic_buffer: int = 2 * 1024 * 1024
    mtu: int = 9000
    congestion_control: str = "cubic"
    delay: float = 0.0
    name: str = "fjx"

    def __post_init__(self) -> None:
        bounds = {
            "servers": (2, 200),
            "rails": (1, 100),
            "rate": (1_000_000, 100_000_000_000),
            "mtu": (576, 65_000),
            "port_buffer": (self.mtu + 14, 1 << 30),
            "nic_buffer": (self.mtu + 14, 1 << 30),
            "delay": (0, 0.1),
        }
        for field, (least, most) in bounds.items():
            if not least <= getattr(self, field) <= most:
                raise ClusterError(
                    f"{field} must be from {least} to {most}, got {getattr(self, field)}."
                )
        if not re.fullmatch(r"[a-z][a-z0-9]{0,7}", self.name):
            raise ClusterError(f"name must be one to eight of a-z and 0-9, got {self.name!r}.")

    @property
    def nics(self) -> list[str]:
        """Names of a server's NICs, by rail."""
        return [f"nic{rail}" for rail in range(self.rails)]

    @property
    def switch(self) -> str:
        """The switch's namespace."""
        return f"{self.name}-switch"

    def namespace(self, server: int) -> str:
        """A server's namespace, which is its host name as well."""
        return f"{self.name}-{server}"

    def address(self, server: int, rail: int) -> str:
        """Of a NIC; of the trunk for rail TRUNK."""
        return f"10.77.{rail}.{server + 1}"

    def port(self, server: int, rail: int) -> str:
        """The switch's end of the cable to a NIC, or to a trunk."""
        return f"p{server}-{'trunk' if rail == TRUNK else rail}"

    def nic(self, rail: int) -> str:
        """The server's end."""
        return "trunk" if rail == TRUNK else self.nics[rail]

    @property
    def cables(self) -> list[int]:
        """The rails, and the trunk."""
        return [*range(self.rails), TRUNK]

    def _width(self, rail: int) -> int:
        """How many times the fabric's rate a cable has."""
        return self.rails if rail == TRUNK else 1

    def _queue(self, buffer: int, width: int, slower: float = 1) -> str:
        burst = _BURST_FRAMES * (self.mtu + 14)
        rate = max(8, round(self.rate * width / slower))
        return f"root tbf rate {rate}bit burst {burst}b limit {buffer * width}b"

    def up(self) -> None:
        """Makes the network, after taking down what is left of an earlier one of this name.

        Raises:
          ClusterError: the machine cannot, or refuses.
        """
        reason = system.why_not()
        if reason:
            raise ClusterError(f"No cluster can be made here: {reason}.")
        self.down()
        try:
            self._make_switch()
            for server in range(self.servers):
                self._make_server(server)
            if self.delay:
                self._lengthen_cables()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Kills all that runs in the cluster and takes it away; does nothing if there is none."""
        down(self.name)

    def _make_switch(self) -> None:
        system.run(["ip", "netns", "add", self.switch])
        _settings(self.switch, {"net/ipv6/conf/all/disable_ipv6": "1"})
        lines = ["link set lo up"]
        for bridge in ("rails", "trunks"):
            lines += [f"link add name {bridge} type bridge", f"link set {bridge} mtu {self.mtu} up"]
        batch("ip", self.switch, lines)

    def _make_server(self, server: int) -> None:
        space = self.namespace(server)
        system.run(["ip", "netns", "add", space])
        _settings(space, _SERVER_SETTINGS)
        cables = [
            f"link add {self.nic(rail)} mtu {self.mtu} address {_mac(server, rail)} netns {space} "
            f"type veth peer name {self.port(server, rail)} mtu {self.mtu} netns {self.switch}"
            for rail in self.cables
        ]
        batch("ip", None, cables)
        batch("tc", space, [self._nic_queue(rail) for rail in self.cables])
        batch("tc", self.switch, [self.port_queue(server, rail) for rail in self.cables])
        bridges = {rail: "trunks" if rail == TRUNK else "rails" for rail in self.cables}
        ports = [f"link set {self.port(server, k)} master {bridges[k]} up" for k in self.cables]
        batch("ip", self.switch, ports)
        batch("ip", space, ["link set lo up", *self._addresses(server), *self._routes(server)])
        self._write_hosts(server)

    def _lengthen_cables(self) -> None:
        """A program takes the bridge's place between the rails."""
        ports = {
            self.port(server, rail): _mac(server, rail)
            for server in range(self.servers)
            for rail in range(self.rails)
        }
        batch("ip", self.switch, [f"link set {port} nomaster" for port in ports])
        delays.start(self.switch, self.delay, self.port_buffer, ports)

    def _nic_queue(self, rail: int) -> str:
        """tc's command for the queue of a NIC."""
        queue = self._queue(self.nic_buffer, self._width(rail))
        return f"qdisc replace dev {self.nic(rail)} {queue}"

    def port_queue(self, server: int, rail: int, slower: float = 1) -> str:
        """tc's command for the queue of the port towards a NIC."""
        queue = self._queue(self.port_buffer, self._width(rail), slower)
        return f"qdisc replace dev {self.port(server, rail)} {queue}"

    def widen_trunk(self, server: int, width: int) -> None:
        """Gives a server's trunk the rate and the buffers of so many NICs, instead of all."""
        nic, port = self.nic(TRUNK), self.port(server, TRUNK)
        for space, end, buffer in (
            (self.namespace(server), nic, self.nic_buffer),
            (self.switch, port, self.port_buffer),
        ):
            batch("tc", space, [f"qdisc replace dev {end} {self._queue(buffer, width)}"])

    def _addresses(self, server: int) -> Iterator[str]:
        for rail in self.cables:
            yield f"addr add {self.address(server, rail)}/24 dev {self.nic(rail)} noprefixroute"
            yield f"link set {self.nic(rail)} up"

    def _routes(self, server: int) -> Iterator[str]:
        """From each NIC to all others, whose addresses nobody has to ask for.

        A lost ARP packet would cost a second, as it does in no real cluster's steady state.
        """
        others = [other for other in range(self.servers) if other != server]
        for rail in self.cables:
            nic, own, table = self.nic(rail), self.address(server, rail), 100 + rail
            reached = [TRUNK] if rail == TRUNK else range(self.rails)
            # The algorithm goes with the route: namespaces may not choose among all that there are.
            way = f"dev {nic} src {own} congctl {self.congestion_control}"
            yield f"route add 10.77.{rail}.0/24 {way}"
            yield f"rule add from {own} lookup {table}"
            for far in reached:
                yield f"route add 10.77.{far}.0/24 {way} table {table}"
                for other in others:
                    mac = _mac(other, far)
                    yield f"neigh add {self.address(other, far)} lladdr {mac} dev {nic}"

    def _write_hosts(self, server: int) -> None:
        """Puts names of servers into what `ip netns exec` shows as /etc/hosts: their trunks.

        A program that looks for its interface by its host's name, as gloo does, finds the trunk.
        """
        folder = ETC / self.namespace(server)
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{self.address(s, TRUNK)} {self.namespace(s)}" for s in range(self.servers)]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")


_SERVER_SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    # A NIC answers for its own addresses only, and takes what comes by any way.
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    # What one run learns of a path must not make the next one slower.
    "net/ipv4/tcp_no_metrics_save": "1",
    # Nor may a pause: NICs of clusters begin at full rate.
    "net/ipv4/tcp_slow_start_after_idle": "0",
}


@contextlib.contextmanager
def cluster(fabric: Fabric) -> Generator[Fabric]:
    """The network is up, and down again afterwards whatever happens."""
    with system.lock(fabric.name):
        fabric.up()
        try:
            yield fabric
        finally:
            fabric.down()


def down(name: str) -> None:
    """Takes down the cluster of that name, whoever made it, and kills what runs in it."""
    ours = re.compile(rf"{re.escape(name)}-(switch|\d+)")
    spaces = [space for space in system.namespaces(f"{name}-") if ours.fullmatch(space)]
    for space in spaces:
        system.kill_all(space)
    for space in spaces:
        system.delete_namespace(space)
        folder = ETC / space
        (folder / "hosts").unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()
    with contextlib.suppress(OSError):  # others may have files there
        ETC.rmdir()


def _mac(server: int, rail: int) -> str:
    return f"02:4d:00:{rail:02x}:00:{server + 1:02x}"


def _settings(space: str, values: dict[str, str]) -> None:
    """Settings of the kernel for one namespace."""
    with system.inside(space):
        for name, value in values.items():
            path = Path("/proc/sys", name)
            # A kernel without IPv6 has no switch to turn it off.
            if path.exists() or "ipv6" not in name:
                _write_setting(path, value)


def _write_setting(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise ClusterError(f"cannot set {path} to {value}: {error}") from error
