"""When each part of each chunk of a layer runs, given how long it takes.

A chunk's parts follow one another: it is planned, crosses between servers, is copied inside
servers, goes through the experts, is summed inside servers and crosses back. Each part occupies a
resource, and a resource does one part at a time, in the order in which they are ready. All
arithmetic is in whole picoseconds, so that every host finds the same order.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence

RESOURCES = ("planner", "network", "inside", "experts")
"""What works at once: the host that plans, NICs, links inside servers, and the experts."""

_RESOURCE_OF = {
    "planning": "planner",
    "out": "network",
    "copies": "inside",
    "experts": "experts",
    "sums": "inside",
    "back": "network",
}
_NAMES = tuple(_RESOURCE_OF)
_OUT = _NAMES.index("out")
_IN_A_SECOND = 10**12


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds that the parts of one chunk take, each by itself; 0 for a missing one.

    Attributes:
      planning: on the host, for both ways.
      out: the crossing between servers, or the whole exchange where tokens do not cross once.
      copies: the exchange inside servers that follows.
      experts: the work of the experts.
      sums: the exchange inside servers on the way back.
      back: the crossing on the way back, or the whole exchange.
    """

    planning: float = 0.0
    out: float = 0.0
    copies: float = 0.0
    experts: float = 0.0
    sums: float = 0.0
    back: float = 0.0


@dataclasses.dataclass(frozen=True)
class Task:
    """A part of a chunk, and when it runs.

    Attributes:
      part: a field of `Parts`.
      resource: one of `RESOURCES`.
      chunk: its number.
      start: seconds after the layer began.
      end: likewise.
    """

    part: str
    resource: str
    chunk: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class LayerTimes:
    """A layer, timed.

    Attributes:
      chunks: how many.
      deduplicated: whether a token crosses once to each server.
      tasks: when each part of each chunk runs, in the order in which they were ready; those that
        take no time are left out, and those of a backward pass follow.
      total: seconds until the last token is back, or its cotangent.
      planning: seconds that the host plans.
      network: seconds that NICs are busy.
      inside: seconds that links inside servers are busy on their own, with copies and sums.
      experts: seconds that experts work.
      backward_from: seconds after which the backward pass begins; None without one.
    """

    chunks: int
    deduplicated: bool
    tasks: tuple[Task, ...]
    total: float
    planning: float
    network: float
    inside: float
    experts: float
    backward_from: float | None = None

    def then(self, other: LayerTimes) -> LayerTimes:
        """This, and then another pass, which is the way back."""
        shifted = (
            dataclasses.replace(p, start=p.start + self.total, end=p.end + self.total)
            for p in other.tasks
        )
        added = ("total", "planning", "network", "inside", "experts")
        seconds = {name: getattr(self, name) + getattr(other, name) for name in added}
        tasks = (*self.tasks, *shifted)
        return dataclasses.replace(self, tasks=tasks, backward_from=self.total, **seconds)


def schedule(chunks: Sequence[Parts], *, deduplicated: bool = False) -> LayerTimes:
    """Runs the chunks of a layer, in order.

    Plans are made one after another from the beginning. A chunk begins to cross when it is planned
    and the one before has left the NICs. Where two parts wait for a resource, the one that was
    ready first goes first; if both were at once, that of the earlier chunk.

    Args:
      chunks: what each takes.
      deduplicated: whether a token crosses once to each server.
    """
    lasting = [[_whole(getattr(parts, name)) for name in _NAMES] for parts in chunks]
    planned = [*itertools.accumulate(parts[0] for parts in lasting)]
    free: dict[str, int] = dict.fromkeys(RESOURCES, 0)
    busy = dict(free)
    tasks, last = [], 0

    def add(part: int, chunk: int, start: int, end: int) -> None:
        if end > start:
            name, times = _NAMES[part], (start / _IN_A_SECOND, end / _IN_A_SECOND)
            tasks.append(Task(name, _RESOURCE_OF[name], chunk, *times))
            busy[_RESOURCE_OF[name]] += end - start

    for chunk, end in enumerate(planned):
        add(0, chunk, end - lasting[chunk][0], end)
    ready = [(planned[0], 0, _OUT)] if planned else []  # a heap: when, chunk, part
    while ready:
        end, chunk, part = heapq.heappop(ready)
        if lasting[chunk][part]:
            resource = _RESOURCE_OF[_NAMES[part]]
            start = max(end, free[resource])
            free[resource] = end = start + lasting[chunk][part]
            add(part, chunk, start, end)
        last = max(last, end)
        if part + 1 < len(_NAMES):
            heapq.heappush(ready, (end, chunk, part + 1))
        if part == _OUT and chunk + 1 < len(planned):
            heapq.heappush(ready, (max(end, planned[chunk + 1]), chunk + 1, _OUT))
    seconds = (whole / _IN_A_SECOND for whole in (last, *busy.values()))
    return LayerTimes(len(chunks), deduplicated, tuple(tasks), *seconds)


def _whole(seconds: float) -> int:
    return round(seconds * _IN_A_SECOND)
