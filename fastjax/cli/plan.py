"""Plans on the command line: `python -m fastjax plan`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import fastjax
from fastjax import traffic
from fastjax.cli import figures, report
from fastjax.errors import FastjaxError, OptionError
from fastjax.traffic.text import lines

# Options of the fabric: what they are, and the power of ten that they are shown in.
_FABRIC = {
    "scale_up_bandwidth": ("bytes/s of a device inside its server", 9),
    "scale_out_bandwidth": ("bytes/s of a device's NIC", 9),
    "scale_up_latency": ("seconds that starting a transfer inside a server takes", -6),
    "scale_out_latency": ("seconds that starting a scale-out stage takes", -6),
    "transfer_overhead": ("seconds a transfer takes where nothing is staged", -6),
    "incast_loss": ("share of time that senders lose where they meet, from 0 to 1", 0),
}
_DEFAULT_ROW_BYTES = 4096

_GENERATORS: dict[str, Callable[[argparse.Namespace], np.ndarray]] = {
    "uniform": lambda o: traffic.uniform(o.devices, o.rows),
    "pair-zipf": lambda o: traffic.pair_zipf(o.devices, o.rows, exponent=o.exponent, seed=o.seed),
    "expert-popularity": lambda o: traffic.expert_popularity(
        o.devices, o.rows, exponent=o.exponent, seed=o.seed
    ),
    "hot-receiver": lambda o: traffic.hot_receiver(o.devices, o.rows),
    "hot-sender": lambda o: traffic.hot_sender(o.devices, o.rows),
    "permutation": lambda o: traffic.permutation(o.devices, o.rows, seed=o.seed),
    "single-flow": lambda o: traffic.single_flow(o.devices, o.rows),
    "staggered": lambda o: traffic.staggered(o.devices, o.rows),
    "concentrated": lambda o: traffic.concentrated(o.servers, o.devices // o.servers, o.rows),
}


def main(arguments: Sequence[str]) -> int:
    """Plans, and shows the plan; returns the exit status."""
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        _run(options)
    except (FastjaxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastjax plan",
        description="Plans one exchange, without devices, and shows the plan's figures.",
    )
    add = parser.add_argument
    source = parser.add_argument_group("traffic: a file, or --generate")
    source.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="a matrix of bytes as nccl-tests' alltoallv_perf reads it, or a routing trace of "
        "Megatron-Core's --moe-routing-trace-path: a file of JSON lines, or the folder",
    )
    source.add_argument(
        "--generate", choices=list(_GENERATORS), help="make it up; see fastjax.traffic"
    )
    source.add_argument(
        "--devices", type=int, metavar="N", help="number of devices; a matrix says it itself"
    )
    source.add_argument(
        "--rows", type=int, metavar="N", default=4096, help="--generate: rows of a device"
    )
    source.add_argument(
        "--exponent", type=float, metavar="X", default=0.8, help="--generate: of Zipf's law"
    )
    source.add_argument(
        "--seed", type=int, metavar="N", default=0, help="--generate: of the random numbers"
    )
    source.add_argument("--num-experts", type=int, metavar="N", help="a trace: experts of a layer")
    source.add_argument(
        "--trace-step", type=int, metavar="N", help="a trace: look at this step only"
    )
    source.add_argument(
        "--trace-layer", type=int, metavar="N", help="a trace: look at this layer only"
    )
    source.add_argument(
        "--deduplicate",
        action="store_true",
        help="a trace: tokens with several experts on one device are one row there",
    )
    source.add_argument(
        "--row-bytes",
        type=int,
        metavar="N",
        help=f"bytes of a row; by default 1 for a matrix, whose rows are bytes then, and "
        f"{_DEFAULT_ROW_BYTES} otherwise",
    )
    add(
        "--servers",
        type=int,
        metavar="N",
        required=True,
        help="servers that the devices are split into",
    )
    add("--scheduler", choices=fastjax.schedulers(), default="auto", help="default: auto")
    for name, (text, power) in _FABRIC.items():
        default = getattr(fastjax.Topology, name)
        shown = f"{text}; default: {default / 10.0**power:g}" + (f"e{power}" if power else "")
        add(f"--{name.replace('_', '-')}", type=float, default=default, metavar="X", help=shown)
    add(
        "--failed-nics",
        type=int,
        nargs="+",
        default=[],
        metavar="DEVICE",
        help="devices whose NIC has failed; rows go round them",
    )
    add("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    add("--draw", type=Path, metavar="FILE", help="draw the plan: .png, .svg, .pdf, ...")
    parser.epilog = (
        "Of a trace with several exchanges (steps, layers, microbatches), the one is planned whose "
        "busiest device has most rows; --trace-step and --trace-layer narrow the choice."
    )
    return parser


def _run(options: argparse.Namespace) -> None:
    matrix, source, row_bytes = _load(options)
    devices = matrix.shape[0]
    _check_servers(options.servers, devices)
    topology = fastjax.Topology(
        options.servers,
        devices // options.servers,
        **{name: getattr(options, name) for name in _FABRIC},
        nic_bandwidths=_nics(options, devices),
    )
    plan = fastjax.make_plan(matrix, topology, scheduler=options.scheduler, row_bytes=row_bytes)
    record = figures.record(plan, source)
    if options.draw is not None:
        fastjax.plot.draw_plan(plan, options.draw)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(report.as_text(figures.sections(record, options.scheduler)))
    sys.stdout.write(f"\n\n{record['explanation'].rstrip()}\n")


def _nics(options: argparse.Namespace, devices: int) -> tuple[float, ...] | None:
    """The rate of each device's NIC, where one has failed."""
    strange = [d for d in options.failed_nics if not 0 <= d < devices]
    if strange:
        raise OptionError(f"--failed-nics {strange[0]}: there are devices 0 to {devices - 1}.")
    if not options.failed_nics:
        return None
    rate = options.scale_out_bandwidth
    return tuple(0.0 if d in options.failed_nics else rate for d in range(devices))


