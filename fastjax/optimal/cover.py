"""Covers: matchings of servers, each with a length, that together carry all rows."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fastjax.errors import UnsupportedError


def scipy_module(name: str) -> Any:
    """A module of scipy, imported when it is needed: scipy is an optional extra.

    Raises:
      UnsupportedError: scipy is not installed.
    """
    try:
        return importlib.import_module(f"scipy.{name}")
    except ModuleNotFoundError:
        raise UnsupportedError(
            "the scheduler 'optimal' needs scipy, which is not installed; "
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


class Cover(NamedTuple):
    """Stages of a schedule between servers.

    Attributes:
      targets: server that each one sends to, -1 for none; int32, shape (stages, servers).
      lengths: rows that each pair of a stage may send in it; int64, shape (stages,).
    """

    targets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, servers: int, targets: Sequence[np.ndarray], lengths: Sequence[int]) -> Cover:
        """Stages one by one."""
        return cls(np.array(targets, np.int32).reshape(-1, servers), np.array(lengths, np.int64))

    @property
    def length(self) -> int:
        """Rows of all stages, one after the other."""
        return int(self.lengths.sum())

    def cost(self, startup: Fraction) -> Fraction:
        """What it costs, in rows, exactly, where starting a stage costs `startup` rows."""
        return startup * len(self.lengths) + self.length

    def carried(self) -> np.ndarray:
        """Rows that stages can carry between each two servers, shape (servers, servers)."""
        servers = self.targets.shape[1]
        rows = np.zeros((servers, servers), np.int64)
        stage, source = np.nonzero(self.targets >= 0)
        np.add.at(rows, (source, self.targets[stage, source]), self.lengths[stage])
        return rows


def busiest_line(rows: np.ndarray) -> int:
    """Most rows that a server sends or receives: the least length of any cover."""
    return int(max(rows.sum(axis=0).max(), rows.sum(axis=1).max()))


def degree(rows: np.ndarray) -> int:
    """Most peers that a server sends to or receives from: the fewest stages of any cover."""
    return busiest_line((rows > 0).astype(np.int64))


def trimmed(rows: np.ndarray, cover: Cover) -> Cover:
    """The same cover, longest stage first, without pairs and rows that are carried already."""
    left = rows.copy()
    sources = np.arange(len(rows))
    targets, lengths = [], []
    for k in np.argsort(-cover.lengths, kind="stable"):
        target = cover.targets[k]
        carried = np.where(target >= 0, np.minimum(left[sources, target], cover.lengths[k]), 0)
        if carried.any():
            left[sources, target] -= carried
            targets.append(np.where(carried > 0, target, -1))
            lengths.append(carried.max())
    return Cover.of(len(rows), targets, lengths)


def fewest_stages(rows: np.ndarray) -> Cover:
    """A cover with as many stages as some server has peers, in which no pair's rows are split.

    Each stage serves every server that has the most peers left, which a bipartite graph always
    allows (König); among such stages it takes one with the most rows.
    """
    assign = scipy_module("optimize").linear_sum_assignment
    left = rows.copy()
    sources = np.arange(len(rows))
    targets, lengths = [], []
    while left.any():
        wanted = left > 0
        most = degree(left)
        critical = (wanted.sum(axis=1) == most)[:, None] + 1.0 * (wanted.sum(axis=0) == most)
        # A critical server outweighs all rows that one stage could have more.
        _, target = assign(wanted * (critical * 2 * len(rows) + left / left.max()), maximize=True)
        targets.append(np.where(left[sources, target] > 0, target, -1))
        lengths.append(left[sources, target].max())
        left[sources, target] = 0
    return Cover.of(len(rows), targets, lengths)


def least_length(rows: np.ndarray, clock: Clock) -> Cover | None:
    """A cover as long as the busiest line, by Birkhoff and von Neumann; None when time is up.

    Rows are padded to equal line sums, and perfect matchings taken off whose least entry is above
    a threshold, halved when there is none left: that makes few stages (Solstice).
    """
    matching = scipy_module("sparse.csgraph").maximum_bipartite_matching
    csr_matrix = scipy_module("sparse").csr_matrix
    left = _padded(rows)
    sources = np.arange(len(rows))
    threshold = 1 << int(left.max()).bit_length()
    targets, lengths = [], []
    while left.any():
        if not clock.left():
            return None
        target = matching(csr_matrix(left >= threshold), perm_type="column")
        if (target < 0).any():
            threshold //= 2
            continue
        length = left[sources, target].min()
        left[sources, target] -= length
        targets.append(np.where(rows[sources, target] > 0, target, -1))
        lengths.append(length)
    return trimmed(rows, Cover.of(len(rows), targets, lengths))


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows and what every line lacks of the busiest one."""
    padded = rows.copy()
    longest = busiest_line(rows)
    out, into = longest - rows.sum(axis=1), longest - rows.sum(axis=0)
    s = d = 0
    while s < len(rows) and d < len(rows):
        more = min(out[s], into[d])
        padded[s, d] += more
        out[s] -= more
        into[d] -= more
        s, d = s + (out[s] == 0), d + (into[d] == 0)
    return padded
