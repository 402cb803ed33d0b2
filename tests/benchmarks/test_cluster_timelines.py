"""benchmarks/emulated_cluster overlap --timelines: what processes note, and what is made of it."""

import threading
from typing import Any

import numpy as np
import pytest
from emulated_cluster import overlap, timelines
from emulated_cluster.overlap_worker import Processor

RATE = 8000.0  # 20 bytes in a bin


def part(start: float, spans: list[timelines.Span]) -> dict[str, Any]:
    """What a process has recorded: two NICs, of which one sends at line rate for two bins."""
    counts = [(0.0, [7, 100]), (1.0, [7, 100]), (1.04, [47, 100]), (2.0, [47, 100])]
    return {"start": start, "end": 1.05, "spans": spans, "samples": counts}


def test_times_are_from_the_first_start():
    parts = [part(1.0, [(1.01, 1.02), (1.01004, 1.03)]), part(0.98, [])]
    first, second = timelines.merged(1.0, "8", RATE, parts)
    common = {"ratio": 1.0, "program": "8", "end_s": 0.07, "bin_s": timelines.BIN}
    sent = [[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert first == common | {
        "server": 0,
        "experts_s": [[0.03, 0.04], [0.03, 0.05]],
        "nics_in_use": sent,
    }
    assert second == common | {"server": 1, "experts_s": [], "nics_in_use": sent}


def test_bytes_between_two_looks_are_spread_evenly():
    edges = 0.02 * np.arange(4)
    assert timelines.in_use([(0.0, [0]), (0.04, [20])], edges, RATE) == [[0.5, 0.5, 0.0]]


def test_timelines_are_those_of_programs_that_recorded_them():
    results = [
        {"1.0": {"1": {"timeline": part(1.0, [])}, "chosen": {}}, "2.0": {"1": {}}}
        for _ in range(2)
    ]
    found = overlap._timelines(results, RATE)
    assert [(each["ratio"], each["program"], each["server"]) for each in found] == [
        (1.0, "1", 0),
        (1.0, "1", 1),
    ]


def test_one_ratio_is_recorded():
    assert timelines.nearest([0.5, 1.0, 2.0]) == 1.0
    assert timelines.nearest([2.0, 4.0]) == 2.0


def test_counters_are_read_until_the_end():
    counts = [0]
    with timelines.sampled(lambda: list(counts)) as samples:
        counts[0] = 3
    assert samples[-1][1] == [3]
    times = [at for at, _ in samples]
    assert times == sorted(times)


def test_nothing_reads_when_a_program_has_failed():
    before = threading.active_count()
    with pytest.raises(ValueError, match="failed"), timelines.sampled(lambda: [0]) as samples:
        raise ValueError("failed")
    assert samples
    assert threading.active_count() == before


def test_a_processor_notes_when_it_works():
    processor = Processor(0.001)
    for _ in range(2):
        processor.work(3, 1)
    (first, ended), (second, last) = processor.spans
    assert first + 0.003 <= ended <= second <= last - 0.003
