"""The links of devices, in pictures of simulated exchanges."""

from __future__ import annotations

import numpy as np

from fastjax.plot.drawing import matplotlib
from fastjax.schedule.transfers import BALANCE, LOCAL, PHASES, REDISTRIBUTE, SCALE_OUT
from fastjax.schedule.views import TimedExchange

LINK_NAMES = {
    "scale_out_out": "NIC out",
    "scale_out_in": "NIC in",
    "scale_up_out": "scale-up out",
    "scale_up_in": "scale-up in",
}
"""What the links of a device are called, in the order in which they are drawn."""

PHASE_COLOURS = {
    LOCAL: "#bdbdbd",
    BALANCE: "#f08c1e",
    SCALE_OUT: "#2f6db3",
    REDISTRIBUTE: "#3a9a4c",
}
PHASE_NAMES = {LOCAL: "local", **PHASES}

# Blue to pink, so that no server looks like a phase of what moves inside servers.
_SERVER_COLOURS = (
    "#1f4e9e",
    "#7ab8e6",
    "#6a3d9a",
    "#e377c2",
    "#17a2b8",
    "#b39ddb",
    "#a50f6b",
    "#5c7cfa",
)


def messages_of(timeline: TimedExchange, link: str) -> np.ndarray:
    """The messages that cross this link of any device."""
    out = timeline.messages["phase"] == SCALE_OUT
    return timeline.messages[out if link.startswith("scale_out") else ~out]


def ends_of(link: str) -> tuple[str, str]:
    """The fields of a message that name the link's device, and the one at the other end."""
    return ("src", "dst") if link.endswith("_out") else ("dst", "src")


def server_colours(timeline: TimedExchange) -> np.ndarray:
    """The colour of each server, shape (servers, 4); the same for all where they are many."""
    servers = timeline.topology.servers
    given = _SERVER_COLOURS[:servers] if has_server_colours(timeline) else ()
    chosen = given or (PHASE_COLOURS[SCALE_OUT],) * servers
    return matplotlib().colors.to_rgba_array(chosen)


def has_server_colours(timeline: TimedExchange) -> bool:
    """Whether servers are few enough to tell them apart by colour."""
    return 2 < timeline.topology.servers <= len(_SERVER_COLOURS)


def colours(timeline: TimedExchange, messages: np.ndarray, link: str) -> np.ndarray:
    """Of messages: that of the server at the other end, or of the phase inside a server."""
    if link.startswith("scale_out"):
        other = messages[ends_of(link)[1]] // timeline.topology.devices_per_server
        return server_colours(timeline)[other]
    table = matplotlib().colors.to_rgba_array([PHASE_COLOURS[p] for p in range(4)])
    return table[messages["phase"]]
