"""Checks and tools that all of the solvers share."""

from __future__ import annotations

import importlib
import math
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
        self.start = time.monotonic()
        self.seconds = seconds

    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def left(self) -> float:
        """Seconds until the limit, or 0."""
        return max(0.0, self.seconds - self.spent())

    def at_most(self, seconds: float) -> Clock:
        """A clock that stops after these seconds, or with this one."""
        return Clock(min(seconds, self.left()))


def check_time_limit(time_limit: Any) -> Clock:
    """Starts a clock, or refuses what is no time."""
    if not _is_number(time_limit) or not 0 < time_limit < math.inf:
        raise ArgumentError(f"time_limit must be seconds, above 0 and finite, got {time_limit!r}.")
    return Clock(float(time_limit))


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


def check_startup(startup_rows: Any) -> float | int:
    """What starting a stage costs, in rows."""
    if not _is_number(startup_rows) or not 0 <= startup_rows <= 2**62:
        raise ArgumentError(f"startup_rows must be rows, from 0 to 2**62, got {startup_rows!r}.")
    return startup_rows


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
