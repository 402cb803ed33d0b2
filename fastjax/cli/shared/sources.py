"""Traffic for commands: the options that say where it is from, and loading it."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fastjax import traffic
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.errors import OptionError
from fastjax.traffic.text import lines

NO_RECORD = (
    "{}: no record of that step and layer; without --trace-step and --trace-layer, that with most "
    "rows is taken."
)

_Generator = Callable[[argparse.Namespace], np.ndarray]
_GENERATORS: dict[str, _Generator] = {
    "uniform": lambda o: traffic.uniform(o.devices, o.rows),
    "pair-zipf": lambda o: traffic.pair_zipf(o.devices, o.rows, exponent=o.exponent, seed=o.seed),
    "expert-popularity": lambda o: traffic.expert_popularity(
        o.devices, o.rows, exponent=o.exponent, seed=o.seed
    ),
    "hot-receiver": lambda o: traffic.hot_receiver(o.devices, o.rows),
    "permutation": lambda o: traffic.permutation(o.devices, o.rows, seed=o.seed),
    "single-flow": lambda o: traffic.single_flow(o.devices, o.rows),
}


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
    add("--generate", choices=list(_GENERATORS), help="synthetic traffic; see fastjax.traffic")
    add("--devices", type=int, metavar="N", help="number of devices; known from a matrix")
    add("--rows", type=int, metavar="N", default=4096, help="--generate: mean rows of a device")
    add("--exponent", type=float, metavar="X", default=0.8, help="--generate: Zipf's exponent")
    add("--seed", type=int, metavar="N", default=0, help="--generate: seed of the random numbers")
    add("--num-experts", type=int, metavar="N", help="a trace: experts of a layer")
    add("--trace-step", type=int, metavar="N", help="a trace: this step only")
    add("--trace-layer", type=int, metavar="N", help="a trace: this layer only")
    add(
        "--deduplicate",
        action="store_true",
        help="a trace: tokens with several experts on one device are one row there",
    )
    add(
        "--row-bytes",
        type=int,
        metavar="N",
        help=f"bytes of a row; by default 1 for a matrix, whose rows are bytes then, and "
        f"{DEFAULT_ROW_BYTES} otherwise",
    )
    parser.epilog = (
        "Of a trace with several exchanges (steps, layers, microbatches), the one is taken whose "
        "busiest device has most rows; --trace-step and --trace-layer narrow the choice."
    )


def load(options: argparse.Namespace, devices_per_server: int | None = None) -> Source:
    """The traffic that options, of `add_options` and --servers, ask for.

    Args:
      options: of the command line.
      devices_per_server: what splits devices into servers where --servers is not given.

    Raises:
      ArgumentError: what the file says is wrong.
      OptionError: so is what the options say, or how they fit together.
      OSError: the file cannot be read.
    """
    if (options.file is None) == (options.generate is None):
        raise OptionError("want a file with traffic, or --generate with a name: one of the two.")
    row_bytes = DEFAULT_ROW_BYTES if options.row_bytes is None else options.row_bytes
    if options.generate is not None:
        matrix, name = _generate(options)
    elif _is_trace(options.file):
        matrix, name = _from_trace(options, devices_per_server)
    else:
        row_bytes = 1 if options.row_bytes is None else options.row_bytes
        matrix, name = _from_matrix(options, row_bytes)
    servers = number_of_servers(options.servers, matrix.shape[0], devices_per_server)
    return Source(matrix, name, row_bytes, servers)


def number_of_servers(servers: int | None, devices: int, devices_per_server: int | None) -> int:
    """How many servers devices are split into: as many as asked for, or of the preset's size."""
    if servers is None:
        if devices_per_server is None:
            raise OptionError("want --servers, or a --preset, which says how large servers are.")
        if devices % devices_per_server:
            raise OptionError(
                f"{devices} devices are no whole number of servers of {devices_per_server}; "
                "give --servers."
            )
        return devices // devices_per_server
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


def _from_matrix(options: argparse.Namespace, row_bytes: int) -> tuple[np.ndarray, str]:
    matrix = traffic.read_matrix(options.file, row_bytes=row_bytes)
    if options.devices not in (None, matrix.shape[0]):
        raise OptionError(
            f"--devices {options.devices}, but {options.file} is of {matrix.shape[0]} devices."
        )
    return matrix, str(options.file)


def _generate(options: argparse.Namespace) -> tuple[np.ndarray, str]:
    if options.devices is None:
        raise OptionError("--generate needs --devices, as in --devices 32.")
    if options.seed < 0:
        raise OptionError(f"--seed must be 0 or more, got {options.seed}.")
    used = " ".join(f"--{n} {getattr(options, n)}" for n in ("devices", "rows", "exponent", "seed"))
    return _GENERATORS[options.generate](options), f"{options.generate} {used}"


def _is_trace(path: Path) -> bool:
    if path.is_dir():
        return True
    first = next((line for _, line in lines(path) if line.strip()), "")
    return first.lstrip().startswith("{")


def trace_records(options: argparse.Namespace) -> Iterator[traffic.RoutingRecord]:
    """The records of the step and layer that options ask for."""
    return (
        record
        for record in traffic.read_routing_trace(options.file)
        if options.trace_step in (None, record.step) and options.trace_layer in (None, record.layer)
    )


def _from_trace(
    options: argparse.Namespace, devices_per_server: int | None
) -> tuple[np.ndarray, str]:
    for name in ("devices", "num_experts"):
        if getattr(options, name) is None:
            raise OptionError(f"{options.file}: a trace needs --{name.replace('_', '-')}.")
    servers = number_of_servers(options.servers, options.devices, devices_per_server)
    check_experts(options.num_experts, options.devices, servers)
    found = traffic.traffic_from_routing(
        trace_records(options),
        devices=options.devices,
        num_experts=options.num_experts,
        deduplicate=options.deduplicate,
    )
    if not found:
        raise OptionError(NO_RECORD.format(options.file))
    exchange = max(found, key=lambda e: max(found[e].sum(axis=0).max(), found[e].sum(axis=1).max()))
    of = f", the busiest of {len(found)}" if len(found) > 1 else ""
    return found[exchange], f"{options.file}, {exchange}{of}"


__all__ = [
    "NO_RECORD",
    "Source",
    "add_options",
    "check_experts",
    "load",
    "number_of_servers",
    "trace_records",
]
