"""Wheels that the machine lacks, installed into a folder of the run's own: no network is needed."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

from gpu_check.parts import Part


def found(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.whl"))


def installation(folder: Path, target: Path) -> Part:
    """Installs the wheels of `folder`, and nothing that they need, into `target`."""
    command = (
        *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
        *("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", str(target)),
        *map(str, found(folder)),
    )
    return Part("wheels", command, 120)


def use(target: Path) -> None:
    """Has this process, and all that it starts, find what is in `target` before all else."""
    sys.path.insert(0, str(target))
    importlib.invalidate_caches()
    _prepend("PYTHONPATH", str(target))
    _prepend("PATH", str(target / "bin"))


def remove(target: Path) -> None:
    """Drops what another run installed there."""
    shutil.rmtree(target, ignore_errors=True)


def _prepend(variable: str, first: str) -> None:
    os.environ[variable] = os.pathsep.join(filter(None, [first, os.environ.get(variable)]))
