"""Simulated exchanges as traces that Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastjax.plot.links import LINK_NAMES, PHASE_NAMES, ends_of, messages_of
from fastjax.plot.tracks import in_ns, side_by_side
from fastjax.schedule.views import TimedExchange
from fastjax.traffic.text import FilePath, open_for_writing

Event = dict[str, Any]

_EXCHANGE = 1  # the process of the exchange as a whole; 0 is nobody's, in Perfetto
_FIRST_SERVER = 2


def write(timeline: TimedExchange, path: FilePath) -> None:
    """Writes the trace, as `Timeline.to_perfetto` does."""
    with open_for_writing(path) as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        for number, event in enumerate(events(timeline)):
            file.write(",\n" * bool(number) + json.dumps(event))
        file.write("\n]}\n")


def events(timeline: TimedExchange) -> Iterator[Event]:
    """All events of the trace, in the Trace Event Format of Chrome: times are µs.

    Perfetto drops slices of a thread that overlap and do not nest, so that a link has as many
    threads as messages share it. Times are whole nanoseconds, as there, so that none overlap by
    being rounded.
    """
    yield from _whole(timeline)
    local = timeline.topology.devices_per_server
    for server in range(timeline.topology.servers):
        yield _name("process", _FIRST_SERVER + server, 0, f"server {server}")
    sent = {link: _by_device(timeline, link) for link in LINK_NAMES}
    thread = 0
    for device in range(timeline.topology.num_devices):
        process = _FIRST_SERVER + device // local
        for link, name in LINK_NAMES.items():
            messages = sent[link].get(device)
            if messages is None:
                continue
            track, _ = side_by_side(in_ns(messages["start"]), in_ns(messages["end"]))
            for number in range(int(track.max()) + 1):
                thread += 1
                more = f", {number + 1}" if number else ""
                yield _name("thread", process, thread, f"device {device} {name}{more}")
                yield from _slices(timeline, messages[track == number], link, process, thread)


def _by_device(timeline: TimedExchange, link: str) -> dict[int, np.ndarray]:
    """The messages of a link of each device that has any, in the order in which they start."""
    messages, mine = messages_of(timeline, link), ends_of(link)[0]
    messages = messages[np.lexsort((messages["end"], messages["start"], messages[mine]))]
    devices, first = np.unique(messages[mine], return_index=True)
    parts = np.split(messages, first[1:])
    return dict(zip(devices.tolist(), parts, strict=False))


def _whole(timeline: TimedExchange) -> Iterator[Event]:
    """The exchange as a whole, and its lower bound below it."""
    facts = {
        "scheduler": timeline.scheduler,
        "fabric": str(timeline.fabric),
        "row bytes": timeline.row_bytes,
        "planning before (µs)": timeline.planning_time * 1e6,
    }
    yield _name("process", _EXCHANGE, 0, "exchange")
    spans = (("exchange", timeline.completion_time), ("lower bound", timeline.lower_bound))
    for thread, (name, seconds) in enumerate(spans, 1):
        yield _name("thread", _EXCHANGE, thread, name)
        end = int(in_ns(seconds))
        yield _slice(name, "exchange", _EXCHANGE, thread, 0, end, facts if thread == 1 else {})


def _slices(
    timeline: TimedExchange, messages: np.ndarray, link: str, process: int, thread: int
) -> Iterator[Event]:
    """A slice for each message of one track."""
    arrow = "->" if link.endswith("_out") else "<-"
    fields = ["phase", "stage", ends_of(link)[1], "rows", "ready"]
    starts, ends = in_ns(messages["start"]).tolist(), in_ns(messages["end"]).tolist()
    for message, start, end in zip(messages[fields].tolist(), starts, ends, strict=True):
        number, stage, other, rows, ready = message
        phase, moved = PHASE_NAMES[number], rows * timeline.row_bytes
        arguments = {
            "phase": phase,
            "stage": stage,
            "rows": rows,
            "bytes": moved,
            "GB/s": round(moved / (end - start), 6) if end > start else None,
            "ready (µs)": round(ready * 1e6, 6),
        }
        name = f"{arrow} device {other}" if stage < 0 else f"stage {stage} {arrow} device {other}"
        yield _slice(name, phase, process, thread, start, end, arguments)


def _slice(
    name: str, category: str, process: int, thread: int, start: int, end: int, arguments: Event
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": arguments,
    }


def _name(what: str, process: int, thread: int, name: str) -> Event:
    """What Perfetto calls a process or a thread."""
    event = {"ph": "M", "name": f"{what}_name", "pid": process, "args": {"name": name}}
    return event | {"tid": thread} if what == "thread" else event


__all__ = ["events", "write"]
