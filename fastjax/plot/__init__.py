"""Pictures of plans, by matplotlib: the extra `plot`."""

from fastjax.plot.plans import PANELS, draw_plan, plot_panels, plot_plan

__all__ = ["PANELS", "draw_plan", "plot_panels", "plot_plan"]
