"""The benchmark: `python -m fastjax bench`."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastjax import scheduling
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.bench import latency, measure, schemes, tables
from fastjax.cli.bench.baselines import Copy
from fastjax.cli.bench.device_workload import DTYPE, DeviceWorkload, make_mesh, start_backend
from fastjax.cli.shared import machine as machines
from fastjax.cli.shared import statistics, workloads
from fastjax.cli.shared.options import number
from fastjax.errors import OptionError

SCHEMA = "fastjax-bench-1"
DESCRIPTION = (
    "Measures ragged exchanges between the CPU devices of this process. Compares every scheduler, "
    "over several splits of the devices into servers, with what JAX users can write without "
    "fastjax and with a plain copy. Every result is verified, row for row. GPUs are measured by "
    "`make gpu`."
)
EPILOG = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    many = number(1)
    names = scheduling.schedulers_in_programs()

    def add(name: str, default: Any, text: str, **more: Any) -> None:
        known = {"type": many, "metavar": "N"} if isinstance(default, int) else {}
        shown = "" if default is None else f"; default: {default}"
        parser.add_argument(name, default=default, help=text + shown, **known | more)

    add("--devices", 8, "CPU devices")
    add("--servers", None, "numbers of servers to split them into; default: those of 1, 2 and 4 "
        "that divide them", nargs="+", type=many, metavar="N")  # fmt: skip
    add("--rows", 4096, "rows that a device sends")
    add("--row-bytes", DEFAULT_ROW_BYTES, "bytes of a row, of float32")
    add("--generate", "expert-popularity", "how traffic is spread", choices=workloads.SKEWS)
    add("--exponent", 0.8, "of Zipf's law", type=number(0, 20, float), metavar="X")
    listed = f"of {', '.join(names)}; default: all"
    add("--schedulers", None, listed, nargs="+", choices=names, metavar="NAME")
    add("--rounds", 30, "times that each scheme runs, in turn; slow ones run less often")
    add("--latency-rounds", 300, "the same for one row")
    add("--seed", 0, "of traffic, rows and the order within rounds", type=number(0))
    add("--json", None, "write all numbers to this file", type=Path, metavar="FILE")


def run(options: argparse.Namespace) -> int:
    """Runs the benchmark and shows its tables; returns the exit status."""
    start_backend(options.devices)
    record = measured(options)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.stdout.write(tables.as_text(record))
    wrong = count_wrong(record)
    if wrong:
        sys.stderr.write(f"{wrong} rows are wrong.\n")
    return 1 if wrong else 0


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measures everything and returns the record.

    Raises:
      OptionError: the options do not fit together.
    """
    devices, row_bytes = options.devices, options.row_bytes
    servers = options.servers or [s for s in (1, 2, 4) if devices % s == 0]
    for count in servers:
        if devices % count:
            raise OptionError(f"--servers {count} does not divide {devices} devices.")
    if row_bytes % DTYPE.itemsize:
        raise OptionError(f"--row-bytes {row_bytes} is no whole number of {DTYPE}.")
    computer = machines.machine()
    traffic = workloads.make_traffic(
        options.generate, devices, options.rows, options.exponent, options.seed
    )
    mesh = make_mesh(devices)
    workload = DeviceWorkload(mesh, traffic, row_bytes, options.seed)
    names = options.schedulers or scheduling.schedulers_in_programs()
    compared = [*schemes.ours(traffic, row_bytes, servers, names), *schemes.today(traffic)]
    copy_scheme = schemes.Scheme(schemes.COPY, None)
    programs = {s.key: workload.program(s.exchange) for s in compared if s.exchange is not None}

    def verify() -> dict[str, int]:
        return {key: workload.count_wrong(program) for key, program in programs.items()}

    before = verify()
    runs: dict[str, Callable[[], object]] = {
        key: functools.partial(workload.run, program) for key, program in programs.items()
    }
    copy = Copy(int(traffic.sum()) * row_bytes)
    copy()  # its buffers are new
    runs[copy_scheme.key] = copy
    seconds = measure.interleave(runs, options.rounds, seed=options.seed)
    copy.close()
    wrong = {key: max(before[key], after) for key, after in verify().items()}
    small = latency.measure(mesh, servers, row_bytes, options.latency_rounds)
    medians = {key: measure.median(each) for key, each in seconds.items()}
    dense, copied = medians[f"{schemes.DENSE} -"], medians[copy_scheme.key]
    return {
        "schema": SCHEMA,
        "workload": _workload(options, traffic),
        "machine": computer,
        "versions": machines.versions(),
        "schemes": [
            {
                "scheme": scheme.name,
                "servers": scheme.servers,
                **measure.summary(seconds[scheme.key]),
                **statistics.bandwidths(traffic, row_bytes, medians[scheme.key]),
                "dense_by_this": dense / medians[scheme.key],
                "this_by_copy": medians[scheme.key] / copied,
                "wrong": wrong.get(scheme.key),
                **({} if scheme.taken is None else {"plan": {"scheduler": scheme.taken}}),
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
        "dtype": DTYPE.name,
        "skew": options.generate,
        "alpha": options.exponent,
        "total_bytes": int(traffic.sum()) * options.row_bytes,
        "max_sent_rows": int(traffic.sum(axis=1).max()),
        "max_received_rows": int(traffic.sum(axis=0).max()),
        "max_flow_rows": int(traffic.max()),
        "traffic": traffic.tolist(),
    }


def count_wrong(record: Mapping[str, Any]) -> int:
    """Rows that any scheme got wrong."""
    return sum(entry["wrong"] or 0 for entry in record["schemes"])
