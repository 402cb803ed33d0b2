"""How many rows devices compute, before and after levelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import add_boxes, every_so_many, matplotlib, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEFORE, _AFTER = "#f4b183", "#1f5fa8"


def plot_loads(before: Any, after: Any, *, servers: int, ax: Axes | None = None) -> Figure:
    """Draws the rows of each device relative to the mean device.

    Args:
      before: rows that each device computes with experts at home, server by server.
      after: the same with experts levelled.
      servers: that the devices are split into.
      ax: axes to draw into; by default those of a new figure.

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
    place: Any = ax
    if place is None:
        width = float(np.clip(2 + 0.2 * devices, 6, 13))
        place = mpl.figure.Figure(figsize=(width, 3.2), layout="constrained").add_subplot()
    number = np.arange(devices)
    names = ("experts at home", "levelled")
    handles = []
    for load, colour, width, name in zip(rows, (_BEFORE, _AFTER), (0.9, 0.45), names, strict=True):
        share = load / (load.mean() or 1.0)
        add_boxes(place, number - width / 2, width, 0, share, colour, edgecolors="none")
        label = f"{name}: at most {share.max():.2f}"
        handles.append(mpl.patches.Patch(color=colour, label=label))
    for edge in np.arange(1, servers) * (devices // servers) - 0.5:
        place.axvline(edge, color="0.85", lw=0.6, zorder=0)
    place.axhline(1, color="black", lw=0.8, ls="--")
    place.set_xlim(-0.7, devices - 0.3)
    place.set_ylim(0, 1.05 * max(1.0, *(float(r.max() / (r.mean() or 1.0)) for r in rows)))
    place.set_xticks(every_so_many(devices, 33))
    place.set_xlabel("device")
    place.set_ylabel("rows / mean")
    without_frame(place, "bottom", "left")
    place.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=2,
        fontsize="small", borderaxespad=0.1,
    )  # fmt: skip
    return place.figure


__all__ = ["plot_loads"]
