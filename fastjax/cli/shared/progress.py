"""How far a command is, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
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
        self._done = 0
        self._last = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self._show("")

    @contextlib.contextmanager
    def step(self, what: str, of: int = 1) -> Generator[Callable[[float], None]]:
        """The next thing, as long as several of the steps: gives what shows the share done."""

        def share(done: float) -> None:
            part = (self._done + of * done) / self._steps
            self._show(f"{'#' * round(part * _WIDTH):.<{_WIDTH}} {part:4.0%} {what}")

        share(0.0)
        yield share
        self._done += of

    def _show(self, line: str) -> None:
        if sys.stderr.isatty() and line != self._last:
            sys.stderr.write(f"\r{line:<{len(self._last)}}" + "\r" * (not line))
            sys.stderr.flush()
            self._last = line
