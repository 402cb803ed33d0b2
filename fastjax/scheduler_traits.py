"""What the package must know of each scheduler.

The compiled planner's say it themselves, where they are registered; see `fastjax._core`. One more
solves here, on the host, and has the compiled planner make a plan of its solution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fastjax import _core


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a scheduler is like.

    Attributes:
      name: what `scheduler=` takes.
      description: what its plans do.
      number: that of the compiled scheduler that makes its plans.
      needs_own_nics: whether every device's own NIC must work; rows go round those that have failed
        otherwise.
      chooses: whether its plans are those of another one.
      solves: whether it solves for its stages, which takes seconds, on the host only.
    """

    name: str
    description: str
    number: int
    needs_own_nics: bool
    chooses: bool
    solves: bool = False


def collect(compiled: Sequence[_core.SchedulerTraits]) -> dict[str, Traits]:
    """Traits by name, in the order in which users see the names.

    Args:
      compiled: those of the compiled schedulers, in the order of their numbers.
    """
    numbered = sorted(enumerate(compiled), key=lambda pair: pair[1].order)
    found = {
        its.name: Traits(its.name, its.description, number, its.needs_own_nics, its.chooses)
        for number, its in numbered
    }
    description = "as fast, with the best stages that a solver found"
    optimal = dataclasses.replace(
        found["fast"], name="optimal", description=description, solves=True
    )
    return {**found, optimal.name: optimal}


ALL = collect(_core.scheduler_traits())
FALLBACK = _core.scheduler_names()[_core.fallback_scheduler]
"""The scheduler of plans that have nothing to decide."""
