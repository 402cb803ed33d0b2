"""Who sends when, in a simulated exchange."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import add_boxes, legend, matplotlib, note, without_frame
from fastjax.schedule import (
    BALANCE,
    LOCAL,
    PHASES,
    REDISTRIBUTE,
    SCALE_OUT,
    TimedExchange,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_MOST_DEVICES = 8
_GAP = 0.5  # between devices, in tracks
_LATEST = 2.0**62  # 146 years: what comes later is drawn there
_PALEST = 0.3
_IDLE = "#fde3e0"
_MOST_LINES = 60
_MOST_EDGED = 4  # bars beside each other
_MOST_TEXTS = 400
_WIDEST = 90  # characters of a line above the narrowest figure
_LINK_NAMES = {
    "scale_out_out": "NIC out",
    "scale_out_in": "NIC in",
    "scale_up_out": "scale-up out",
    "scale_up_in": "scale-up in",
}
"""What the links of a device are called, in the order in which they are drawn."""

_PHASE_COLOURS = {
    LOCAL: "#bdbdbd",
    BALANCE: "#f08c1e",
    SCALE_OUT: "#2f6db3",
    REDISTRIBUTE: "#3a9a4c",
}


def plot_timeline(timeline: TimedExchange, devices: Sequence[int] | None = None) -> Figure:
    """Draws a simulated exchange, as `Timeline.plot` does.

    Args:
      timeline: from `fastjax.simulate`.
      devices: which to show; by default eight, the busiest of all servers in turn.

    Returns:
      The figure.

    Raises:
      ArgumentError: there is no such device, or none is given.
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    shown = busiest(timeline) if devices is None else _checked(timeline, devices)
    tracks = [link for link in _LINK_NAMES if len(_messages_of(timeline, link))]
    height = 1.8 + 0.27 * len(shown) * (len(tracks) + _GAP)
    figure = mpl.figure.Figure(figsize=(13, max(3.0, height)), layout="constrained")
    place = figure.add_subplot()
    if tracks:
        _draw_tracks(timeline, shown, tracks, place)
    else:
        note(place, "nothing moves between devices")
    place.set_title(_title(timeline, shown, devices is None), fontsize="medium", loc="left", pad=18)
    return figure


def busiest(timeline: TimedExchange) -> list[int]:
    """The devices with the busiest NICs, or links where no NIC is used, of all servers in turn."""
    nics, inside = (
        np.maximum(timeline.busy(f"{kind}_out"), timeline.busy(f"{kind}_in"))
        for kind in ("scale_out", "scale_up")
    )
    topology = timeline.topology
    rank = np.empty(topology.num_devices, np.int64)
    rank[np.lexsort((-inside, -nics))] = np.arange(topology.num_devices)
    # The first of each server before any second, as those of a server may well be alike.
    of_server = rank.reshape(topology.servers, topology.devices_per_server)
    place = of_server.argsort(axis=1).argsort(axis=1).ravel()
    return sorted(np.lexsort((rank, place))[:_MOST_DEVICES].tolist())


def _checked(timeline: TimedExchange, devices: Sequence[int]) -> list[int]:
    try:
        shown = [operator.index(device) for device in devices]
    except TypeError:
        shown = []
    count = timeline.topology.num_devices
    if not shown or not all(0 <= device < count for device in shown):
        raise ArgumentError(
            f"devices must be a sequence of numbers from 0 to {count - 1}, got {devices!r}."
        )
    return shown


def _draw_tracks(timeline: TimedExchange, shown: list[int], tracks: list[str], ax: Axes) -> None:
    right = max(timeline.completion_time, timeline.lower_bound) * 1e6 * 1.01 or 1.0
    texts: list[tuple[float, float, str]] = []
    for row, link in enumerate(tracks):
        messages = _messages_of(timeline, link)
        mine = _ends_of(link)[0]
        for place, device in enumerate(shown):
            top = place * (len(tracks) + _GAP) + row
            of_device = messages[messages[mine] == device]
            texts += _add_messages(timeline, of_device, link, top, right, ax)
    for x, y, text in texts[:_MOST_TEXTS]:
        ax.text(x, y, text, color="white", ha="center", va="center", fontsize=6)
    _name_tracks(timeline, shown, tracks, ax)
    _mark_stages(timeline, ax, right)
    _mark_idle(timeline, ax)
    _finish(timeline, ax, right)


