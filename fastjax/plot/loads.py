"""Loads before and after: of NICs by balancing, of devices by levelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import add_boxes, every_so_many, legend, matplotlib, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEFORE, AFTER = "#f4b183", "#1f5fa8"


def plot_loads(before: Any, after: Any, *, servers: int) -> Figure:
    """Draws the rows of each device relative to the mean device.

    Args:
      before: rows that each device computes with experts at home, server by server.
      after: the same with experts levelled.
      servers: that the devices are split into.

    Returns:
      The figure.

    Raises:
      ArgumentError: devices are none, differ, or do not divide into servers.
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    rows = [np.asarray(before, float), np.asarray(after, float)]
    devices = rows[0].size
    if not devices or any(r.shape != (devices,) for r in rows) or devices % servers:
        shapes = " and ".join(str(r.shape) for r in rows)
        raise ArgumentError(
            f"want as many rows before as after, of devices of {servers} servers; got {shapes}."
        )
    width = float(np.clip(2 + 0.2 * devices, 6, 13))
    figure = mpl.figure.Figure(figsize=(width, 3.2), layout="constrained")
    place = figure.add_subplot()
    shares = [load / (load.mean() or 1.0) for load in rows]
    add_pairs(place, shares[0], shares[1], servers)
    names = ("experts at home", "levelled")
    named = [f"{n}: at most {share.max():.2f}" for n, share in zip(names, shares, strict=True)]
    place.axhline(1, color="black", lw=0.8, ls="--")
    place.set_ylim(0, 1.05 * max(1.0, *(float(share.max()) for share in shares)))
    place.set_xticks(every_so_many(devices))
    place.set_xlabel("device")
    place.set_ylabel("rows / mean")
    without_frame(place, "bottom", "left")
    legend(place, zip(named, (BEFORE, AFTER), strict=True))
    return figure


def add_pairs(ax: Axes, before: Any, after: Any, servers: int) -> None:
    """A bar for each device, wide and pale before and narrow and dark after; lines part servers."""
    devices = len(before)
    for heights, colour, width in ((before, BEFORE, 0.9), (after, AFTER, 0.45)):
        left = np.arange(devices) - width / 2
        add_boxes(ax, left, width, 0, heights, colour, edgecolors="none")
    for edge in np.arange(1, servers) * (devices // servers) - 0.5:
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    ax.set_xlim(-0.7, devices - 0.3)
