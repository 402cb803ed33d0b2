"""How long a layer of experts takes in chunks: a model of the resources that its parts occupy."""

from fastjax.chunking.resources import RESOURCES, Parts, Schedule, Task, schedule
from fastjax.chunking.times import (
    BACKWARD,
    CANDIDATES,
    CHUNK_OVERHEAD,
    LEAST_GAIN,
    LayerTimes,
    fewest_of,
    layer_time,
    way_back,
)

__all__ = [
    "BACKWARD",
    "CANDIDATES",
    "CHUNK_OVERHEAD",
    "LEAST_GAIN",
    "RESOURCES",
    "LayerTimes",
    "Parts",
    "Schedule",
    "Task",
    "fewest_of",
    "layer_time",
    "schedule",
    "way_back",
]
