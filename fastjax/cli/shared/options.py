"""Options that commands share: which traffic and which fabric; and loading what they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastjax import traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.shared import text, workloads
from fastjax.errors import ArgumentError, OptionError
from fastjax.simulation import PRESETS
from fastjax.topology import Topology, doubt
from fastjax.traffic.text import lines

BUSIEST = (
    "Of a trace with several exchanges (steps, layers, microbatches), the one is taken whose "
    "busiest device has most rows; --trace-step and --trace-layer narrow the choice."
)
# Options of the fabric, by the names of rates.
_RATES = {
    "scale_up_bandwidth": "bytes/s of a device inside its server",
    "scale_out_bandwidth": "bytes/s of a device's NIC",
    "scale_up_latency": "seconds that starting a transfer inside a server takes",
    "scale_out_latency": "seconds that starting a scale-out stage takes",
    "transfer_overhead": "seconds that posting one of several messages takes",
    "incast_loss": "share of time that senders lose where they meet, from 0 to 1",
}


class Source(NamedTuple):
    """Traffic that a command works on.

    Attributes:
      matrix: rows device i sends to device j, shape (devices, devices).
      name: where it is from.
      row_bytes: bytes of a row.
      topology: the servers that devices are split into, and their rates.
    """

    matrix: np.ndarray
    name: str
    row_bytes: int
    topology: Topology


def number(
    least: float, most: float | None = None, kind: Callable[[str], Any] = int
) -> Callable[[str], Any]:
    """The `type=` of options that are numbers within bounds."""

    def convert(word: str) -> Any:
        value = kind(word)
        if not (least <= value and (most is None or value <= most)):
            bounds = f"{least:,} or more" if most is None else f"from {least:,} to {most:,}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, got {word}")
        return value

    convert.__name__ = kind.__name__  # argparse says it of what is no number
    return convert


def add_traffic(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say where traffic is from."""
    add = parser.add_argument_group("traffic: a file, or --generate").add_argument
    add(
        "file",
        nargs="?",
        type=Path,
        help="a matrix of bytes as nccl-tests' alltoallv_perf reads it, or a routing trace of "
        "Megatron-Core's --moe-routing-trace-path: a file of JSON lines, or the folder",
    )
    add("--generate", choices=workloads.SKEWS, help="synthetic traffic; see fastjax.traffic")
    add("--devices", type=number(1), metavar="N", help="number of devices; known from a matrix")
    add("--rows", type=int, metavar="N", default=4096, help="--generate: mean rows of a device")
    add("--exponent", type=float, metavar="X", default=0.8, help="--generate: Zipf's exponent")
    add("--seed", type=number(0), metavar="N", default=0, help="--generate: of random numbers")
    add("--num-experts", type=int, metavar="N", help="a trace: experts of a layer")
    add("--trace-step", type=int, metavar="N", help="a trace: this step only")
    add("--trace-layer", type=int, metavar="N", help="a trace: this layer only")
    add(
        "--row-bytes",
        type=int,
        metavar="N",
        help=f"bytes of a row; by default 1 for a matrix, whose rows are bytes then, and "
        f"{DEFAULT_ROW_BYTES} otherwise",
    )


def add_fabric(parser: argparse.ArgumentParser) -> None:
    """Adds --preset, --servers, --failed-nics, and an option for each of the rates."""
    add = parser.add_argument
    known = "; ".join(f"{name}: {preset}" for name, preset in PRESETS.items())
    add(
        "--preset",
        choices=list(PRESETS),
        help="a cluster: its rates, in place of the defaults below, what senders lose that meet, "
        f"and how many devices a server has. {known}",
    )
    split = "servers that the devices are split into; by default of the preset's size"
    add("--servers", type=number(1), metavar="N", help=split)
    for name, what in _RATES.items():
        rate = getattr(Topology, name)
        shown = f"{what}; default: {f'{rate / 1e9:g}e9' if rate >= 1e9 else f'{rate:g}'}"
        add(f"--{name.replace('_', '-')}", type=float, metavar="X", help=shown)
    failed = "devices whose NIC has failed; rows go round them"
    add("--failed-nics", type=int, nargs="+", default=[], metavar="DEVICE", help=failed)


def preset_section(name: str | None) -> text.Section:
    """Where a preset's rates are from, and which are guesses, for people."""
    return {"preset": f"{name}: {PRESETS[name]}"} if name else {}


