"""Pictures of plans, by matplotlib: the extra `plot`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.steps import BALANCE, PHASES, REDISTRIBUTE, SCALE_OUT, Steps, shares_of, steps_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fastjax.host_plan import Plan

_MOST_DEVICES_SHOWN = 128  # above, the heat map has one cell for each pair of servers
_MOST_DETAILED_SERVERS = 12  # above, what moves inside servers has one lane for all of them
_MOST_LABELS = 16
_MOST_EDGED_BARS = 200
# Where in the lane of its server each phase is drawn: from the top, and how high.
_BANDS = {BALANCE: (0.06, 0.16), SCALE_OUT: (0.25, 0.50), REDISTRIBUTE: (0.78, 0.16)}
_WHOLE_LANE = (0.06, 0.88)
_PALE = 0.5
_GREY = "0.6"


def plot_plan(plan: Plan, ax: tuple[Axes, Axes] | None = None) -> Figure:
    """Draws a plan: its traffic, and what happens when.

    On the left, the rows of every pair of devices, or of servers where there are many devices.

    On the right, a lane for each server and in it the scale-out stages, in the colour of the server
    that rows go to. Above those, paler, is what balances the rows of a stage beforehand, in the
    colour of the server they are for, and below what hands out the rows that have arrived, in the
    colour of the server they come from. With many servers, these two have one lane each for all.
    Bars are as wide as the lane's busiest device takes: the transfers are played in lock step, all
    devices meet between steps, which last as long as the busiest device of all. "direct" and
    "rails" have one stage, and their phases run side by side. Planning is not in the picture, and
    `Plan.predicted_time`, which includes it, is not had from the transfers: the two differ
    somewhat. With one server, nothing is staged, and the right shows what each device sends and
    receives.

    Args:
      plan: from `fastjax.make_plan`.
      ax: two axes to draw into; by default those of a new figure, which gets a title.

    Returns:
      The figure.

    Raises:
      UnsupportedError: matplotlib is not installed.
    """
    mpl = _matplotlib()
    staged = plan.topology.servers > 1 and plan.num_stages > 0
    if ax is None:
        lanes = plan.topology.servers if staged else plan.topology.num_devices
        height = float(np.clip(0.6 * lanes, 4.8, 7.5))
        figure = mpl.figure.Figure(figsize=(13, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.7])
        figure.suptitle(_title(plan))
    else:
        left, right = ax
        figure: Any = left.figure
    _draw_traffic(plan, left)
    (_draw_stages if staged else _draw_loads)(plan, right)
    return figure


def draw_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws a plan into a file, as `plot_plan` does.

    Args:
      plan: from `fastjax.make_plan`.
      path: the file, of a type that matplotlib writes: .png, .svg, .pdf, ...

    Raises:
      ArgumentError: matplotlib writes no such type.
      UnsupportedError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    types = _matplotlib().figure.Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in types:
        known = ", ".join(f".{name}" for name in sorted(types))
        raise ArgumentError(f"{path}: the name of a picture must end in one of {known}.")
    plot_plan(plan).savefig(path, dpi=150)


def _matplotlib() -> Any:
    """The package, with the parts of it that are used here."""
    try:
        for part in ("collections", "colors", "figure", "patches"):
            importlib.import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise UnsupportedError(
            f"a picture needs matplotlib, which is missing ({error}): pip install 'fastjax[plot]'"
        ) from None
    return importlib.import_module("matplotlib")


def _title(plan: Plan) -> str:
    topology, bound = plan.topology, plan.lower_bound()
    text = f"{plan.scheduler}: {topology.servers} x {topology.devices_per_server} devices, "
    if plan.num_stages:
        text += f"{plan.num_stages} stage{'s' if plan.num_stages > 1 else ''}, "
    text += f"{plan.predicted_time() * 1e6:.4g} µs predicted"
    return text + (f", {plan.predicted_time() / bound:.2f} x the lower bound" if bound else "")


def _draw_traffic(plan: Plan, ax: Axes) -> None:
    """A heat map; square roots make the colours, so that small flows are seen beside large ones."""
    mpl = _matplotlib()
    servers, local = plan.topology.servers, plan.topology.devices_per_server
    by_device = plan.topology.num_devices <= _MOST_DEVICES_SHOWN
    cells = plan.traffic
    if not by_device:
        cells = cells.reshape(servers, local, servers, local).sum(axis=(1, 3))
    norm = mpl.colors.PowerNorm(0.5, vmin=0, vmax=max(1, int(cells.max())))
    image = ax.imshow(cells, cmap="Blues", norm=norm, interpolation="nearest")
    unit, count, width = ("server", servers, local if by_device else 1)
    if servers == 1:
        unit, count, width = "device", local, 1
    every = -(-count // _MOST_LABELS)
    shown = np.arange(0, count, every)
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


def _colours(servers: int) -> np.ndarray:
    """One for each server, shape (servers, 4)."""
    maps = _matplotlib().colormaps
    if servers <= 10:
        return maps["tab10"](np.arange(servers))
    return maps["turbo"](np.linspace(0.03, 0.97, servers))


def _draw_stages(plan: Plan, ax: Axes) -> None:
    servers = plan.topology.servers
    steps = steps_of(plan)
    detailed = servers <= _MOST_DETAILED_SERVERS
    colours = _colours(servers)
    if detailed:
        for phase, band in _BANDS.items():
            _add_bars(plan, steps, phase, band, colours, ax)
    else:
        _add_bars(plan, steps, SCALE_OUT, _WHOLE_LANE, colours, ax)
        for phase, lane in ((BALANCE, -2), (REDISTRIBUTE, servers + 1)):
            begin = steps.begin(phase, np.arange(plan.num_stages))
            _add_boxes(ax, begin, steps.seconds[phase], lane + 0.06, 0.88, _GREY)
            ax.text(-0.018, lane + 0.5, PHASES[phase], **_beside(ax), ha="right", va="center")
    for server in range(servers):
        ax.add_patch(
            _matplotlib().patches.Rectangle(
                (-0.012, server + 0.06), 0.008, 0.88, color=colours[server], **_beside(ax)
            )
        )
    _finish_stages(plan, steps, ax, detailed)


def _add_bars(
    plan: Plan, steps: Steps, phase: int, band: tuple[float, float], colours: np.ndarray, ax: Axes
) -> None:
    """What one phase has each server do: a bar for each other server that it is about."""
    shares = shares_of(plan, phase)
    top, height = band
    _add_boxes(
        ax,
        steps.begin(phase, shares.stage),
        shares.seconds,
        shares.server + top + height * shares.below,
        height * shares.share,
        colours[shares.other],
        alpha=1.0 if phase == SCALE_OUT else _PALE,
    )


def _add_boxes(
    ax: Axes, x: Any, width: Any, y: Any, height: Any, colour: Any, **options: Any
) -> None:
    x, width, y, height = np.broadcast_arrays(x, width, y, height)
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    boxes = np.moveaxis(corners, -1, 0) * [1e6, 1]
    # White edges tell bars apart; where there are many, edges of their colour keep them visible.
    ax.add_collection(
        _matplotlib().collections.PolyCollection(
            boxes,
            facecolors=colour,
            edgecolors="white" if len(boxes) < _MOST_EDGED_BARS else colour,
            linewidths=0.6 if len(boxes) < _MOST_EDGED_BARS else 0.2,
            **options,
        )
    )


def _beside(ax: Axes) -> dict[str, Any]:
    """Horizontally in parts of the axes, vertically in lanes, and outside too."""
    return {"transform": ax.get_yaxis_transform(), "clip_on": False}


def _finish_stages(plan: Plan, steps: Steps, ax: Axes, detailed: bool) -> None:
    servers, end = plan.topology.servers, float(steps.start[-1]) * 1e6
    done, bound = steps.end * 1e6, plan.lower_bound() * 1e6
    for start in steps.start[1:-1] * 1e6 if len(steps.start) < 60 else ():
        ax.axvline(start, color="0.85", lw=0.5, zorder=0)
    if done > end * (1 + 1e-9):
        ax.axvspan(end, done, color="0.93", zorder=0)
        if done > 1.03 * end:
            middle = (end + done) / 2
            ax.text(middle, servers / 2, "local", rotation=90, ha="center", va="center")
    ax.axvline(bound, color="black", lw=1, ls="--", zorder=3)
    ax.annotate(
        "lower bound",
        (bound, 1),
        xycoords=ax.get_xaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize="small",
    )
    every = -(-servers // (_MOST_LABELS + 4))
    shown = np.arange(0, servers, every)
    names = [f"server {server}" if detailed else str(server) for server in shown]
    ax.set_yticks(shown + 0.5, labels=names)
    ax.tick_params(axis="y", length=0, pad=9)
    extra = 0 if detailed else 2
    ax.set_ylim(servers + extra, -extra)
    ax.set_xlim(0, max(done, bound) * 1.01)
    ax.set_xlabel("µs after planning, in lock step")
    ax.set_ylabel("" if detailed else "from server", labelpad=28 if not detailed else 4)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    small = detailed and np.isin(plan.transfers["phase"], (BALANCE, REDISTRIBUTE)).any()
    ax.set_title(
        "scale-out stages of each server, in the colour of the receiving one"
        + ("\n(small: balance before them, redistribution after)" if small else ""),
        fontsize="medium",
        pad=18,
    )


def _draw_loads(plan: Plan, ax: Axes) -> None:
    """What devices send and receive, for plans without stages."""
    apart = np.where(np.eye(plan.topology.num_devices, dtype=bool), 0, plan.traffic)
    device = np.arange(plan.topology.num_devices)
    colours = _colours(2)
    for k, (rows, name) in enumerate(
        ((apart.sum(axis=1), "sends"), (apart.sum(axis=0), "receives"))
    ):
        ax.barh(device + 0.19 * (2 * k - 1), rows, height=0.36, color=colours[k], label=name)
    every = -(-len(device) // (_MOST_LABELS + 4))
    ax.set_yticks(device[::every], labels=[f"device {i}" for i in device[::every]])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(device) - 0.5, -0.5)
    ax.set_xlim(0, max(1, int(apart.sum(axis=1).max()), int(apart.sum(axis=0).max())) * 1.02)
    if not apart.any():
        ax.text(0.5, 0.5, "no rows", transform=ax.transAxes, ha="center", va="center")
    ax.set_xlabel("rows to and from other devices")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.set_title("no scale-out: nothing crosses servers", fontsize="medium", loc="left")
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


__all__ = ["draw_plan", "plot_plan"]
