"""The benchmark: `python -m fastjax bench`."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.checks import DEFAULT_ROW_BYTES
from fastjax.cli.bench import latency, schemes, tables
from fastjax.cli.bench.baselines import Copy
from fastjax.cli.shared import machine as machines
from fastjax.cli.shared import measure, workloads
from fastjax.cli.shared.backend import start_backend
from fastjax.cli.shared.commands import make_folder_of, to_json
from fastjax.cli.shared.device_workload import DeviceWorkload, make_mesh
from fastjax.cli.shared.progress import Progress
from fastjax.errors import FastjaxError, OptionError

SCHEMA = "fastjax-bench-1"
FABRIC = ("scale_up_bandwidth", "scale_out_bandwidth", "scale_up_latency", "scale_out_latency")
MISSING = "`bench` needs tyro, which is not installed: pip install 'fastjax[bench]'\n"


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """Measures ragged exchanges between the CPU devices of this process.

    Compares every scheduler, over several splits of the devices into servers, with what JAX users
    can write without fastjax and with a plain copy. Every result is verified, row for row. GPUs are
    measured by `make gpu`.
    """

    devices: int = 8
    """CPU devices."""
    servers: tuple[int, ...] = ()
    """Numbers of servers to split them into; by default those of 1, 2 and 4 that divide them."""
    rows: int = 4096
    """Rows that a device sends."""
    row_bytes: int = DEFAULT_ROW_BYTES
    """Bytes of a row."""
    dtype: str = "float32"
    """Type of the rows' elements."""
    generate: workloads.Skew = "expert-popularity"
    """How the traffic is spread; fastjax/cli/shared/workloads.py defines each."""
    exponent: float = 0.8
    """Exponent of Zipf's law."""
    schedulers: tuple[str, ...] = ()
    """Schedulers to measure; by default all."""
    rounds: int = 30
    """Times that each scheme runs, in turn with the others; slow ones run less often."""
    latency_rounds: int = 300
    """The same for exchanges of one row; 0 leaves them out."""
    seed: int = 0
    """Of traffic, rows and the order within rounds."""
    baselines: bool = True
    """Whether to measure what there is without fastjax."""
    json: Path | None = None
    """File for the full record."""

    def __post_init__(self) -> None:
        for name in ("devices", "rows", "row_bytes", "rounds"):
            if getattr(self, name) < 1:
                raise OptionError(f"--{name.replace('_', '-')} must be 1 or more.")
        if not 0 <= self.exponent <= 20:
            raise OptionError(f"--exponent must be from 0 to 20, got {self.exponent}.")
        uneven = [s for s in self.servers if s < 1 or self.devices % s]
        if uneven:
            raise OptionError(f"--servers {uneven[0]} does not divide {self.devices} devices.")
        unknown = [s for s in self.schedulers if s not in scheduling.schedulers_in_programs()]
        if unknown:
            known = ", ".join(scheduling.schedulers_in_programs())
            raise OptionError(f"--schedulers {unknown[0]}: there are {known}.")
        try:
            itemsize = jax.numpy.dtype(self.dtype).itemsize
        except TypeError:
            raise OptionError(f"--dtype {self.dtype}: there is no such type.") from None
        if self.row_bytes % itemsize:
            raise OptionError(f"--row-bytes {self.row_bytes} is no whole number of {self.dtype}.")

    @property
    def server_counts(self) -> tuple[int, ...]:
        """Splits to measure."""
        return self.servers or tuple(s for s in (1, 2, 4) if self.devices % s == 0)


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and shows its tables; returns the exit status."""
    try:
        import tyro
    except ImportError:
        sys.stderr.write(MISSING)
        return 2
    try:
        options = tyro.cli(BenchOptions, prog="python -m fastjax bench", args=arguments)
        start_backend(options.devices)
    except FastjaxError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    record = run(options)
    if options.json is not None:
        make_folder_of(options.json)
        options.json.write_text(to_json(record))
    sys.stdout.write(tables.as_text(record))
    wrong = count_wrong(record)
    if wrong:
        sys.stderr.write(f"{wrong} rows are wrong.\n")
    return 1 if wrong else 0


def run(options: BenchOptions) -> dict[str, Any]:
    """Measures everything and returns the record."""
    computer = machines.machine()
    traffic = workloads.make_traffic(
        options.generate, options.devices, options.rows, alpha=options.exponent, seed=options.seed
    )
    dtype = jax.numpy.dtype(options.dtype)
    mesh = make_mesh(options.devices)
    workload = DeviceWorkload(mesh, traffic, options.row_bytes, dtype, options.seed)
    names = options.schedulers or scheduling.schedulers_in_programs()
    compared = list(schemes.ours(traffic, options.row_bytes, options.server_counts, names))
    if options.baselines:
        compared += schemes.today(traffic)
    progress = Progress(2 * len(compared) + options.rounds + 1)
    progress.begin("exchanging")
    programs = {s.key: workload.program(s.exchange) for s in compared if s.exchange is not None}
    wrong = {}
    for scheme in compared:
        wrong[scheme.key] = workload.count_wrong(programs[scheme.key])
        progress.step()
    runs: dict[str, Callable[[], object]] = {
        key: functools.partial(workload.run, program) for key, program in programs.items()
    }
    copy = Copy(int(traffic.sum()) * options.row_bytes)
    copy()  # its buffers are new
    copy_scheme = schemes.Scheme(schemes.COPY, None)
    runs[copy_scheme.key] = copy
    timings = measure.interleave(runs, options.rounds, seed=options.seed, progress=progress.step)
    copy.close()
    for scheme in compared:  # once more, after all those rounds
        wrong[scheme.key] = max(wrong[scheme.key], workload.count_wrong(programs[scheme.key]))
        progress.step()
    record = {
        "schema": SCHEMA,
        "workload": _workload(options, traffic),
        "machine": computer,
        "versions": machines.versions(),
        "fabric": {name: getattr(fastjax.Topology(1, 1), name) for name in FABRIC},
        "schemes": [
            _entry(scheme, timings, wrong.get(scheme.key), traffic, options.row_bytes)
            for scheme in [*compared, copy_scheme]
        ],
        "latency": [],
    }
    if options.latency_rounds:
        small = latency.measure(
            mesh, options.server_counts, options.row_bytes, dtype, options.latency_rounds
        )
        record["latency"] = _latency_entries(small)
    progress.clear()
    return record


def _workload(options: BenchOptions, traffic: np.ndarray) -> dict[str, Any]:
    fields = ("devices", "rows", "row_bytes", "dtype", "seed", "rounds")
    return {
        **{name: getattr(options, name) for name in fields},
        "skew": options.generate,
        "alpha": options.exponent,
        "total_bytes": int(traffic.sum()) * options.row_bytes,
        "max_sent_rows": int(traffic.sum(axis=1).max()),
        "max_received_rows": int(traffic.sum(axis=0).max()),
        "max_flow_rows": int(traffic.max()),
        "traffic": traffic.tolist(),
    }


def _entry(
    scheme: schemes.Scheme,
    timings: dict[str, measure.Timing],
    wrong: int | None,
    traffic: np.ndarray,
    row_bytes: int,
) -> dict[str, Any]:
    timing = timings[scheme.key]
    medians = {name: t.median for name, t in timings.items()}
    dense = medians.get(f"{schemes.DENSE} -")
    entry = {
        "scheme": scheme.name,
        "servers": scheme.servers,
        **timing.record(),
        "algbw": measure.algbw(traffic, row_bytes, timing.median),
        "busbw": measure.busbw(traffic, row_bytes, timing.median),
        "fast_algbw": measure.mean_bw(traffic, row_bytes, timing.median),
        "dense_by_this": None if dense is None else dense / timing.median,
        "this_by_copy": timing.median / medians[f"{schemes.COPY} -"],
        "wrong": wrong,
    }
    if scheme.plan is not None:
        entry["plan"] = scheme.plan
    return entry


def _latency_entries(timings: dict[str, measure.Timing]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            **timing.record(),
            "by_empty": timing.median / timings[latency.EMPTY].median,
            "by_empty_same": timing.median / timings[latency.EMPTY_SAME].median,
        }
        for name, timing in timings.items()
    ]


def count_wrong(record: dict[str, Any]) -> int:
    """Rows that any scheme got wrong."""
    return sum(entry["wrong"] or 0 for entry in record["schemes"])


__all__ = ["BenchOptions", "count_wrong", "main", "run"]
