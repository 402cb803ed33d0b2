"""The schedulers: what the package must know of each, and where each may plan.

The compiled planner's say it themselves, where they are registered; see `fastjax._core`. One more
solves here, on the host, and has the compiled planner make a plan of its solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastjax import _core
from fastjax.errors import OptionError
from fastjax.topology import Topology


class Traits(NamedTuple):
    """What a scheduler is like.

    Attributes:
      name: what `scheduler=` takes.
      description: what its plans do.
      order: lists for users are sorted by it.
      needs_own_nics: whether every device's own NIC must work; rows go round those that have failed
        otherwise.
      chooses: whether its plans are those of another one.
      number: that of the compiled scheduler that makes its plans.
      solves: whether it solves for its stages, which takes seconds, on the host only.
    """

    name: str
    description: str
    order: int
    needs_own_nics: bool
    chooses: bool
    number: int = 0
    solves: bool = False


def collect(compiled: Sequence[tuple[str, str, int, bool, bool]]) -> dict[str, Traits]:
    """Traits by name, in the order in which users see the names.

    Args:
      compiled: the first of those of the compiled schedulers, in the order of their numbers.
    """
    numbered = (Traits(*told, number=number) for number, told in enumerate(compiled))
    found = {its.name: its for its in sorted(numbered, key=lambda its: its.order)}
    description = "as fast, with the best stages that a solver found"
    optimal = found["fast"]._replace(name="optimal", description=description, solves=True)
    return {**found, optimal.name: optimal}


ALL = collect(_core.scheduler_traits())
NAMES = tuple(name for name, *_ in _core.scheduler_traits())
"""Those of the compiled planner, by number."""
FALLBACK = NAMES[_core.fallback_scheduler]
"""The scheduler of plans that have nothing to decide."""


def schedulers() -> tuple[str, ...]:
    """Names that `scheduler=` takes."""
    return tuple(ALL)


def schedulers_in_programs() -> tuple[str, ...]:
    """Those of `fastjax.schedulers()` that plan while a program runs."""
    return tuple(name for name, traits in ALL.items() if not traits.solves)


def check_scheduler(name: object, what: str) -> None:
    """Refuses names that are not a scheduler's."""
    if name not in schedulers():
        raise OptionError(f"{what} must be one of {', '.join(ALL)}; got {name!r}.")


def fits(name: str, topology: Topology) -> bool:
    """Whether a scheduler can plan there: not if it uses a NIC that has failed."""
    apart = topology.servers > 1
    return not (apart and topology.failed_nics and ALL[name].needs_own_nics)


def check_scheduler_fits(name: str, topology: Topology) -> None:
    """Refuses schedulers that use every device's own NIC where one has failed."""
    if not fits(name, topology):
        failed = topology.failed_nics[0]
        # Those that programs can have; the one that chooses comes last.
        able = [t for t in ALL.values() if not t.needs_own_nics and not t.solves]
        *others, last = (t.name for t in sorted(able, key=lambda traits: traits.chooses))
        raise OptionError(
            f"scheduler {name!r} sends rows over their device's own NIC, and that of device "
            f"{failed} has failed (nic_bandwidths[{failed}] is 0); "
            f"{', '.join(map(repr, others))} and {last!r} go round it."
        )
