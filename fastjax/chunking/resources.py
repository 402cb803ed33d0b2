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

from fastjax.errors import ArgumentError

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
_MOST_SECONDS = 1e6


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

    def __post_init__(self) -> None:
        for name in _NAMES:
            seconds = getattr(self, name)
            if not 0 <= seconds <= _MOST_SECONDS:
                raise ArgumentError(
                    f"{name} must be seconds from 0 to {_MOST_SECONDS:g}, got {seconds!r}."
                )


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
class Schedule:
    """When everything runs.

    Attributes:
      tasks: in the order in which they were ready; those that take no time are left out.
      total: seconds until the last one ends.
    """

    tasks: tuple[Task, ...]
    total: float

    def busy(self, resource: str) -> float:
        """Seconds that a resource works.

        Raises:
          ArgumentError: there is no such resource.
        """
        if resource not in RESOURCES:
            raise ArgumentError(
                f"resource must be one of {', '.join(RESOURCES)}; got {resource!r}."
            )
        taken = sum(_whole(p.end) - _whole(p.start) for p in self.tasks if p.resource == resource)
        return taken / _IN_A_SECOND


def schedule(chunks: Sequence[Parts]) -> Schedule:
    """Runs the chunks of a layer, in order.

    Plans are made one after another from the beginning. A chunk begins to cross when it is planned
    and the one before has left the NICs. Where two parts wait for a resource, the one that was
    ready first goes first; if both were at once, that of the earlier chunk.

    Args:
      chunks: what each takes.

    Returns:
      When each part starts and ends.
    """
    lasting = [[_whole(getattr(parts, name)) for name in _NAMES] for parts in chunks]
    planned = [*itertools.accumulate(parts[0] for parts in lasting)]
    free: dict[str, int] = dict.fromkeys(RESOURCES, 0)
    tasks, last = [], 0

    def add(part: int, chunk: int, start: int, end: int) -> None:
        if end > start:
            name, times = _NAMES[part], (start / _IN_A_SECOND, end / _IN_A_SECOND)
            tasks.append(Task(name, _RESOURCE_OF[name], chunk, *times))

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
    return Schedule(tuple(tasks), last / _IN_A_SECOND)


def _whole(seconds: float) -> int:
    return round(seconds * _IN_A_SECOND)


__all__ = ["RESOURCES", "Parts", "Schedule", "Task", "schedule"]
