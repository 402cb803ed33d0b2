"""What a program does over time: when experts of a server work, and how fast its NICs send."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from emulated_cluster.fabric import Fabric
from emulated_cluster.worker import Barrier, sent, timed

EVERY = 0.005
"""Seconds between two looks at what NICs have sent."""
BIN = 0.02
"""Seconds that a rate is the mean of: NICs of 12.5 Mbit/s send three frames of 9000 bytes then."""

PROMPT = 0.001
"""Seconds that a look may take: after a longer one, nobody knows when NICs had sent so much."""

Span = tuple[float, float]
Samples = list[tuple[float, list[int]]]


def nearest(ratios: Sequence[float]) -> float:
    """The ratio of which timelines are recorded: there, chunks have the most to gain."""
    return min(ratios, key=lambda ratio: abs(ratio - 1))


@contextlib.contextmanager
def sampled(read: Callable[[], list[int]], every: float = EVERY) -> Generator[Samples]:
    """A thread reads counters now and then, until the end, where it reads them once more."""
    samples: Samples = []
    over = threading.Event()

    def sample() -> None:
        ended = False
        while not ended:
            ended = over.is_set()
            begin, counts, end = time.monotonic(), read(), time.monotonic()
            if ended or end - begin < PROMPT:
                samples.append((end, counts))
            over.wait(every)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def recorded(
    fabric: Fabric, barrier: Barrier, spans: list[Span], run: Callable[[], None]
) -> dict[str, Any]:
    """One run as this process sees it, by the machine's clock.

    Args:
      fabric: whose NICs are looked at.
      barrier: at which processes meet before the run, and after it.
      spans: where experts put when they began and ended.
      run: the program.
    """
    spans.clear()
    with sampled(lambda: sent(fabric).tolist()[: fabric.rails]) as samples:
        times = timed(fabric, barrier, run)
    seen = {"start": times["start"], "end": times["end"]}
    return {**seen, "spans": sorted(spans), "samples": samples}


def merged(
    ratio: float, program: str, rate: float, parts: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The timeline of each server, in seconds from the first start of any process.

    Args:
      ratio: of experts' time and exchanges' time.
      program: its name.
      rate: of a NIC, in bit/s.
      parts: what `recorded` returned in each process.
    """
    first = min(part["start"] for part in parts)
    count = math.ceil((max(part["end"] for part in parts) - first) / BIN)
    edges = first + BIN * np.arange(count + 1)
    return [
        {
            "ratio": ratio,
            "program": program,
            "server": server,
            "end_s": round(part["end"] - first, 4),
            "experts_s": [[round(at - first, 4) for at in span] for span in part["spans"]],
            "bin_s": BIN,
            "nics_in_use": in_use(part["samples"], edges, rate),
        }
        for server, part in enumerate(parts)
    ]


def in_use(samples: Samples, edges: np.ndarray, rate: float) -> list[list[float]]:
    """What each NIC sends between edges, as a share of what it could send."""
    times = [at for at, _ in samples]
    counters = np.array([counts for _, counts in samples], float)
    could = np.diff(edges) * rate / 8
    return [
        np.round(np.diff(np.interp(edges, times, counter)) / could, 3).tolist()
        for counter in counters.T
    ]
