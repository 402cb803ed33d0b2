"""How far a command is, on a terminal."""

from __future__ import annotations

import sys
from typing import Any

_WIDTH = 30


class Progress:
    """A bar on stderr for several things done in turn; nothing where stderr is no terminal.

    To be used in `with`, at the end of which the bar goes.

    Args:
      steps: how many there are.
    """

    def __init__(self, steps: int):
        self._steps = steps
        self._begun = 0
        self._last = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self._show("")

    def begin(self, what: str) -> None:
        """Says that the next of them begins."""
        done = self._begun / self._steps
        self._show(f"{'#' * round(done * _WIDTH):.<{_WIDTH}} {done:4.0%} {what}")
        self._begun += 1

    def _show(self, line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line:<{len(self._last)}}" + "\r" * (not line))
            sys.stderr.flush()
            self._last = line
