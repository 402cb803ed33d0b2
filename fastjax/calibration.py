"""Rates measured on machines: the file they are kept in, and which of them are in force.

`python -m fastjax calibrate` writes the file, `Topology.from_mesh` reads it. It is JSON, with an
entry for each kind of machine:

    {"version": 1, "machines": [
        {"platform": "cpu", "device_kind": "cpu", "devices_per_server": 8,
         "rates": {"scale_up_bandwidth": 2.7e9, "scale_up_latency": 4.5e-5},
         "spread": {"scale_up_bandwidth": [2.6e9, 2.8e9]},
         "measured": "2025-01-31T12:00:00+00:00", "jax": "0.10.2", "fastjax": "0.1.0",
         "pretended": false}]}

Rates are `Topology`'s fields: bytes/s and seconds. Those of other names are kept and not used.
`FASTJAX_CALIBRATION` says where the file is, or is "off"; otherwise it is
`fastjax/calibration.json` in `XDG_CONFIG_HOME` or `~/.config`. The variable is read once, when
fastjax is imported; the file whenever a topology is made from a mesh.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastjax.errors import CalibrationWarning, OptionError

VARIABLE = "FASTJAX_CALIBRATION"
OFF = "off"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Machine:
    """A kind of machine: what has the same rates."""

    platform: str
    device_kind: str
    devices_per_server: int

    def __str__(self) -> str:
        return f"{self.device_kind} ({self.platform}), {self.devices_per_server} a server"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """An entry of the file.

    Attributes:
      machine: what was measured.
      rates: bytes/s and seconds, by the name of `Topology`'s field.
      spread: for rates that were measured, where 90 % of repeated measurements would lie.
      measured: when, as ISO 8601 has it.
      jax: the version it was measured with.
      fastjax: likewise.
      pretended: whether the servers were one machine's devices, told apart by name only.
    """

    machine: Machine
    rates: dict[str, float]
    spread: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    measured: str = ""
    jax: str = ""
    fastjax: str = ""
    pretended: bool = False

    def record(self) -> dict[str, Any]:
        """The entry as the file has it."""
        fields = dataclasses.asdict(self)
        return {**fields.pop("machine"), **fields}


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the file is.

    Attributes:
      path: the file, which need not exist; None where calibrations are not used.
      explicit: whether the user named it.
    """

    path: Path | None
    explicit: bool

    def __str__(self) -> str:
        if self.path is None:
            return f"off, by {VARIABLE}" if self.explicit else f"no home folder; set {VARIABLE}"
        how = f"from {VARIABLE}" if self.explicit else f"default; set {VARIABLE} to change"
        return f"{self.path} ({how})"


def from_environment(environ: Mapping[str, str]) -> Source:
    """The file as the environment has it."""
    named = environ.get(VARIABLE)
    if named == OFF:
        return Source(None, explicit=True)
    if named:
        return Source(Path(named).absolute(), explicit=True)
    folder = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # not set, or not to be used, by its specification
        try:
            folder = Path(environ.get("HOME") or Path.home()) / ".config"
        except RuntimeError:
            return Source(None, explicit=False)
    return Source(folder / "fastjax" / "calibration.json", explicit=False)


_environment = from_environment(os.environ)


def source() -> Source:
    """The file in force."""
    return _environment


def look_up(machine: Machine | None, processes: int) -> tuple[Calibration | None, str]:
    """Finds the calibration in force for a machine.

    The topology is part of the compiled program, which must be the same in all processes of a job;
    hosts' own files need not agree. With several processes, only a file that the user named counts.

    Args:
      machine: a kind of machine; None where devices are of several.
      processes: how many the program runs in.

    Returns:
      The calibration, or None, and a sentence on it. A file that cannot be read counts as empty and
      is warned of, once.
    """
    if source().path is None:
        return None, f"none: {source()}"
    if machine is None:
        return None, "none: the devices, or the servers, are not alike"
    if processes > 1 and not source().explicit:
        why = f"none: {processes} processes must agree; name a file for all with {VARIABLE}"
        return None, why
    try:
        return _look_up_in_file(machine)
    except OptionError as error:
        _warn_once(f"{error} Defaults are used instead.")
        return None, f"none: {error}"


def _look_up_in_file(machine: Machine) -> tuple[Calibration | None, str]:
    path = source().path
    entries = [] if path is None else read(path)
    for entry in entries:
        if entry.machine == machine:
            pretended = ", servers pretended" if entry.pretended else ""
            return entry, f"{entry.measured}, jax {entry.jax}, for {machine}{pretended}"
    if entries:
        known = "; ".join(str(entry.machine) for entry in entries)
        return None, f"none for {machine}, but for {known}"
    if path is not None and source().explicit and not path.exists():
        raise OptionError(f"{VARIABLE} names {path}, which does not exist.")
    return None, f"none; python -m fastjax calibrate measures {machine}"


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, CalibrationWarning, stacklevel=2)


def warn_unusable(entry: Calibration, reason: object) -> None:
    """Warns, once, of rates that no topology takes."""
    _warn_once(
        f"{source().path} has rates for {entry.machine} that cannot be: {reason} Defaults are used "
        "instead."
    )


def store(calibration: Calibration, path: Path) -> None:
    """Puts an entry into the file, in place of one for the same machine.

    Readers see the old file or the new one, never a part. Of two processes that store at the same
    time, one's entry may be lost.

    Raises:
      OptionError: the file holds something else, or cannot be written.
    """
    path = path.resolve()  # a link stays one
    others = [e for e in read(path) if e.machine != calibration.machine]
    entries = [e.record() for e in (*others, calibration)]
    text = json.dumps({"version": VERSION, "machines": entries}, indent=1, allow_nan=False) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(text)
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OptionError(f"cannot write {path}: {error.strerror or error}.") from None


def read(path: Path) -> list[Calibration]:
    """All entries of a file; none if there is no file.

    Raises:
      OptionError: it holds something else, or cannot be read.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{path} is no JSON ({error}); remove or repair it.") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("machines"), list):
        raise OptionError(f"{path} is no calibration of fastjax; remove it or name another file.")
    if raw.get("version") != VERSION:
        raise OptionError(
            f"{path} has version {raw.get('version')!r}, and this fastjax reads version {VERSION}; "
            "remove it or name another file."
        )
    try:
        return [_entry(entry) for entry in raw["machines"]]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"{path} has an entry that cannot be read ({type(error).__name__}: {error}); remove or "
            "repair it."
        ) from None


def _entry(raw: Mapping[str, Any]) -> Calibration:
    machine = Machine(
        _text(raw["platform"]), _text(raw["device_kind"]), _count(raw["devices_per_server"])
    )
    return Calibration(
        machine,
        {name: _number(value) for name, value in raw["rates"].items()},
        {name: (_number(p), _number(q)) for name, (p, q) in raw.get("spread", {}).items()},
        *(_text(raw.get(name, "")) for name in ("measured", "jax", "fastjax")),
        pretended=raw.get("pretended", False) is True,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} should be text")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} should be a number of devices")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r} should be a finite number")
    return float(value)


__all__ = [
    "Calibration",
    "Machine",
    "Source",
    "from_environment",
    "look_up",
    "read",
    "source",
    "store",
    "warn_unusable",
]
