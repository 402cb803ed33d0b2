"""The options of the programs, and how rates and sizes are written."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from emulated_cluster.fabric import Fabric

RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}


def amount(units: Mapping[str, int]) -> Callable[[str], int]:
    """Reads a whole number of units, as in 100mbit or 128k."""

    def read(text: str) -> int:
        found = re.fullmatch(r"(\d+)([a-z]*)", text.lower())
        if not found or found[2] not in units:
            known = ", ".join(f"100{unit}" for unit in units)
            raise argparse.ArgumentTypeError(f"must be like {known}; got {text!r}.")
        return int(found[1]) * units[found[2]]

    return read


def count(text: str) -> int:
    """Reads a whole number above 0."""
    if int(text) <= 0:
        raise argparse.ArgumentTypeError("must be above 0.")
    return int(text)


def positive(text: str) -> float:
    """Reads a number above 0."""
    if not float(text) > 0:
        raise argparse.ArgumentTypeError("must be above 0.")
    return float(text)


def row(text: str) -> int:
    """Reads the bytes of a row, whose elements have four."""
    if int(text) <= 0 or int(text) % 4:
        raise argparse.ArgumentTypeError("must be a multiple of 4.")
    return int(text)


def of_network(program: str, about: str) -> argparse.ArgumentParser:
    """The options that all programs have: the network, and what the planner is told of it."""
    parser = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--servers", type=count, default=4, help="network namespaces, with one process each")
    add("--rails", type=count, default=2, help="NICs of a server, and devices of its process")
    add("--rate", type=amount(RATES), default="100mbit", help="of a NIC and of a switch's port")
    add("--port-buffer", type=amount(SIZES), default="128k", help="queue of a switch's port")
    add("--nic-buffer", type=amount(SIZES), default="2m", help="what a NIC queues")
    add("--mtu", type=count, default=9000, help="bytes of a packet")
    add("--congestion-control", default="cubic", help="of TCP: reno, cubic, bbr, ...")
    add("--delay", type=float, default=0.0, help="seconds from end to end of the rails' cables")
    add("--name", default="fjx", help="of the cluster; one at a time has a name")
    add("--scale-up-bandwidth", type=positive, default=2e9, help="told: bytes/s of copies inside")
    add("--scale-up-latency", type=positive, default=5e-5, help="told: seconds of a start inside")
    add(
        "--scale-out-latency",
        type=positive,
        default=5e-4,
        help="told: seconds to start a stage between servers, apart from what cables take",
    )
    return parser


def add_job(parser: argparse.ArgumentParser, rounds: int) -> None:
    """The options of what is measured."""
    add = parser.add_argument
    add("--rounds", type=count, default=rounds, help="times that each runs, in turn with others")
    add("--timeout", type=positive, default=1800.0, help="seconds that the whole job may take")
    add("--json", type=Path, help="file for the full record")


def add_rows(parser: argparse.ArgumentParser, seconds: float, row_bytes: int = 4096) -> None:
    """The options of what sends rows of a size that is chosen."""
    add = parser.add_argument
    add("--seconds", type=positive, default=seconds, help="the line-rate limit of what is sent")
    add("--row-bytes", type=row, default=row_bytes, help="a multiple of 4")
    add("--seed", type=int, default=0, help="of what is random: what is sent, order in rounds")


def fabric_of(options: argparse.Namespace) -> Fabric:
    """The fabric that options describe."""
    return Fabric(
        servers=options.servers,
        rails=options.rails,
        rate=options.rate,
        port_buffer=options.port_buffer,
        nic_buffer=options.nic_buffer,
        mtu=options.mtu,
        congestion_control=options.congestion_control,
        delay=options.delay,
        name=options.name,
    )


def told(options: argparse.Namespace) -> dict[str, float]:
    """What fastjax.Topology is told, beside its shape."""
    return {
        "scale_up_bandwidth": options.scale_up_bandwidth,
        "scale_up_latency": options.scale_up_latency,
        "scale_out_bandwidth": options.rate / 8,
        # A large message is announced, asked for, and then comes.
        "scale_out_latency": options.scale_out_latency + 3 * options.delay,
    }
