"""Pictures of plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import every_so_many, matplotlib
from fastjax.plot.loads import draw_nics
from fastjax.plot.stages import draw_exchanged, draw_stages
from fastjax.schedule.flows import simulate_by_barrier
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DEVICES_SHOWN = 128  # above, the heat map has one cell for each pair of servers


def plot_plan(plan: Schedule) -> Figure:
    """Draws a plan: its traffic, the load of each NIC, and its stages over time.

    On the left, the rows of every pair of devices, or of servers where there are many devices. On
    the right, where something crosses servers, the load of each NIC before and after balancing.

    Below, a track for each server with its scale-out stages, in the colour of the receiving
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
    heights = [4.3, high] if staged else [high]
    figure = mpl.figure.Figure(figsize=(13, sum(heights)), layout="constrained")
    above, *below = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    left, right = above.subgridspec(1, 2, width_ratios=[1, 1 if staged else 1.7])
    _draw_traffic(plan, figure.add_subplot(left))
    if staged:
        draw_nics(plan, figure.add_subplot(right))
        draw_stages(plan, flows, figure.add_subplot(below[0]))
    else:
        draw_exchanged(plan, figure.add_subplot(right))
    figure.suptitle(_title(plan))
    return figure


def _draw_traffic(plan: Schedule, ax: Axes) -> None:
    """Rows between all pairs of devices, or of servers where there are many devices."""
    servers, local = plan.topology.servers, plan.topology.devices_per_server
    by_device = plan.topology.num_devices <= _MOST_DEVICES_SHOWN
    cells = plan.traffic
    if not by_device:
        cells = cells.reshape(servers, local, servers, local).sum(axis=(1, 3))
    # Square roots make the colours, so that small flows are seen beside large ones.
    norm = matplotlib().colors.PowerNorm(0.5, vmin=0, vmax=float(max(1, cells.max())))
    image = ax.imshow(cells, cmap="Blues", norm=norm, interpolation="nearest")
    unit, count, width = ("server", servers, local if by_device else 1)
    if servers == 1:
        unit, count, width = "device", local, 1
    shown = every_so_many(count)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(shown * width + (width - 1) / 2, labels=[str(i) for i in shown])
        axis.set_tick_params(length=0)
    if width > 1:
        for edge in np.arange(1, count) * width - 0.5:
            ax.axhline(edge, color="white", lw=1.2)
            ax.axvline(edge, color="white", lw=1.2)
    ax.set_xlabel(f"to {unit}")
    ax.set_ylabel(f"from {unit}")
    pairs = "devices" if by_device else "servers"
    ax.set_title(f"rows between {pairs}, {int(plan.traffic.sum())} in all", fontsize="medium")
    ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0.1, 0.035, 0.8)))


def _title(plan: Schedule) -> str:
    topology, bound = plan.topology, plan.lower_bound()
    text = f"{plan.scheduler}: {topology.servers} x {topology.devices_per_server} devices, "
    if plan.num_stages:
        text += f"{plan.num_stages} stage{'s' if plan.num_stages > 1 else ''}, "
    text += f"{plan.predicted_time() * 1e6:.4g} µs predicted"
    return text + (f", {plan.predicted_time() / bound:.2f} x the lower bound" if bound else "")
