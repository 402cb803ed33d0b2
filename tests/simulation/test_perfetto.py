"""Traces for Perfetto, read back: every message is there, and no slice that Perfetto would drop."""

import gzip
import itertools
import json
from collections import defaultdict

import numpy as np
import pytest
from pictures import timeline_of

from fastjax import Topology, make_plan, simulate, traffic
from fastjax.schedule.transfers import SCALE_OUT

TRACKS = {
    "NIC out": ("scale_out", "src", "dst", "->"),
    "NIC in": ("scale_out", "dst", "src", "<-"),
    "scale-up out": ("scale_up", "src", "dst", "->"),
    "scale-up in": ("scale_up", "dst", "src", "<-"),
}
PHASES = ("local", "balance", "scale-out", "redistribute")
SCHEDULERS = ["fast", "spreadout", "rails", "direct"]


def simulated(scheduler="fast", servers=3, devices=4, **options):
    matrix = traffic.pair_zipf(servers * devices, 500, seed=2)
    topology = Topology(servers, devices)
    return simulate(make_plan(matrix, topology, scheduler=scheduler, row_bytes=4096), **options)


def trace_of(timeline, tmp_path):
    timeline.to_perfetto(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def names_of(events):
    """Names of processes by number, and of threads by both."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert len(threads) == sum(e["name"] == "thread_name" for e in events)
    return processes, threads


def slices_of(events):
    """Slices of messages, by the name of their thread."""
    processes, threads = names_of(events)
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and processes[event["pid"]] != "exchange":
            found[threads[event["pid"], event["tid"]]].append(event)
    return found


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_slices_are_the_messages(tmp_path, scheduler):
    timeline = simulated(scheduler)
    found = slices_of(trace_of(timeline, tmp_path))
    for name, (kind, mine, other, arrow) in TRACKS.items():
        sent = (timeline.messages["phase"] == SCALE_OUT) == (kind == "scale_out")
        for device in range(12):
            wanted = []
            for m in timeline.messages[sent & (timeline.messages[mine] == device)]:
                stage = f"stage {m['stage']} " if m["stage"] >= 0 else ""
                start, end = round(m["start"] * 1e9), round(m["end"] * 1e9)
                title = f"{stage}{arrow} device {m[other]}"
                wanted.append((start, end, title, PHASES[m["phase"]], int(m["rows"])))
            track = [
                event
                for thread, events in found.items()
                if thread.split(",")[0] == f"device {device} {name}"
                for event in events
            ]
            got = [
                (
                    round(e["ts"] * 1e3),
                    round((e["ts"] + e["dur"]) * 1e3),
                    e["name"],
                    e["args"]["phase"],
                    e["args"]["rows"],
                )
                for e in track
            ]
            assert sorted(got) == sorted(wanted)
            for event in track:
                assert event["args"]["bytes"] == event["args"]["rows"] * 4096
                speed = event["args"]["bytes"] / event["dur"] / 1e3
                np.testing.assert_allclose(event["args"]["GB/s"], speed, rtol=1e-5)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_slices_of_a_thread_never_overlap(tmp_path, scheduler):
    found = slices_of(trace_of(simulated(scheduler), tmp_path))
    for events in found.values():
        # As Perfetto reads them: to whole nanoseconds, start and duration apart.
        spans = sorted((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events)
        for (start, lasting), (later, _) in itertools.pairwise(spans):
            assert start + lasting <= later


def test_the_whole_exchange(tmp_path):
    timeline = simulated()
    events = trace_of(timeline, tmp_path)
    whole, bound = (
        next(e for e in events if e["ph"] == "X" and e["name"] == name)
        for name in ("exchange", "lower bound")
    )
    np.testing.assert_allclose(whole["dur"], timeline.completion_time * 1e6, atol=1e-3)
    np.testing.assert_allclose(bound["dur"], timeline.lower_bound * 1e6, atol=1e-3)
    assert whole["ts"] == bound["ts"] == 0
    assert whole["args"]["scheduler"] == "fast"
    assert whole["args"]["planning before (µs)"] == timeline.planning_time * 1e6


def test_by_hand(tmp_path):
    rows = [
        (0, -1, 0, 1, 500, 0.0, 1e-6, 3e-6),
        (2, 4, 0, 2, 1000, 0.0, 1e-6, 2e-6),
        (2, 5, 0, 2, 0, 2e-6, 2e-6, 2e-6),
    ]
    topology = Topology(2, 2, scale_up_bandwidth=1e9, scale_out_bandwidth=1e9)
    events = trace_of(timeline_of(rows, topology), tmp_path)
    found = slices_of(events)
    assert {name: [(e["name"], e["ts"], e["dur"]) for e in es] for name, es in found.items()} == {
        "device 0 NIC out": [("stage 4 -> device 2", 1, 1), ("stage 5 -> device 2", 2, 0)],
        "device 2 NIC in": [("stage 4 <- device 0", 1, 1), ("stage 5 <- device 0", 2, 0)],
        "device 0 scale-up out": [("-> device 1", 1, 2)],
        "device 1 scale-up in": [("<- device 0", 1, 2)],
    }
    first, nothing = found["device 0 NIC out"]
    assert first["args"] == {
        "phase": "scale-out",
        "stage": 4,
        "rows": 1000,
        "bytes": 1000,
        "GB/s": 1,
        "ready (µs)": 0,
    }
    assert nothing["args"]["GB/s"] is None


def test_names_in_gz_are_compressed(tmp_path):
    timeline = simulated()
    timeline.to_perfetto(tmp_path / "trace.json.gz")
    read = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert read["traceEvents"] == trace_of(timeline, tmp_path)
