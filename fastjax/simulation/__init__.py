"""Simulated times on a fabric: of plans, flow by flow, and of layers in chunks."""

from fastjax.chunking.resources import LayerTimes
from fastjax.chunking.times import layer_time
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
    "LayerTimes",
    "Preset",
    "Timeline",
    "layer_time",
    "simulate",
    "simulate_transfers",
]
