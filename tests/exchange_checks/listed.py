"""The list: checks put themselves on it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from exchange_checks.backends import Backend

Function = Callable[[Backend, np.random.Generator], Any]


@dataclasses.dataclass(frozen=True)
class Check:
    """Something that every backend must do.

    Attributes:
      name: of the check.
      function: of a backend and random numbers. What it returns must be the same in every process.
      needs: whether a backend has as many processes and devices as the check is about.
      sanitized: whether the memory backend also runs it under the sanitizers.
    """

    name: str
    function: Function
    needs: Callable[[Backend], bool]
    sanitized: bool

    def run(self, backend: Backend) -> Any:
        """Every process, and every backend, draws the same random numbers."""
        with backend.installed():
            return self.function(backend, np.random.default_rng(zlib.crc32(self.name.encode())))


CHECKS: dict[str, Check] = {}


def check(
    function: Function | None = None,
    *,
    needs: Callable[[Backend], bool] = lambda _: True,
    sanitized: bool = False,
) -> Any:
    """Puts a function on the list."""

    def put(function: Function) -> Function:
        assert function.__name__ not in CHECKS
        CHECKS[function.__name__] = Check(function.__name__, function, needs, sanitized)
        return function

    return put if function is None else put(function)
