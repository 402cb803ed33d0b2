"""Pictures of plans and of simulated exchanges, by matplotlib: the extra `plot`."""

from fastjax.plot.layers import plot_layers
from fastjax.plot.loads import plot_loads
from fastjax.plot.plans import plot_plan
from fastjax.plot.timelines import plot_timeline

__all__ = [
    "plot_layers",
    "plot_loads",
    "plot_plan",
    "plot_timeline",
]
