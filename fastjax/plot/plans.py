"""Pictures of plans."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import matplotlib
from fastjax.plot.loads import draw_nics
from fastjax.plot.stages import draw_exchanged, draw_stages
from fastjax.plot.traffic import draw_traffic
from fastjax.schedule.flows import simulate_by_barrier
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_plan(plan: Schedule, *, everything: bool = False) -> Figure:
    """Draws a plan: its traffic, and its stages over time.

    On the left, the rows of every pair of devices, or of servers where there are many devices.

    On the right, a track for each server with its scale-out stages, in the colour of the receiving
    server. Above them, paler, is the balance for a stage, in the colour of the server that rows are
    for; below, the redistribution of arrived rows, in the colour of the sending server. Times are
    simulated (`fastjax.simulate` with `synchronization="barrier"`): a stage begins when the one
    before is over everywhere. Balance and redistribution go on meanwhile, so bars of two stages may
    overlap, the earlier one on top. A bar reaches from the first row that flows to the last that
    arrives. Planning is not in the picture, and `Plan.predicted_time`, which includes it, is
    another model: the two differ somewhat. With one server, nothing is staged, and the right shows
    the rows that each device sends and receives.

    Args:
      plan: from `fastjax.make_plan`.
      everything: as `Plan.plot` has it, also the load of each NIC before and after balancing, where
        something crosses servers.

    Returns:
      The figure.

    Raises:
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    topology, flows = plan.topology, simulate_by_barrier(plan)
    staged = topology.servers > 1 and plan.num_stages > 0
    tracks = topology.servers if staged else topology.num_devices
    high = float(np.clip(0.6 * tracks, 4.8, 7.5))
    two_lines = everything and staged
    heights = [4.3, high] if two_lines else [high]
    figure = mpl.figure.Figure(figsize=(13, sum(heights)), layout="constrained")
    above, *below = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    left, right = above.subgridspec(1, 2, width_ratios=[1, 1 if two_lines else 1.7])
    draw_traffic(plan, figure.add_subplot(left))
    if two_lines:
        draw_nics(plan, figure.add_subplot(right))
    place = figure.add_subplot(below[0] if two_lines else right)
    if staged:
        draw_stages(plan, flows, place)
    else:
        draw_exchanged(plan, place)
    figure.suptitle(_title(plan))
    return figure


def draw_plan(plan: Schedule, path: str | os.PathLike[str]) -> None:
    """Draws a plan into a file, as `plot_plan` does.

    Args:
      plan: from `fastjax.make_plan`.
      path: the file, of a type that matplotlib writes: .png, .svg, .pdf, ...

    Raises:
      ArgumentError: matplotlib writes no such type.
      UnsupportedError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    types = matplotlib().figure.Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in types:
        known = ", ".join(f".{name}" for name in sorted(types))
        raise ArgumentError(f"{path}: the name of a picture must end in one of {known}.")
    plot_plan(plan).savefig(path, dpi=150)


def _title(plan: Schedule) -> str:
    topology, bound = plan.topology, plan.lower_bound()
    text = f"{plan.scheduler}: {topology.servers} x {topology.devices_per_server} devices, "
    if plan.num_stages:
        text += f"{plan.num_stages} stage{'s' if plan.num_stages > 1 else ''}, "
    text += f"{plan.predicted_time() * 1e6:.4g} µs predicted"
    return text + (f", {plan.predicted_time() / bound:.2f} x the lower bound" if bound else "")
