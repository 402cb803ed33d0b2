"""Plans in files: numpy archives of what a plan is made from."""

from __future__ import annotations

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError, TopologyError
from fastjax.topology import Topology

_FORMAT = "fastjax-plan-file-1"


@dataclasses.dataclass(frozen=True)
class Stored:
    """What a file holds: the problem, and the decisions that are not remade from it.

    Attributes:
      traffic: rows device i sends to device j.
      topology: the fabric.
      scheduler: the one that was asked for.
      row_bytes: bytes of a row.
      given: whether the matchings were given to the planner.
      targets: of each matching, by server; -1 for none.
      weights: of each matching.
      stages: how many the plan has.
      transposed: whether it is read backwards.
    """

    traffic: np.ndarray
    topology: Topology
    scheduler: str
    row_bytes: int
    given: bool
    targets: np.ndarray
    weights: np.ndarray
    stages: int
    transposed: bool


def write(path: str | os.PathLike[str], stored: Stored) -> None:
    """Writes the file."""
    facts = {
        "format": _FORMAT,
        "topology": dataclasses.asdict(stored.topology),
        "scheduler": stored.scheduler,
        "row_bytes": stored.row_bytes,
        "given": stored.given,
        "stages": stored.stages,
        "transposed": stored.transposed,
    }
    with Path(path).open("wb") as file:
        np.savez_compressed(
            file,
            facts=np.array(json.dumps(facts)),
            traffic=stored.traffic,
            targets=stored.targets,
            weights=stored.weights,
        )


def read(path: str | os.PathLike[str]) -> Stored:
    """Reads what `write` wrote.

    Raises:
      ArgumentError: the file is not of that kind.
      OSError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            facts = json.loads(str(arrays["facts"]))
            parts = {name: arrays[name] for name in ("traffic", "targets", "weights")}
        return _decode(facts, parts)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, TopologyError) as error:
        raise ArgumentError(f"{os.fspath(path)} is no plan of fastjax: {error}") from None


def _decode(facts: dict[str, Any], parts: dict[str, np.ndarray]) -> Stored:
    if facts["format"] != _FORMAT:
        raise ValueError(f"format {facts['format']!r}, not {_FORMAT!r}")
    topology = Topology(**facts["topology"])
    targets, weights = parts["targets"], parts["weights"]
    if targets.dtype != np.int16 or weights.dtype != np.int64 or weights.ndim != 1:
        raise ValueError("matchings of other types")
    if targets.shape != (len(weights), topology.servers):
        raise ValueError(f"matchings of shape {targets.shape} for {topology.servers} servers")
    return Stored(
        parts["traffic"],
        topology,
        str(facts["scheduler"]),
        int(facts["row_bytes"]),
        bool(facts["given"]),
        targets,
        weights,
        int(facts["stages"]),
        bool(facts["transposed"]),
    )


__all__ = ["Stored", "read", "write"]
