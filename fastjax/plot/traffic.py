"""A heat map of the traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import every_so_many, matplotlib
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_DEVICES_SHOWN = 128  # above, the heat map has one cell for each pair of servers


def draw_traffic(plan: Schedule, ax: Axes) -> None:
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
