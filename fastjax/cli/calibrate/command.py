"""Calibration: `python -m fastjax calibrate`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import fastjax
from fastjax import calibration
from fastjax.cli.calibrate import probes
from fastjax.cli.calibrate.fit import PERCENTILES, Rate
from fastjax.cli.shared import machine as machines
from fastjax.cli.shared.backend import start_backend
from fastjax.cli.shared.commands import to_json
from fastjax.cli.shared.device_workload import AXIS, make_mesh
from fastjax.cli.shared.text import rate_text
from fastjax.devices import machine_of
from fastjax.errors import FastjaxError, OptionError
from fastjax.topology import rate_names

SCHEMA = "fastjax-calibrate-1"
SIZES = tuple(2**k for k in range(16, 23))
DESCRIPTION = """\
Measures the rates that plans are made with, between the CPU devices of this process, and stores
them where fastjax.Topology.from_mesh finds them. Exit status: 0; 1 where the times make no sense
and nothing is stored; 2 where the command is wrong."""


@dataclasses.dataclass(frozen=True)
class CalibrateOptions:
    """What to measure, and where to keep it; `--help` explains each."""

    devices: int = 8
    servers: int | None = None
    sizes: tuple[int, ...] = SIZES
    repetitions: int = 200
    given: tuple[str, ...] = ()
    output: Path | None = None
    dry_run: bool = False
    json: bool = False

    def __post_init__(self) -> None:
        if self.devices < 2:
            raise OptionError(f"--devices must be 2 or more, got {self.devices}.")
        if self.servers is not None and (self.servers < 1 or self.devices % self.servers):
            raise OptionError(f"--servers {self.servers} does not divide {self.devices} devices.")
        if self.repetitions < 3:
            raise OptionError(f"--repetitions must be 3 or more, got {self.repetitions}.")
        uneven = [s for s in self.sizes if s < 1 or s % probes.ROW_BYTES]
        if uneven or len(set(self.sizes)) < 3:
            raise OptionError(
                f"--sizes must be three or more different multiples of {probes.ROW_BYTES} bytes, "
                f"got {' '.join(map(str, self.sizes))}."
            )
        fastjax.Topology(1, 1, **self.given_rates)

    @property
    def given_rates(self) -> dict[str, Any]:
        """Rates that are known and need not be measured."""
        rates: dict[str, Any] = {}
        for text in self.given:
            name, _, value = text.partition("=")
            try:
                rates[name] = float(value)
            except ValueError:
                raise OptionError(f"--set wants NAME=NUMBER, got {text!r}.") from None
            if name not in rate_names():
                raise OptionError(f"--set {text}: the rates are {', '.join(rate_names())}.")
        return rates


def parse(arguments: Sequence[str]) -> CalibrateOptions:
    """Options from the command line; exits where there are no such."""
    parser = argparse.ArgumentParser(
        "python -m fastjax calibrate",
        description=DESCRIPTION,
        argument_default=argparse.SUPPRESS,  # what is not given has the default above
    )
    default = CalibrateOptions
    add: Any = parser.add_argument
    add("--devices", type=int, help=f"CPU devices ({default.devices})")
    add("--servers", type=int, help="pretend that the devices are on that many servers")
    add("--sizes", type=int, nargs="+", metavar="BYTES", help="what a device sends at a time")
    add("--repetitions", type=int, help=f"times each exchange runs ({default.repetitions})")
    add(
        "--set",
        dest="given",
        action="append",
        metavar="NAME=NUMBER",
        help="a rate that is known, in bytes/s or seconds; stored as it is",
    )
    add("--output", type=Path, metavar="FILE", help="where to store, if not in the file in force")
    add("--dry-run", action="store_true", help="store nothing")
    add("--json", action="store_true", help="print the full record instead of the table")
    found: dict[str, Any] = vars(parser.parse_args(arguments))
    found |= {name: tuple(values) for name, values in found.items() if isinstance(values, list)}
    return CalibrateOptions(**found)


def main(arguments: Sequence[str]) -> int:
    """Measures, shows what was found and stores it; returns the exit status."""
    try:
        options = parse(arguments)
        path = _destination(options)
        start_backend(options.devices, "cpu")
        record = run(options, path)
        refusal = why_not(record)
        if record["pretended"] and options.output is None:
            path = None
        if refusal is None and path is not None:
            calibration.store(entry_of(record), path)
            record["stored"] = str(path)
    except FastjaxError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(to_json(record) if options.json else as_text(record))
    if refusal:
        sys.stderr.write(f"Nothing is stored: {refusal}\n")
    return 1 if refusal else 0


def _destination(options: CalibrateOptions) -> Path | None:
    """The file to store in, if any."""
    if options.dry_run:
        return None
    path = options.output or calibration.source().path
    if path is None:
        raise OptionError(
            f"the calibration file is {calibration.source()}; say where to store with --output, or "
            "store nothing with --dry-run."
        )
    return path


def run(options: CalibrateOptions, path: Path | None) -> dict[str, Any]:
    """Measures, and returns the record; `path` is the file that it may be stored in."""
    mesh = make_mesh(options.devices)
    topology = fastjax.Topology.from_mesh(mesh, AXIS, calibrated=False)
    machine = machine_of(mesh.devices)
    if machine is None:
        raise OptionError("the devices, or the servers, are not alike: there is no one rate.")
    pretended = options.servers not in (None, topology.servers)
    if pretended and options.servers:
        topology = fastjax.Topology(options.servers, options.devices // options.servers)
        machine = dataclasses.replace(machine, devices_per_server=topology.devices_per_server)
    before = _entry_before(machine, path)
    planned = probes.plan_probes(topology, sorted(set(options.sizes)))
    timings, wrong = probes.measure(mesh, topology, planned, options.repetitions)
    found = {rate.name: rate for rate in probes.rates(planned, timings)}
    names = dict.fromkeys((*rate_names(), *found))
    old = {} if before is None or before.pretended else before.rates
    return {
        "schema": SCHEMA,
        "machine": dataclasses.asdict(machine),
        "servers": topology.servers,
        "pretended": pretended,
        "repetitions": options.repetitions,
        "measured": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "rates": [_row(name, found.get(name), options.given_rates, old) for name in names],
        "wrong": wrong,
        "stored": None,
        "times": {name: timing.record() for name, timing in timings.items()},
        "computer": machines.machine(),
        "versions": machines.versions(),
    }


def _entry_before(
    machine: calibration.Machine, path: Path | None
) -> calibration.Calibration | None:
    entries = calibration.read(path) if path is not None else []
    return next((e for e in entries if e.machine == machine), None)


def _row(
    name: str, rate: Rate | None, given: dict[str, float], before: dict[str, float]
) -> dict[str, Any]:
    """What was found of a rate, and what is to be stored of it.

    Values from the command line come first; what could not be measured stays as it was stored.
    """
    default = getattr(fastjax.Topology(1, 1), name, None)
    row = {"name": name, "value": None, "spread": None, "fit": None, "default": default}
    row |= {"store": None, "note": "not measured", "nonsense": False}
    if rate is not None:
        row |= {"value": rate.value, "spread": rate.spread, "fit": rate.fit}
        row |= {"note": rate.problem, "nonsense": rate.nonsense and name not in given}
    if name in given:
        return row | {"store": given[name], "note": "given"}
    if rate is not None and rate.usable and rate.value is not None:
        return row | {"store": _rounded(rate.value)}
    if rate is None and name in before:
        return row | {"store": before[name], "note": "not measured; as before"}
    return row


def _rounded(value: float) -> float:
    """Three digits, which is more than is known."""
    return float(f"{value:.3g}")


def why_not(record: dict[str, Any]) -> str | None:
    """Why a record must not be stored; None where it may."""
    if record["wrong"]:
        return f"{record['wrong']} rows are wrong."
    bad = [f"{row['name']}: {row['note']}" for row in record["rates"] if row["nonsense"]]
    if bad:
        return f"{'; '.join(bad)}. Try again with more --repetitions or larger --sizes."
    if all(row["store"] is None for row in record["rates"]):
        return "no rate was found."
    return None


def entry_of(record: dict[str, Any]) -> calibration.Calibration:
    """What is stored of a record."""
    rates = {row["name"]: row["store"] for row in record["rates"] if row["store"] is not None}
    spreads = {row["name"]: row["spread"] for row in record["rates"] if row["spread"] is not None}
    return calibration.Calibration(
        calibration.Machine(**record["machine"]),
        rates,
        {name: (_rounded(p), _rounded(q)) for name, (p, q) in spreads.items() if name in rates},
        record["measured"],
        record["versions"]["jax"],
        record["versions"]["fastjax"],
        record["pretended"],
    )


def as_text(record: dict[str, Any]) -> str:
    """The table, and what became of it."""
    low, high = PERCENTILES
    lines = [("", "measured", f"{low} % to {high} %", "fit", "default", "to store", "")]
    lines += [_cells(row) for row in record["rates"]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([_heading(record), "", *table, "", _outcome(record)]) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def text(value: float | None) -> str:
        return "-" if value is None else rate_text(row["name"], value)

    spread = " to ".join(map(text, row["spread"])) if row["spread"] else "-"
    fit = "-" if row["fit"] is None else f"{row['fit']:.3f}"
    known = (text(row[key]) for key in ("default", "store"))
    return (row["name"], text(row["value"]), spread, fit, *known, row["note"])


def _heading(record: dict[str, Any]) -> str:
    machine, servers = calibration.Machine(**record["machine"]), record["servers"]
    where = f"{machine}, {servers} server{'s' if servers > 1 else ''}"
    if record["pretended"]:
        where += ". The servers are pretended: all devices share one memory"
    elif servers == 1:
        where += ". The devices are all in one: what there is between servers, give with --set"
    return f"{where}. Each exchange ran {record['repetitions']} times; jax {jax.__version__}."


def _outcome(record: dict[str, Any]) -> str:
    path = record["stored"]
    if path is None:
        pretended = " Pretended servers need --output." if record["pretended"] else ""
        return f"Nothing is stored.{pretended}"
    if calibration.source().path == Path(path):
        return f"Stored in {path}, where Topology.from_mesh finds it."
    return f"Stored in {path}; set {calibration.VARIABLE} to it to use it."


__all__ = ["CalibrateOptions", "as_text", "entry_of", "main", "parse", "run", "why_not"]
