"""How busy the links of devices are in a simulated exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot import links
from fastjax.plot.drawing import add_boxes, every_so_many, matplotlib, note, without_frame
from fastjax.schedule.views import TimedExchange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_TITLES = {"scale_out": "NICs", "scale_up": "links inside servers"}


def plot_shares(timeline: TimedExchange, ax: Sequence[Axes] | None = None) -> Figure:
    """Draws how busy links are, as `Timeline.plot_loads` does.

    Args:
      timeline: from `fastjax.simulate`.
      ax: two axes to draw into, for NICs and for links inside servers; by default those of a new
        figure.

    Returns:
      The figure.

    Raises:
      ArgumentError: ax is not two axes.
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    above = ""
    if ax is None:
        width = float(np.clip(2 + 0.2 * timeline.topology.num_devices, 7, 13))
        figure = mpl.figure.Figure(figsize=(width, 6), layout="constrained")
        ax = figure.subplots(2, 1, sharex=True)
        figure.suptitle(links.in_words(timeline), fontsize="medium")
    else:
        above = f"{links.assumed(timeline)}\n"
    axes = list(np.ravel(np.asarray(ax, dtype=object)))
    if len(axes) != len(_TITLES):
        raise ArgumentError(f"ax must be two axes, got {len(axes)}.")
    for kind, place in zip(_TITLES, axes, strict=True):
        _draw_links(timeline, kind, place, f"{above}{_TITLES[kind]}")
        above = ""
    figure: Any = axes[0].figure
    return figure


def shares_by_phase(timeline: TimedExchange, link: str) -> dict[int, np.ndarray]:
    """By phase: the share of the time that a link of each device would need at its full rate."""
    messages, mine = links.messages_of(timeline, link), links.ends_of(link)[0]
    second = timeline.row_bytes / timeline.rates(link) / (timeline.completion_time or 1.0)
    shares = {}
    for phase in np.unique(messages["phase"]).tolist():
        part = messages[messages["phase"] == phase]
        rows = np.bincount(part[mine], weights=part["rows"], minlength=len(second))
        shares[phase] = rows * second
    return shares


def _draw_links(timeline: TimedExchange, kind: str, ax: Axes, title: str) -> None:
    """Upwards what a link sends, downwards what it receives; phases on top of each other."""
    devices, local = timeline.topology.num_devices, timeline.topology.devices_per_server
    named: dict[int, Any] = {}
    highest = 0.0
    for way, sign in (("out", 1), ("in", -1)):
        below = np.zeros(devices)
        for phase, share in shares_by_phase(timeline, f"{kind}_{way}").items():
            colour = links.PHASE_COLOURS[phase]
            bottom = sign * below
            add_boxes(
                ax, np.arange(devices) - 0.42, 0.84, bottom, sign * share, colour, edgecolors="none"
            )
            named[phase] = matplotlib().patches.Patch(color=colour, label=links.PHASE_NAMES[phase])
            below += share
        highest = max(highest, float(below.max()))
    ax.set_title(title, fontsize="medium", loc="left")
    if not highest:
        note(
            ax, "nothing crosses servers" if kind == "scale_out" else "nothing moves inside servers"
        )
        return
    _finish(ax, devices, local, max(1.0, highest))
    if len(named) > 1:
        ax.legend(handles=list(named.values()), **_ABOVE, ncols=len(named))


_ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1, 1),
    "frameon": False,
    "borderaxespad": 0.1,
    "fontsize": "small",
}


def _finish(ax: Axes, devices: int, local: int, top: float) -> None:
    for edge in np.arange(1, devices // local) * local - 0.5:
        ax.axvline(edge, color="0.85", lw=0.6, zorder=0)
    for level in (-1, 1):
        ax.axhline(level, color="0.6", lw=0.6, ls=":", zorder=0)
    ax.axhline(0, color="black", lw=0.8)
    ax.set_xlim(-0.7, devices - 0.3)
    ax.set_ylim(-1.05 * top, 1.05 * top)
    ax.set_yticks([-1, -0.5, 0, 0.5, 1])
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.0%}")
    shown = every_so_many(devices, 33)
    ax.set_xticks(shown, labels=[str(device) for device in shown])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("device")
    ax.label_outer()
    ax.set_ylabel("receives      sends")
    without_frame(ax, "left")


__all__ = ["plot_shares", "shares_by_phase"]
