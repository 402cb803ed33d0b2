"""The benchmark: `python -m fastjax bench`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.bench import latency, schemes, tables
from fastjax.cli.bench.baselines import Copy
from fastjax.cli.shared import commands, measure, statistics, workloads
from fastjax.cli.shared import machine as machines
from fastjax.cli.shared.device_workload import DeviceWorkload, make_mesh, start_backend
from fastjax.cli.shared.progress import Progress
from fastjax.errors import OptionError

SCHEMA = "fastjax-bench-1"
FABRIC = ("scale_up_bandwidth", "scale_out_bandwidth", "scale_up_latency", "scale_out_latency")


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and shows its tables; returns the exit status."""
    return commands.run(parser(), arguments, _run)


def parser() -> argparse.ArgumentParser:
    """The options of `run`."""
    made = commands.parser(
        "bench",
        "Measures ragged exchanges between the CPU devices of this process. Compares every "
        "scheduler, over several splits of the devices into servers, with what JAX users can write "
        "without fastjax and with a plain copy. Every result is verified, row for row. GPUs are "
        "measured by `make gpu`.",
    )
    many = commands.number(1)
    names = scheduling.schedulers_in_programs()

    def add(name: str, default: Any, text: str, **more: Any) -> None:
        known = {"type": many, "metavar": "N"} if isinstance(default, int) else {}
        shown = "" if default is None else f"; default: {default}"
        made.add_argument(name, default=default, help=text + shown, **known | more)

    add("--devices", 8, "CPU devices")
    add("--servers", None, "numbers of servers to split them into; default: those of 1, 2 and 4 "
        "that divide them", nargs="+", type=many, metavar="N")  # fmt: skip
    add("--rows", 4096, "rows that a device sends")
    add("--row-bytes", DEFAULT_ROW_BYTES, "bytes of a row")
    add("--dtype", jax.numpy.dtype("float32"), "of the rows' elements", type=jax.numpy.dtype)
    add("--generate", "expert-popularity", "how traffic is spread", choices=workloads.SKEWS)
    add("--exponent", 0.8, "of Zipf's law", type=commands.number(0, 20, float), metavar="X")
    listed = f"of {', '.join(names)}; default: all"
    add("--schedulers", None, listed, nargs="+", choices=names, metavar="NAME")
    add("--rounds", 30, "times that each scheme runs, in turn; slow ones run less often")
    add("--latency-rounds", 300, "the same for one row; 0: none", type=commands.number(0))
    add("--seed", 0, "of traffic, rows and the order within rounds", type=commands.number(0))
    made.add_argument(
        "--no-baselines",
        dest="baselines",
        action="store_false",
        help="leave out what there is without fastjax",
    )
    return made


def _run(options: argparse.Namespace) -> int:
    start_backend(options.devices)
    record = run(options)
    if options.json is not None:
        commands.write_json(options.json, record)
    sys.stdout.write(tables.as_text(record))
    wrong = count_wrong(record)
    if wrong:
        sys.stderr.write(f"{wrong} rows are wrong.\n")
    return 1 if wrong else 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the record.

    Raises:
      OptionError: the options, of `parser`, do not fit together.
    """
    devices, row_bytes, dtype = options.devices, options.row_bytes, options.dtype
    servers = options.servers or [s for s in (1, 2, 4) if devices % s == 0]
    for count in servers:
        if devices % count:
            raise OptionError(f"--servers {count} does not divide {devices} devices.")
    if row_bytes % dtype.itemsize:
        raise OptionError(f"--row-bytes {row_bytes} is no whole number of {dtype}.")
    computer = machines.machine()
    traffic = workloads.make_traffic(
        options.generate, devices, options.rows, options.exponent, options.seed
    )
    mesh = make_mesh(devices)
    workload = DeviceWorkload(mesh, traffic, row_bytes, dtype, options.seed)
    names = options.schedulers or scheduling.schedulers_in_programs()
    compared = list(schemes.ours(traffic, row_bytes, servers, names))
    if options.baselines:
        compared += schemes.today(traffic)
    copy_scheme = schemes.Scheme(schemes.COPY, None)
    with Progress(2 * len(compared) + options.rounds + 1) as progress:
        programs = {s.key: workload.program(s.exchange) for s in compared if s.exchange is not None}
        wrong = dict.fromkeys(programs, 0)

        def verify() -> None:
            for key, program in programs.items():
                with progress.step("exchanging"):
                    wrong[key] = max(wrong[key], workload.count_wrong(program))

        verify()
        runs: dict[str, Callable[[], object]] = {
            key: functools.partial(workload.run, program) for key, program in programs.items()
        }
        copy = Copy(int(traffic.sum()) * row_bytes)
        copy()  # its buffers are new
        runs[copy_scheme.key] = copy
        with progress.step("exchanging", options.rounds) as share:
            seconds = measure.interleave(runs, options.rounds, seed=options.seed, progress=share)
        copy.close()
        verify()  # once more, after all those rounds
        small = {}
        if options.latency_rounds:
            with progress.step("exchanging one row"):
                rounds = options.latency_rounds
                small = latency.measure(mesh, servers, row_bytes, dtype, rounds)
    medians = {key: measure.median(each) for key, each in seconds.items()}
    return {
        "schema": SCHEMA,
        "workload": _workload(options, traffic),
        "machine": computer,
        "versions": machines.versions(),
        "fabric": {name: getattr(fastjax.Topology(1, 1), name) for name in FABRIC},
        "schemes": [
            {
                "scheme": scheme.name,
                "servers": scheme.servers,
                **measure.summary(seconds[scheme.key]),
                **statistics.bandwidths(traffic, row_bytes, medians[scheme.key]),
                **_compared(medians[scheme.key], medians),
                "wrong": wrong.get(scheme.key),
                **({} if scheme.plan is None else {"plan": scheme.plan}),
            }
            for scheme in [*compared, copy_scheme]
        ],
        "latency": [
            {
                "name": name,
                **measure.summary(each),
                "by_empty": measure.median(each) / measure.median(small[latency.EMPTY]),
                "by_empty_same": measure.median(each) / measure.median(small[latency.EMPTY_SAME]),
            }
            for name, each in small.items()
        ],
    }


def _workload(options: argparse.Namespace, traffic: np.ndarray) -> dict[str, Any]:
    fields = ("devices", "rows", "row_bytes", "seed", "rounds")
    return {
        **{name: getattr(options, name) for name in fields},
        "dtype": options.dtype.name,
        "skew": options.generate,
        "alpha": options.exponent,
        "total_bytes": int(traffic.sum()) * options.row_bytes,
        "max_sent_rows": int(traffic.sum(axis=1).max()),
        "max_received_rows": int(traffic.sum(axis=0).max()),
        "max_flow_rows": int(traffic.max()),
        "traffic": traffic.tolist(),
    }


def _compared(median: float, medians: Mapping[str, float]) -> dict[str, float | None]:
    dense = medians.get(f"{schemes.DENSE} -")
    return {
        "dense_by_this": None if dense is None else dense / median,
        "this_by_copy": median / medians[f"{schemes.COPY} -"],
    }


def count_wrong(record: Mapping[str, Any]) -> int:
    """Rows that any scheme got wrong."""
    return sum(entry["wrong"] or 0 for entry in record["schemes"])
