"""What an exchange would cost on a fabric: plans simulated, flow by flow."""

from fastjax.simulation.fabric import (
    COUNTS,
    INCAST,
    PRESETS,
    SYNCHRONIZATIONS,
    Fabric,
    Incast,
    Preset,
)
from fastjax.simulation.simulator import simulate, simulate_transfers
from fastjax.simulation.timeline import LINKS, MESSAGE_DTYPE, TIMED_DTYPE, Timeline

__all__ = [
    "COUNTS",
    "INCAST",
    "LINKS",
    "MESSAGE_DTYPE",
    "PRESETS",
    "SYNCHRONIZATIONS",
    "TIMED_DTYPE",
    "Fabric",
    "Incast",
    "Preset",
    "Timeline",
    "simulate",
    "simulate_transfers",
]
