"""How far a command is, on a terminal."""

from __future__ import annotations

import sys

_WIDTH = 30


class Progress:
    """A bar on stderr for several things done in turn; nothing where stderr is no terminal.

    Args:
      steps: how many there are.
    """

    def __init__(self, steps: int):
        self._steps = steps
        self._done = 0
        self._shown = sys.stderr.isatty()
        self._last = ""
        self._what = ""

    def begin(self, what: str) -> None:
        """The next thing is this."""
        self._what = what
        self.share(0.0)

    def share(self, done: float) -> None:
        """So much of it is done, from 0 to 1."""
        part = (self._done + done) / self._steps
        self._show(f"{'#' * round(part * _WIDTH):.<{_WIDTH}} {part:4.0%} {self._what}")

    def end(self) -> None:
        """It is done."""
        self._done += 1

    def step(self) -> None:
        """It is done, and the next thing is called the same."""
        self.end()
        self.share(0.0)

    def clear(self) -> None:
        """Takes the bar away."""
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown and line != self._last:
            sys.stderr.write(f"\r{line:<{len(self._last)}}" + "\r" * (not line))
            sys.stderr.flush()
            self._last = line


__all__ = ["Progress"]
