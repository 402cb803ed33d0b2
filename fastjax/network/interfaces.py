"""Which network interface leads to the job's coordinator."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from fastjax.errors import UnsupportedError

_SIOCGIFADDR = 0x8915


def towards(coordinator: str) -> str:
    """The interface by which this machine reaches "host:port".

    Raises:
      UnsupportedError: the address leads nowhere, or no interface has the address it leads from.
    """
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: the system only looks up the way
            local = probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise UnsupportedError(
            f"FASTJAX_UCX_NICS=auto: no way to the job's coordinator {coordinator!r} can be found "
            f"({error}); name the interfaces instead."
        ) from None
    for name, addresses in _addresses().items():
        if local.partition("%")[0] in addresses:
            return name
    raise UnsupportedError(
        f"FASTJAX_UCX_NICS=auto: the way to the job's coordinator {coordinator!r} begins at "
        f"{local}, which is the address of none of this machine's interfaces; name them instead."
    )


def _addresses() -> dict[str, set[str]]:
    """Addresses of each interface of this machine."""
    found: dict[str, set[str]] = {name: set() for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for name, addresses in found.items():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            addresses.add(socket.inet_ntop(socket.AF_INET, answer[20:24]))
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        address, *_, name = line.split()
        found.setdefault(name, set()).add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address)))
    return found
