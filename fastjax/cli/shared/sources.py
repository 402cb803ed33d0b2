"""Traffic for commands: the options that say where it is from, and loading it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fastjax import traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.shared import workloads
from fastjax.cli.shared.commands import number
from fastjax.errors import OptionError
from fastjax.simulation import PRESETS
from fastjax.traffic.text import lines

BUSIEST = (
    "Of a trace with several exchanges (steps, layers, microbatches), the one is taken whose "
    "busiest device has most rows; --trace-step and --trace-layer narrow the choice."
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Traffic that a command works on.

    Attributes:
      matrix: rows device i sends to device j, shape (devices, devices).
      name: where it is from.
      row_bytes: bytes of a row.
      servers: that the devices are split into.
    """

    matrix: np.ndarray
    name: str
    row_bytes: int
    servers: int


def add_options(parser: argparse.ArgumentParser) -> None:
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
    add("--devices", type=int, metavar="N", help="number of devices; known from a matrix")
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


def load(options: argparse.Namespace) -> Source:
    """The traffic that options, of `add_options` and of `rates`, ask for.

    Raises:
      ArgumentError: what the file says is wrong.
      OptionError: so is what the options say, or how they fit together.
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
    elif _is_trace(options.file):
        check_trace(options)
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
    return Source(matrix, name, row_bytes, number_of_servers(options, len(matrix)))


def as_given(options: argparse.Namespace, *names: str) -> str:
    """These options, as they are written."""
    return " ".join(f"--{name.replace('_', '-')} {getattr(options, name)}" for name in names)


def number_of_servers(options: argparse.Namespace, devices: int) -> int:
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
    if servers < 1 or devices % servers:
        fits = [n for n in range(1, devices + 1) if devices % n == 0]
        near = min(fits, key=lambda n: abs(n - servers))
        raise OptionError(
            f"--servers {servers} does not divide {devices} devices; --servers {near} does."
        )
    return servers


def check_experts(experts: int, devices: int, servers: int) -> None:
    """Refuses experts that devices cannot have as many of each, with devices that could.

    Raises:
      OptionError: they cannot.
    """
    if experts < 1 or experts % devices == 0:
        return  # what is no number of experts is refused where it is used
    per_server = devices // servers
    fits = [n for n in range(min(experts, devices), 0, -1) if experts % n == 0]
    whole = next((n for n in fits if n % per_server == 0), fits[0])
    raise OptionError(
        f"{experts} experts do not divide over {devices} devices; --devices {whole} would have "
        f"{experts // whole} each."
    )


def _is_trace(path: Path) -> bool:
    if path.is_dir():
        return True
    first = next((line for _, line in lines(path) if line.strip()), "")
    return first.lstrip().startswith("{")


def check_trace(options: argparse.Namespace) -> None:
    """Refuses options that do not say what a trace leaves open.

    Raises:
      OptionError: they do not.
    """
    for name in ("devices", "num_experts"):
        if getattr(options, name) is None:
            raise OptionError(f"{options.file}: a trace needs --{name.replace('_', '-')}.")
    servers = number_of_servers(options, options.devices)
    check_experts(options.num_experts, options.devices, servers)


def trace_records(options: argparse.Namespace) -> Iterator[traffic.RoutingRecord]:
    """The records of the step and layer that options ask for."""
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