def load(options: argparse.Namespace) -> Source:
    """The traffic and the fabric that options of the functions above ask for.

    Raises:
      ArgumentError: what the file says is wrong.
      OptionError: so is what the options say, or how they fit together.
      TopologyError: a rate is impossible.
      OSError: the file cannot be read.
    """
    if (options.file is None) == (options.generate is None):
        raise OptionError("want a file with traffic, or --generate with a name: one of the two.")
    row_bytes = options.row_bytes
    if options.generate is not None:
        if options.devices is None:
            raise OptionError("--generate needs --devices, as in --devices 32.")
        made = (options.devices, options.rows, options.exponent, options.seed)
        matrix = workloads.make_traffic(options.generate, *made)
        name = f"{options.generate} {as_given(options, 'devices', 'rows', 'exponent', 'seed')}"
    elif is_trace(options.file):
        found = traffic.traffic_from_routing(
            trace_records(options), devices=options.devices, num_experts=options.num_experts
        )
        rows = {each: max(m.sum(axis=0).max(), m.sum(axis=1).max()) for each, m in found.items()}
        exchange, name = busiest(options, rows)
        matrix = found[exchange]
    else:
        row_bytes = 1 if row_bytes is None else row_bytes
        matrix, name = traffic.read_matrix(options.file, row_bytes=row_bytes), str(options.file)
        if options.devices not in (None, len(matrix)):
            raise OptionError(
                f"--devices {options.devices}, but {name} is of {len(matrix)} devices."
            )
    row_bytes = DEFAULT_ROW_BYTES if row_bytes is None else row_bytes
    return Source(matrix, name, row_bytes, topology(options, len(matrix)))


def as_given(options: argparse.Namespace, *names: str) -> str:
    """These options, as they are written."""
    return " ".join(f"--{name.replace('_', '-')} {getattr(options, name)}" for name in names)


def topology(options: argparse.Namespace, devices: int) -> Topology:
    """The servers that devices are split into, at the rates of the options.

    Raises:
      OptionError: devices do not divide, --failed-nics names one that there is not, or a rate is in
        another unit.
      TopologyError: a rate is impossible.
    """
    rates: dict[str, Any] = dict(PRESETS[options.preset].rates) if options.preset else {}
    given = {name: getattr(options, name) for name in _RATES}
    rates |= {name: rate for name, rate in given.items() if rate is not None}
    failed = options.failed_nics
    strange = [device for device in failed if not 0 <= device < devices]
    if strange:
        raise OptionError(f"--failed-nics {strange[0]}: there are devices 0 to {devices - 1}.")
    if failed:
        rate = rates.get("scale_out_bandwidth", Topology.scale_out_bandwidth)
        rates["nic_bandwidths"] = tuple(0.0 if d in failed else rate for d in range(devices))
    servers = _number_of_servers(options, devices)
    found = Topology(servers, devices // servers, **rates)
    if (doubted := doubt(found)) is not None:
        raise OptionError(doubted)
    return found


def _number_of_servers(options: argparse.Namespace, devices: int) -> int:
    """How many servers devices are split into: as many as asked for, or of the preset's size."""
    servers = options.servers
    if servers is None:
        if options.preset is None:
            raise OptionError("want --servers, or a --preset, which says how large servers are.")
        of_server = PRESETS[options.preset].devices_per_server
        if devices % of_server:
            raise OptionError(
                f"{devices} devices are no whole number of servers of {of_server}; give --servers."
            )
        return devices // of_server
    if devices % servers:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        near = min(fits, key=lambda n: abs(n - servers))
        raise OptionError(
            f"--servers {servers} does not divide {devices} devices; --servers {near} does."
        )
    return servers


def is_trace(path: Path) -> bool:
    """Whether a file is a trace, or a folder of traces, and not a matrix."""
    if path.is_dir():
        return True
    first = next((line for _, line in lines(path) if line.strip()), "")
    return first.lstrip().startswith("{")


def trace_records(options: argparse.Namespace) -> Iterator[traffic.RoutingRecord]:
    """The records of the step and layer that options ask for.

    Raises:
      OptionError: they do not say what a trace leaves open.
    """
    for name in ("devices", "num_experts"):
        if getattr(options, name) is None:
            raise OptionError(f"{options.file}: a trace needs --{name.replace('_', '-')}.")
    return (
        record
        for record in traffic.read_routing_trace(options.file)
        if options.trace_step in (None, record.step) and options.trace_layer in (None, record.layer)
    )


def busiest(
    options: argparse.Namespace, rows: Mapping[traffic.Exchange, int]
) -> tuple[traffic.Exchange, str]:
    """The exchange of a trace whose busiest device has most rows, and the words for it.

    Raises:
      OptionError: there is none.
    """
    if not rows:
        raise OptionError(
            f"{options.file}: no record of that step and layer; without --trace-step and "
            "--trace-layer, that with most rows is taken."
        )
    exchange = max(rows, key=lambda each: rows[each])
    of = f", the busiest of {len(rows)}" if len(rows) > 1 else ""
    return exchange, f"{options.file}, {exchange}{of}"


def save_picture(path: Path, draw: Callable[[], Any]) -> None:
    """Saves the figure that a function draws, into a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        draw().savefig(path, dpi=150)
    except ValueError as error:  # that is how matplotlib refuses types
        raise ArgumentError(f"{path}: {error}") from None
