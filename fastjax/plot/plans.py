"""Pictures of plans: their traffic, and the load of each NIC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import every_so_many, matplotlib, without_frame
from fastjax.plot.loads import AFTER, add_pairs
from fastjax.schedule import SCALE_OUT, Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DEVICES_SHOWN = 128  # above, the heat map has one cell for each pair of servers


def plot_plan(plan: Schedule) -> Figure:
    """Draws what a plan moves: its traffic, and the load of each NIC.

    On the left, the rows of every pair of devices, or of servers where there are many devices. On
    the right, where there are several servers, the load of each NIC before and after balancing.
    When rows move is in the picture of a simulation: `fastjax.simulate(plan).plot()`.

    Args:
      plan: from `fastjax.make_plan`.

    Returns:
      The figure.

    Raises:
      UnsupportedError: matplotlib is not installed.
    """
    panels = 2 if plan.topology.servers > 1 else 1
    figure = matplotlib().figure.Figure(figsize=(6.5 * panels, 4.3), layout="constrained")
    left, *right = figure.subplots(1, panels, squeeze=False)[0]
    _draw_traffic(plan, left)
    for ax in right:
        draw_nics(plan, ax)
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
        add_pairs(ax, heights[0], heights[1], devices // local)
    for device in np.flatnonzero(np.isnan(before).any(axis=0)).tolist():
        ax.text(device, 0, "x", color="red", ha="center", va="center", fontweight="bold")
    top, bottom = np.nanmax([before, after], axis=(0, 2))
    room = 0.14 * (top + bottom) or 1.0
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
        (0.99, 0.98, "as sent", AFTER),
        (0.75, 0.98, "before balancing", "#c55a11"),
    ):
        side, level = "right" if x > 0.5 else "left", "top" if y > 0.5 else "bottom"
        ax.text(x, y, text, transform=ax.transAxes, ha=side, va=level, color=colour, size="small")