def _add_messages(
    timeline: TimedExchange, messages: np.ndarray, link: str, top: float, right: float, ax: Axes
) -> list[tuple[float, float, str]]:
    """The bars of one track; returns texts for those that have room."""
    if not len(messages):
        return []
    track, tracks = _side_by_side(_in_ns(messages["start"]), _in_ns(messages["end"]))
    height = 0.86 / tracks
    y = top + 0.07 + track * height
    start, lasting = messages["start"] * 1e6, (messages["end"] - messages["start"]) * 1e6
    colours = _paled(timeline, messages, link, tracks)
    # White edges tell bars apart, but would make narrow ones look pale.
    wide = (lasting > 0.004 * right) & (tracks <= _MOST_EDGED)
    edges = np.where(wide[:, None], 1.0, colours)
    add_boxes(
        ax,
        start,
        lasting,
        y,
        height,
        colours,
        edgecolors=edges,
        linewidths=np.where(wide, 0.6, 0.2),
    )
    middle, ready = y + height / 2, messages["ready"] * 1e6
    ax.hlines(middle, ready, start, colors=colours.tolist(), lw=1)
    if not link.startswith("scale_out"):
        return []
    arrow, other = ("→", "dst") if link.endswith("_out") else ("←", "src")
    roomy = (lasting > 0.032 * right) & (tracks == 1)
    return [
        (float(start[i] + lasting[i] / 2), float(middle[i]), f"{arrow}{messages[other][i]}")
        for i in np.flatnonzero(roomy)
    ]


def _paled(
    timeline: TimedExchange, messages: np.ndarray, link: str, tracks: np.ndarray
) -> np.ndarray:
    """Colours, the paler the less of its part of the link's rate a message had on the whole."""
    rate = timeline.rates(link)[messages[_ends_of(link)[0]]]
    needed = messages["rows"] * timeline.row_bytes / rate
    lasted = np.maximum(messages["end"] - messages["start"], 1e-12)
    ink = np.clip(needed / lasted * tracks, _PALEST, 1)[:, None]
    table = matplotlib().colors.to_rgba_array([*_PHASE_COLOURS.values()])
    colours = table[messages["phase"]]
    colours[:, :3] = 1 - ink * (1 - colours[:, :3])
    return colours


def _name_tracks(timeline: TimedExchange, shown: list[int], tracks: list[str], ax: Axes) -> None:
    """What the tracks are, and the share of time that each would be busy at its full rate."""
    count, local = len(tracks), timeline.topology.devices_per_server
    whole = timeline.completion_time or 1.0
    places, names = [], []
    beside: Any = {"annotation_clip": False, "va": "center", "textcoords": "offset points"}
    beside["xycoords"] = ax.get_yaxis_transform()
    for place, device in enumerate(shown):
        top = place * (count + _GAP)
        places += [top + row + 0.5 for row in range(count)]
        names += [_LINK_NAMES[link] for link in tracks]
        name = f"device {device}" + f"\nserver {device // local}" * (timeline.topology.servers > 1)
        ax.annotate(name, (0, top + count / 2), (-66, 0), ha="right", fontsize="small", **beside)
        for row, link in enumerate(tracks):
            share = f"{timeline.busy(link)[device] / whole:.0%}"
            at = (1, top + row + 0.5)
            ax.annotate(share, at, (32, 0), ha="right", fontsize="x-small", **beside)
        if place:
            ax.axhline(top - _GAP / 2, color="0.8", lw=0.6, zorder=0)
    ax.annotate("busy", (1, -0.6), (32, 0), ha="right", fontsize="x-small", **beside)
    ax.set_yticks(places, labels=names, fontsize="x-small")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(shown) * (count + _GAP) - _GAP / 2, -1.1)


def _mark_stages(timeline: TimedExchange, ax: Axes, right: float) -> None:
    """A line where each scale-out stage ends, and its number before it where there is room."""
    sent = _messages_of(timeline, "scale_out_out")
    stages, index = np.unique(sent["stage"], return_inverse=True)
    if not 1 < len(stages) <= _MOST_LINES:
        return
    ends = np.zeros(len(stages))
    np.maximum.at(ends, index, sent["end"])
    before = float(sent["start"].min()) * 1e6
    ax.annotate(
        "stage", (0, -0.55), (-4, 0), textcoords="offset points", ha="right", va="center",
        fontsize="x-small", color="0.4", annotation_clip=False,
    )  # fmt: skip
    for stage, end in zip(stages.tolist(), ends * 1e6, strict=True):
        ax.axvline(end, color="0.75", lw=0.7, zorder=0.5)
        if end - before > 0.012 * right:
            ax.text(
                (before + end) / 2, -0.55, str(stage), ha="center", va="center",
                fontsize="x-small", color="0.4",
            )  # fmt: skip
        before = max(before, end)


