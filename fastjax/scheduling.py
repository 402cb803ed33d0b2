"""The schedulers: their names and numbers, and where each may plan."""

from __future__ import annotations

from fastjax import scheduler_traits
from fastjax.errors import OptionError
from fastjax.topology import Topology


def schedulers() -> tuple[str, ...]:
    """Names that `scheduler=` takes."""
    return tuple(scheduler_traits.ALL)


def schedulers_in_programs() -> tuple[str, ...]:
    """Those of `fastjax.schedulers()` that plan while a program runs."""
    return tuple(name for name, traits in scheduler_traits.ALL.items() if not traits.solves)


def scheduler_number(name: str) -> int:
    """That of the compiled planner."""
    return scheduler_traits.ALL[name].number


def check_scheduler(name: object, what: str) -> None:
    """Refuses names that are not a scheduler's."""
    if name not in schedulers():
        raise OptionError(f"{what} must be one of {', '.join(schedulers())}; got {name!r}.")


def check_scheduler_fits(name: str, topology: Topology) -> None:
    """Refuses schedulers that use every device's own NIC where one has failed."""
    failed = topology.failed_nics
    if failed and topology.servers > 1 and scheduler_traits.ALL[name].needs_own_nics:
        *others, last = _that_go_round()
        raise OptionError(
            f"scheduler {name!r} sends rows over their device's own NIC, and that of device "
            f"{failed[0]} has failed (nic_bandwidths[{failed[0]}] is 0); "
            f"{', '.join(map(repr, others))} and {last!r} go round it."
        )


def _that_go_round() -> list[str]:
    """Those that programs can have where NICs have failed; the one that chooses comes last."""
    able = [t for t in scheduler_traits.ALL.values() if not t.needs_own_nics and not t.solves]
    return [traits.name for traits in sorted(able, key=lambda traits: traits.chooses)]


__all__ = [
    "check_scheduler",
    "check_scheduler_fits",
    "scheduler_number",
    "schedulers",
    "schedulers_in_programs",
]