def _check_servers(servers: int, devices: int) -> None:
    if servers < 1 or devices % servers:
        raise OptionError(f"--servers {servers} does not divide {devices} devices.")


def _load(options: argparse.Namespace) -> tuple[np.ndarray, str, int]:
    """The traffic, where it is from, and the bytes of a row."""
    if (options.file is None) == (options.generate is None):
        raise OptionError("want a file with traffic, or --generate with a name: one of the two.")
    row_bytes = _DEFAULT_ROW_BYTES if options.row_bytes is None else options.row_bytes
    if options.generate is not None:
        return *_generate(options), row_bytes
    if _is_trace(options.file):
        return *_from_trace(options), row_bytes
    row_bytes = 1 if options.row_bytes is None else options.row_bytes
    matrix = traffic.read_matrix(options.file, row_bytes=row_bytes)
    if options.devices not in (None, matrix.shape[0]):
        raise OptionError(
            f"--devices {options.devices}, but {options.file} is of {matrix.shape[0]} devices."
        )
    return matrix, str(options.file), row_bytes


def _generate(options: argparse.Namespace) -> tuple[np.ndarray, str]:
    if options.devices is None:
        raise OptionError("--generate needs --devices.")
    _check_servers(options.servers, options.devices)
    used = " ".join(f"--{n} {getattr(options, n)}" for n in ("devices", "rows", "exponent", "seed"))
    return _GENERATORS[options.generate](options), f"{options.generate} {used}"


def _is_trace(path: Path) -> bool:
    if path.is_dir():
        return True
    first = next((line for _, line in lines(path) if line.strip()), "")
    return first.lstrip().startswith("{")


def _from_trace(options: argparse.Namespace) -> tuple[np.ndarray, str]:
    for name in ("devices", "num_experts"):
        if getattr(options, name) is None:
            raise OptionError(f"{options.file}: a trace needs --{name.replace('_', '-')}.")
    found = traffic.traffic_from_routing(
        (
            record
            for record in traffic.read_routing_trace(options.file)
            if options.trace_step in (None, record.step)
            and options.trace_layer in (None, record.layer)
        ),
        devices=options.devices,
        num_experts=options.num_experts,
        deduplicate=options.deduplicate,
    )
    if not found:
        raise OptionError(f"{options.file}: no record of that step and layer.")
    exchange = max(found, key=lambda e: max(found[e].sum(axis=0).max(), found[e].sum(axis=1).max()))
    of = f", the busiest of {len(found)}" if len(found) > 1 else ""
    return found[exchange], f"{options.file}, {exchange}{of}"


__all__ = ["main"]
