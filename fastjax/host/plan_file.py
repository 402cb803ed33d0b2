"""Plans in files: numpy archives of what a plan is made from."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.topology import Topology

_FORMAT = "fastjax-plan-file-2"

# What numpy, zipfile and json raise for files that are something else, or damaged.
_NOT_A_PLAN = (
    ArithmeticError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)

Matchings = tuple[np.ndarray, np.ndarray]
"""Targets, int16, shape (matchings, servers), -1 for none; and weights, int64."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a plan is made from, and what a file holds: the decisions that are not remade, too.

    Attributes:
      traffic: rows device i sends to device j.
      topology: the fabric.
      scheduler: the one that was asked for.
      row_bytes: bytes of a row.
      solved: the matchings that the planner took from a solver, if any.
      found: the matchings of the plan, to tell whether it is the same when it is made again.
      stages: how many the plan has; for the same reason.
      transposed: whether it is read backwards.
    """

    traffic: np.ndarray
    topology: Topology
    scheduler: str
    row_bytes: int
    solved: Matchings | None
    found: Matchings
    stages: int
    transposed: bool


def write(path: str | os.PathLike[str], stored: Stored) -> None:
    """Writes the file."""
    facts = {
        "format": _FORMAT,
        "topology": dataclasses.asdict(stored.topology),
        "scheduler": stored.scheduler,
        "row_bytes": stored.row_bytes,
        "solved": stored.solved is not None,
        "stages": stored.stages,
        "transposed": stored.transposed,
    }
    parts: dict[str, Any] = {"traffic": stored.traffic} | _named("found", stored.found)
    if stored.solved is not None:
        parts |= _named("solved", stored.solved)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, facts=np.array(json.dumps(facts)), **parts)


def _named(which: str, matchings: Matchings) -> dict[str, np.ndarray]:
    return {f"{which}_targets": matchings[0], f"{which}_weights": matchings[1]}


def read(path: str | os.PathLike[str]) -> Stored:
    """Reads what `write` wrote.

    Raises:
      ArgumentError: the file is not of that kind.
      OSError: it cannot be read.
    """
    # From memory: what a damaged file says of itself could otherwise fail like a disk that does.
    content = io.BytesIO(Path(path).read_bytes())
    try:
        with np.load(content, allow_pickle=False) as arrays:
            return _decode(json.loads(str(arrays["facts"])), arrays)
    except _NOT_A_PLAN as error:
        reason = "not an archive of arrays" if not zipfile.is_zipfile(content) else error
        raise ArgumentError(f"{os.fspath(path)} is no plan of fastjax: {reason}") from None


def _decode(facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Stored:
    if facts["format"] != _FORMAT:
        raise ValueError(f"format {facts['format']!r}, not {_FORMAT!r}")
    topology = Topology(**facts["topology"])
    return Stored(
        traffic=arrays["traffic"],
        topology=topology,
        scheduler=str(facts["scheduler"]),
        row_bytes=int(facts["row_bytes"]),
        solved=_matchings("solved", arrays, topology.servers) if facts["solved"] else None,
        found=_matchings("found", arrays, topology.servers),
        stages=int(facts["stages"]),
        transposed=bool(facts["transposed"]),
    )


def _matchings(which: str, arrays: Mapping[str, np.ndarray], servers: int) -> Matchings:
    targets, weights = arrays[f"{which}_targets"], arrays[f"{which}_weights"]
    if targets.dtype != np.int16 or weights.dtype != np.int64 or weights.ndim != 1:
        raise ValueError(
            f"matchings are {targets.dtype} and {weights.dtype}, not a matrix of int16 and a "
            "vector of int64"
        )
    if targets.shape != (len(weights), servers):
        raise ValueError(
            f"{len(weights)} matchings of {servers} servers have shape {targets.shape}"
        )
    return targets, weights


__all__ = ["Matchings", "Stored", "read", "write"]
