"""The schedulers: their names and numbers, and where each may plan."""

from __future__ import annotations

from fastjax import _core
from fastjax.errors import OptionError
from fastjax.topology import Topology

_ORDER = ("auto", "fast", "balanced", "relay", "rails", "spreadout", "direct")


def schedulers() -> tuple[str, ...]:
    """Names that `scheduler=` takes."""
    return (*sorted(_core.scheduler_names(), key=_ORDER.index), "optimal")


def schedulers_in_programs() -> tuple[str, ...]:
    """Those of `fastjax.schedulers()` that plan while a program runs."""
    return tuple(name for name in schedulers() if name != "optimal")


def scheduler_number(name: str) -> int:
    """That of the compiled planner."""
    return _core.scheduler_names().index(name)


def check_scheduler(name: object, what: str) -> None:
    """Refuses names that are not a scheduler's."""
    if name not in schedulers():
        raise OptionError(f"{what} must be one of {', '.join(schedulers())}; got {name!r}.")


def check_scheduler_fits(name: str, topology: Topology) -> None:
    """Refuses schedulers that use every device's own NIC where one has failed."""
    failed = topology.failed_nics
    if failed and topology.servers > 1 and name in ("direct", "relay", "spreadout"):
        raise OptionError(
            f"scheduler {name!r} sends rows over their device's own NIC, and that of device "
            f"{failed[0]} has failed (nic_bandwidths[{failed[0]}] is 0); 'fast', 'balanced', "
            "'rails' and 'auto' go round it."
        )


__all__ = [
    "check_scheduler",
    "check_scheduler_fits",
    "scheduler_number",
    "schedulers",
    "schedulers_in_programs",
]
