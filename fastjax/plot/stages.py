"""The stages of a plan, as they would be with barriers; and what devices send without any."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.plot.drawing import (
    MOST_LABELS,
    add_boxes,
    colours_of,
    every_so_many,
    mark_bound,
    matplotlib,
    without_frame,
)
from fastjax.schedule.flows import Flows
from fastjax.schedule.transfers import BALANCE, LOCAL, REDISTRIBUTE, SCALE_OUT
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Where in the track of its server each phase is drawn: from the top, and how high.
_BANDS = {BALANCE: (0.06, 0.16), SCALE_OUT: (0.25, 0.50), REDISTRIBUTE: (0.78, 0.16)}
_PALE = 0.5


@dataclasses.dataclass(frozen=True)
class Shares:
    """What each server does in each stage of a phase, by the other server that it is about.

    The server is the one that sends, or inside which rows move. The other one is where they are
    going, or, for redistribution, where they come from. All arrays have one entry for each.

    Attributes:
      stage, server, other: which.
      share: of the rows that the server moves in this stage; those of one stage sum to 1.
      below: the shares of the other servers before this one, summed.
      start, end: seconds at which the first of the rows flow, and the last have come.
    """

    stage: np.ndarray
    server: np.ndarray
    other: np.ndarray
    share: np.ndarray
    below: np.ndarray
    start: np.ndarray
    end: np.ndarray


def shares_of(plan: Schedule, flows: Flows, phase: int) -> Shares:
    """What each server does in the stages of one phase."""
    local, servers = plan.topology.devices_per_server, plan.topology.servers
    timed = flows.transfers
    moved = timed[(timed["phase"] == phase) & (timed["src"] != timed["dst"])]
    server = moved["src"] // local
    other = moved["origin" if phase == REDISTRIBUTE else "target"] // local
    key = (moved["stage"].astype(np.int64) * servers + server) * servers + other
    groups, index = np.unique(key, return_inverse=True)
    rows = np.bincount(index, weights=moved["rows"], minlength=len(groups))
    pairs, first, pair = np.unique(groups // servers, return_index=True, return_inverse=True)
    share = rows / np.bincount(pair, weights=rows, minlength=len(pairs))[pair]
    before = np.cumsum(share) - share
    start, end = np.full(len(groups), np.inf), np.zeros(len(groups))
    np.minimum.at(start, index, moved["start"])
    np.maximum.at(end, index, moved["end"])
    which = pairs[pair]
    return Shares(
        which // servers,
        which % servers,
        groups % servers,
        share,
        before - before[first][pair],
        start,
        end,
    )


def draw_stages(plan: Schedule, flows: Flows, ax: Axes) -> None:
    """A track for each server, and a bar for each server that it sends to in a stage.

    Args:
      plan: the plan.
      flows: its transfers, simulated.
      ax: where it is drawn.
    """
    servers = plan.topology.servers
    colours = colours_of(servers)
    for phase, band in _BANDS.items():
        _add_bars(shares_of(plan, flows, phase), band, colours, ax, faint=phase != SCALE_OUT)
    # Beside the axes, in parts of their width and in tracks.
    beside: Any = {"transform": ax.get_yaxis_transform(), "clip_on": False}
    for server in range(servers):
        ax.add_patch(
            matplotlib().patches.Rectangle(
                (-0.012, server + 0.06), 0.008, 0.88, color=colours[server], **beside
            )
        )
    _finish_stages(plan, flows, ax)


def barriers(plan: Schedule, flows: Flows) -> np.ndarray:
    """Seconds at which each scale-out stage is over everywhere."""
    sent, ends = flows.messages[flows.messages["phase"] == SCALE_OUT], np.zeros(plan.num_stages)
    np.maximum.at(ends, sent["stage"], sent["end"])
    return ends


def _add_bars(
    shares: Shares,
    band: tuple[float, float],
    colours: np.ndarray,
    ax: Axes,
    *,
    faint: bool,
) -> None:
    """What one phase has each server do: a bar for each other server that it is about.

    Where bars of two stages meet, the earlier one is on top.
    """
    top, height = band
    later_first = np.argsort(-shares.stage, kind="stable")
    shares = Shares(**{name: each[later_first] for name, each in vars(shares).items()})
    add_boxes(
        ax,
        shares.start * 1e6,
        (shares.end - shares.start) * 1e6,
        shares.server + top + height * shares.below,
        height * shares.share,
        (1 - _PALE * (1 - colours) if faint else colours)[shares.other],
    )


def _finish_stages(plan: Schedule, flows: Flows, ax: Axes) -> None:
    servers, messages = plan.topology.servers, flows.messages
    end = float(messages["end"][messages["phase"] != LOCAL].max(initial=0)) * 1e6
    done, bound = flows.end * 1e6, plan.lower_bound()
    for barrier in barriers(plan, flows) * 1e6 if plan.num_stages < 60 else ():
        ax.axvline(barrier, color="0.85", lw=0.5, zorder=0)
    if done > end * (1 + 1e-9):
        ax.axvspan(end, done, color="0.93", zorder=0)
        if done > 1.03 * end:
            middle = (end + done) / 2
            ax.text(middle, servers / 2, "local", rotation=90, ha="center", va="center")
    mark_bound(ax, bound)
    shown = every_so_many(servers, MOST_LABELS + 4)
    ax.set_yticks(shown + 0.5, labels=[f"server {server}" for server in shown])
    # Beside the colour of the server, whose width is a part of that of the axes.
    inches = ax.get_window_extent().width / ax.figure.dpi
    ax.tick_params(axis="y", length=0, pad=max(9, 0.012 * 72 * inches + 5))
    ax.set_ylim(servers, 0)
    ax.set_xlim(0, max(done, bound * 1e6) * 1.01)
    ax.set_xlabel("µs after planning, simulated with a barrier after each stage")
    without_frame(ax, "bottom")
    small = np.isin(plan.transfers["phase"], (BALANCE, REDISTRIBUTE)).any()
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
