"""The stages of a plan in lock step, and what devices send where nothing is staged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import (
    MOST_LABELS,
    add_boxes,
    beside,
    colours_of,
    every_so_many,
    mark_bound,
    matplotlib,
    without_frame,
)
from fastjax.schedule.steps import (
    BALANCE,
    PHASES,
    REDISTRIBUTE,
    SCALE_OUT,
    Steps,
    shares_of,
    steps_of,
)
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_DETAILED_SERVERS = 12  # above, what moves inside servers has one track for all of them
# Where in the track of its server each phase is drawn: from the top, and how high.
_BANDS = {BALANCE: (0.06, 0.16), SCALE_OUT: (0.25, 0.50), REDISTRIBUTE: (0.78, 0.16)}
_WHOLE_TRACK = (0.06, 0.88)
_PALE = 0.5
_GREY = "0.6"


def draw_stages(plan: Schedule, ax: Axes) -> None:
    """The stages in lock step: a track for each server, a bar for each server that it sends to."""
    servers = plan.topology.servers
    steps = steps_of(plan)
    detailed = servers <= _MOST_DETAILED_SERVERS
    colours = colours_of(servers)
    if detailed:
        for phase, band in _BANDS.items():
            _add_bars(plan, steps, phase, band, colours, ax)
    else:
        _add_bars(plan, steps, SCALE_OUT, _WHOLE_TRACK, colours, ax)
        for phase, track in ((BALANCE, -2), (REDISTRIBUTE, servers + 1)):
            begin = steps.begin(phase, np.arange(plan.num_stages))
            lasting = steps.seconds[phase] * 1e6
            add_boxes(ax, begin * 1e6, lasting, track + 0.06, 0.88, _GREY)
            ax.text(-0.018, track + 0.5, PHASES[phase], **beside(ax), ha="right", va="center")
    for server in range(servers):
        ax.add_patch(
            matplotlib().patches.Rectangle(
                (-0.012, server + 0.06), 0.008, 0.88, color=colours[server], **beside(ax)
            )
        )
    _finish_stages(plan, steps, ax, detailed)


def _add_bars(
    plan: Schedule,
    steps: Steps,
    phase: int,
    band: tuple[float, float],
    colours: np.ndarray,
    ax: Axes,
) -> None:
    """What one phase has each server do: a bar for each other server that it is about."""
    shares = shares_of(plan, phase)
    top, height = band
    add_boxes(
        ax,
        steps.begin(phase, shares.stage) * 1e6,
        shares.seconds * 1e6,
        shares.server + top + height * shares.below,
        height * shares.share,
        colours[shares.other],
        alpha=1.0 if phase == SCALE_OUT else _PALE,
    )


def _finish_stages(plan: Schedule, steps: Steps, ax: Axes, detailed: bool) -> None:
    servers, end = plan.topology.servers, float(steps.start[-1]) * 1e6
    done, bound = steps.end * 1e6, plan.lower_bound()
    for start in steps.start[1:-1] * 1e6 if len(steps.start) < 60 else ():
        ax.axvline(start, color="0.85", lw=0.5, zorder=0)
    if done > end * (1 + 1e-9):
        ax.axvspan(end, done, color="0.93", zorder=0)
        if done > 1.03 * end:
            middle = (end + done) / 2
            ax.text(middle, servers / 2, "local", rotation=90, ha="center", va="center")
    mark_bound(ax, bound)
    shown = every_so_many(servers, MOST_LABELS + 4)
    names = [f"server {server}" if detailed else str(server) for server in shown]
    ax.set_yticks(shown + 0.5, labels=names)
    # Beside the colour of the server, whose width is a part of that of the axes.
    inches = ax.get_window_extent().width / ax.figure.dpi
    ax.tick_params(axis="y", length=0, pad=max(9, 0.012 * 72 * inches + 5))
    extra = 0 if detailed else 2
    ax.set_ylim(servers + extra, -extra)
    ax.set_xlim(0, max(done, bound * 1e6) * 1.01)
    ax.set_xlabel("µs after planning, in lock step")
    ax.set_ylabel("" if detailed else "from server", labelpad=28 if not detailed else 4)
    without_frame(ax, "bottom")
    small = detailed and np.isin(plan.transfers["phase"], (BALANCE, REDISTRIBUTE)).any()
    ax.set_title(
        "scale-out stages of each server, in the colour of the receiving one"
        + ("\n(small: balance before them, redistribution after)" if small else ""),
        fontsize="medium",
        pad=18,
    )


def draw_exchanged(plan: Schedule, ax: Axes) -> None:
    """What devices send to others and receive, for plans of which nothing crosses servers."""
    apart = np.where(np.eye(plan.topology.num_devices, dtype=bool), 0, plan.traffic)
    device = np.arange(plan.topology.num_devices)
    colours = colours_of(2)
    for k, (rows, name) in enumerate(
        ((apart.sum(axis=1), "sends"), (apart.sum(axis=0), "receives"))
    ):
        ax.barh(device + 0.19 * (2 * k - 1), rows, height=0.36, color=colours[k], label=name)
    shown = every_so_many(len(device), MOST_LABELS + 4)
    ax.set_yticks(shown, labels=[f"device {i}" for i in shown])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(device) - 0.5, -0.5)
    ax.set_xlim(0, max(1, int(apart.sum(axis=1).max()), int(apart.sum(axis=0).max())) * 1.02)
    if not apart.any():
        ax.text(0.5, 0.5, "no rows", transform=ax.transAxes, ha="center", va="center")
    ax.set_xlabel("rows to and from other devices")
    without_frame(ax, "bottom")
    ax.set_title("no scale-out: nothing crosses servers", fontsize="medium", loc="left")
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)


__all__ = ["draw_exchanged", "draw_stages"]
