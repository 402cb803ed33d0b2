"""Loads before and after: of NICs by balancing, of devices by levelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import add_boxes, every_so_many, matplotlib, without_frame
from fastjax.schedule.transfers import SCALE_OUT
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BEFORE, _AFTER = "#f4b183", "#1f5fa8"


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
    _before_and_after(place, shares[0], shares[1], servers)
    looks = ((_BEFORE, "experts at home"), (_AFTER, "levelled"))
    handles = [
        mpl.patches.Patch(color=colour, label=f"{name}: at most {share.max():.2f}")
        for share, (colour, name) in zip(shares, looks, strict=True)
    ]
    place.axhline(1, color="black", lw=0.8, ls="--")
    place.set_ylim(0, 1.05 * max(1.0, *(float(share.max()) for share in shares)))
    place.set_xticks(every_so_many(devices, 33))
    place.set_xlabel("device")
    place.set_ylabel("rows / mean")
    without_frame(place, "bottom", "left")
    place.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=2,
        fontsize="small", borderaxespad=0.1,
    )  # fmt: skip
    return figure


def nic_seconds(plan: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each NIC at its full rate, if devices sent their own rows, and as they do send.

    Returns:
      Two arrays of shape (2, devices): for rows sent, and received. A NIC that has failed has NaN
      for rows that it cannot move.
    """
    topology = plan.topology
    server = np.arange(topology.num_devices) // topology.devices_per_server
    crosses = np.where(server[:, None] != server, plan.traffic, 0)
    before = np.stack([crosses.sum(axis=1), crosses.sum(axis=0)])
    sent = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    after = np.zeros_like(before)
    for side, end in enumerate(("src", "dst")):
        np.add.at(after[side], sent[end], sent["rows"])
    rates = np.array(topology.nic_bandwidths or (topology.scale_out_bandwidth,) * len(server))
    rates = np.where(rates > 0, rates, np.nan) / plan.row_bytes
    return (
        np.where(before > 0, before / rates, 0.0),
        np.where(after > 0, after / rates, 0.0),
    )


def draw_nics(plan: Schedule, ax: Axes) -> None:
    """What NICs send, upwards, and receive, downwards: wide and pale before balancing."""
    before, after = (part * 1e6 for part in nic_seconds(plan))
    devices, local = before.shape[1], plan.topology.devices_per_server
    for way, sign in enumerate((1, -1)):
        heights = [sign * np.nan_to_num(part[way]) for part in (before, after)]
        _before_and_after(ax, heights[0], heights[1], devices // local)
    for device in np.flatnonzero(np.isnan(before).any(axis=0)).tolist():
        ax.text(device, 0, "x", color="red", ha="center", va="center", fontweight="bold")
    top, bottom = np.nanmax([before, after], axis=(0, 2))
    room = 0.14 * (top + bottom)
    ax.axhline(0, color="black", lw=0.8)
    ax.set_ylim(-bottom - room, top + room)
    shown = every_so_many(devices // local)
    ax.set_xticks(shown * local + (local - 1) / 2, labels=[str(i) for i in shown])
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("NICs of server")
    ax.set_ylabel("µs at full rate")
    without_frame(ax, "left")
    ax.set_title("load of each NIC", fontsize="medium")
    for x, y, text, colour in (
        (0.01, 0.98, "sends", "black"),
        (0.01, 0.02, "receives", "black"),
        (0.99, 0.98, "as sent", _AFTER),
        (0.75, 0.98, "before balancing", "#c55a11"),
    ):
        side, level = "right" if x > 0.5 else "left", "top" if y > 0.5 else "bottom"
        ax.text(x, y, text, transform=ax.transAxes, ha=side, va=level, color=colour, size="small")


def _before_and_after(ax: Axes, before: Any, after: Any, servers: int) -> None:
    """A bar for each device, wide and pale before and narrow and dark after; lines part servers."""
    devices = len(before)
    for heights, colour, width in ((before, _BEFORE, 0.9), (after, _AFTER, 0.45)):
        left = np.arange(devices) - width / 2
        add_boxes(ax, left, width, 0, heights, colour, edgecolors="none")
    for edge in np.arange(1, servers) * (devices // servers) - 0.5:
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    ax.set_xlim(-0.7, devices - 0.3)
