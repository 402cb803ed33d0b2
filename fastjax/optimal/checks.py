"""Checks and tools that all of the solvers share."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.traffic import checks


def scipy_module(name: str) -> Any:
    """A module of scipy, imported when it is needed: scipy is an optional extra.

    Raises:
      UnsupportedError: scipy is not installed.
    """
    try:
        return importlib.import_module(f"scipy.{name}")
    except ModuleNotFoundError:
        raise UnsupportedError(
            "fastjax.optimal needs scipy, which is not installed; "
            "install it with pip install 'fastjax[optimal]'."
        ) from None


class Clock:
    """Counts a time limit down.

    Args:
      seconds: what may be used from now on.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the limit, or 0."""
        return max(0.0, self._end - time.monotonic())

    def at_most(self, seconds: float) -> Clock:
        """A clock that stops after these seconds, or with this one."""
        return Clock(min(seconds, self.left()))


def check_rows(rows: Any) -> np.ndarray:
    """Rows between servers as int64; a server sends itself none."""
    array = checks.matrix("rows", rows)
    # Sums must be exact both in int64 and in the solver's floats.
    if int(array.max()) > 2**52 // len(array):
        raise ArgumentError(
            f"rows must add up to at most 2**52 in each line, so be at most 2**52 // "
            f"{len(array)}, got {array.max()}."
        )
    own = np.flatnonzero(np.diagonal(array))
    if own.size:
        s = int(own[0])
        raise ArgumentError(
            f"rows must have a zero diagonal, got rows[{s}, {s}] = {array[s, s]}: "
            "what stays in a server does not cross."
        )
    return np.array(array, dtype=np.int64, order="C")