def idle_spans(timeline: TimedExchange) -> list[tuple[float, float]]:
    """Seconds from and to which no NIC sends; none where nothing crosses servers."""
    sent = _messages_of(timeline, "scale_out_out")
    if not len(sent):
        return []
    sent = sent[np.argsort(sent["start"], kind="stable")]
    over = np.concatenate([[0.0], np.maximum.accumulate(sent["end"])])
    begin = np.concatenate([sent["start"], [timeline.completion_time]])
    long = begin - over > 1e-9
    return list(zip(over[long].tolist(), begin[long].tolist(), strict=True))


def _mark_idle(timeline: TimedExchange, ax: Axes) -> None:
    for start, end in idle_spans(timeline):
        ax.axvspan(start * 1e6, end * 1e6, color=_IDLE, lw=0, zorder=0)


def _finish(timeline: TimedExchange, ax: Axes, right: float) -> None:
    for name, seconds, style, side, shift in (
        ("done", timeline.completion_time, "-", "left", 3),
        ("lower bound", timeline.lower_bound, "--", "right", 0),
    ):
        if seconds:
            ax.axvline(seconds * 1e6, color="black", lw=1, ls=style, zorder=3)
            ax.annotate(
                name, (seconds * 1e6, 1), (shift, 3), xycoords=ax.get_xaxis_transform(),
                textcoords="offset points", ha=side, va="bottom", fontsize="small",
            )  # fmt: skip
    ax.set_xlim(0, right)
    ax.set_xlabel("µs after planning")
    without_frame(ax, "bottom")
    phases = np.unique(timeline.messages["phase"]).tolist()
    colours = [(PHASES[phase], _PHASE_COLOURS[phase]) for phase in phases]
    colours += [("no NIC sends", _IDLE)] * bool(idle_spans(timeline))
    inches = ax.get_window_extent().height / ax.figure.dpi
    legend(ax, colours, loc="upper center", bbox_to_anchor=(0.5, -0.42 / inches))


def _messages_of(timeline: TimedExchange, link: str) -> np.ndarray:
    """The messages that cross this link of any device."""
    out = timeline.messages["phase"] == SCALE_OUT
    return timeline.messages[out if link.startswith("scale_out") else ~out]


def _ends_of(link: str) -> tuple[str, str]:
    """The fields of a message that name the link's device, and the one at the other end."""
    return ("src", "dst") if link.endswith("_out") else ("dst", "src")


def _in_ns(seconds: ArrayLike) -> np.ndarray:
    """Whole nanoseconds: what ends when the next begins does so exactly."""
    return np.rint(np.minimum(np.asarray(seconds) * 1e9, _LATEST)).astype(np.int64)


def _side_by_side(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The narrow track in which each of these is drawn, and how many there are beside each other.

    What overlaps is in different tracks, as in a calendar: each takes the first track that is free.
    All that overlap, directly or through others, have as many tracks as any moment of theirs needs.

    Args:
      start: integers, shape (things,).
      end: integers, none before its start, shape (things,).

    Returns:
      Tracks, from 0, and numbers of tracks; both of shape (things,).
    """
    track, tracks = np.zeros((2, len(start)), np.int64)
    together: list[int] = []
    ends: list[int] = []  # of what is last in each track
    for i in np.lexsort((end, start)).tolist():
        if all(last <= start[i] for last in ends):
            tracks[together] = len(ends)
            together, ends = [], []
        track[i] = next((k for k, last in enumerate(ends) if last <= start[i]), len(ends))
        ends[track[i] : track[i] + 1] = [int(end[i])]
        together.append(i)
    tracks[together] = len(ends)
    return track, tracks


def _title(timeline: TimedExchange, shown: list[int], chosen: bool) -> str:
    """What was simulated, how long it took, and what was assumed of the fabric."""
    topology, bound, count = timeline.topology, timeline.lower_bound, timeline.topology.num_devices
    text = (
        f"{timeline.scheduler}, {topology.servers} x {topology.devices_per_server} devices: "
        f"{timeline.completion_time * 1e6:.4g} µs"
    )
    if bound:
        text += f", {timeline.completion_time / bound:.2f} x the lower bound"
    if timeline.planning_time:
        text += f"; {timeline.planning_time * 1e6:.4g} µs of planning before"
    text += f"\n{textwrap.fill(str(timeline.fabric), _WIDEST)}"
    if chosen and len(shown) < count:
        text += f"\nshown: {len(shown)} of {count} devices, the busiest of all servers in turn"
    return text
