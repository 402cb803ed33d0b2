"""Text that every machine has: the sources of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HELD_OUT = 10  # one file of so many is not trained on
_LEFT_OUT = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


def standard_library() -> Path:
    """The folder of this Python's own sources."""
    return Path(sysconfig.get_paths()["stdlib"])


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a folder's .py files, one file behind the other in order of their paths.

    Args:
      folder: where to look, subfolders included, but for tests and what was installed.

    Returns:
      What to train on and what is held out; uint8, one dimension each.

    Raises:
      ValueError: there are fewer than ten files.
    """
    files = [path.read_bytes() for path in _files(folder)]
    if len(files) < HELD_OUT:
        raise ValueError(
            f"{folder} has {len(files)} .py files; training wants {HELD_OUT} or more. Name a "
            "folder of sources with --text."
        )
    held_out = files[HELD_OUT - 1 :: HELD_OUT]
    rest = [file for i, file in enumerate(files) if i % HELD_OUT != HELD_OUT - 1]
    return _joined(rest), _joined(held_out)


def _files(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (Path(here, name) for name in sorted(names) if name.endswith(".py"))


def _joined(files: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(files), np.uint8)


class Batches:
    """Sequences of a text, for each step others.

    Which ones depends on seed and step only, so that a run that goes on after an interruption sees
    what an uninterrupted one sees, and every process knows the part of its own devices.

    Args:
      text: bytes, one dimension.
      sequences: of a step.
      length: bytes of each that are predicted.
      seed: of the random numbers.
    """

    def __init__(self, text: np.ndarray, sequences: int, length: int, seed: int) -> None:
        if len(text) <= length:
            raise ValueError(f"a text of {len(text)} bytes has no sequence of {length + 1}.")
        self._text, self._seed = text, seed
        self.shape = (sequences, length + 1)

    def __getitem__(self, step: int) -> np.ndarray:
        """The step's sequences and the byte behind each; uint8, shape (sequences, length + 1)."""
        rng = np.random.default_rng([self._seed, step])
        starts = rng.integers(0, len(self._text) - self.shape[1] + 1, self.shape[0])
        return self._text[starts[:, None] + np.arange(self.shape[1])]
