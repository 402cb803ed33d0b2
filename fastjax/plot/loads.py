"""Loads of NICs before and after balancing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import add_boxes, every_so_many, without_frame
from fastjax.schedule.transfers import SCALE_OUT
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEFORE, _AFTER = "#f4b183", "#1f5fa8"


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
    for part, colour, width in ((before, _BEFORE, 0.9), (after, _AFTER, 0.45)):
        left = np.arange(devices) - width / 2
        for way, sign in enumerate((1, -1)):
            heights = sign * np.nan_to_num(part[way])
            add_boxes(ax, left, width, 0, heights, colour, edgecolors="none")
    for edge in np.arange(local, devices, local) - 0.5:
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    ax.set_xlim(-0.7, devices - 0.3)
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
