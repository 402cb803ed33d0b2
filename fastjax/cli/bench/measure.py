"""Timing: repetitions of several things in turn, and what is read off them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

SLOW_SECONDS = 0.15
SLOW_ROUNDS = 7
SETTLE_SECONDS = 0.1


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Milliseconds of all repetitions of one thing, for the record."""
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    named = {"median": middle, "min": min(seconds), "p25": low, "p75": high, "max": max(seconds)}
    return {
        "runs": len(seconds),
        **{f"{name}_ms": round(float(each) * 1e3, 4) for name, each in named.items()},
        "all_ms": [round(each * 1e3, 4) for each in seconds],
    }


def median(seconds: Sequence[float]) -> float:
    """Middle repetition."""
    return float(np.median(seconds))


def seconds_of(run: Callable[[], object]) -> float:
    """Seconds that one run takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def interleave(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Times several things side by side: every round runs each of them once, in random order.

    What disturbs the machine for a while then disturbs all of them, so that ratios of medians stay
    fair. Things that take more than `SLOW_SECONDS` run in only `SLOW_ROUNDS` of the rounds, and are
    followed by a pause, since freeing their memory goes on behind their end. All should have run
    before, so that nothing is compiled here.

    Args:
      runs: what to time, by name; each must block until it is done.
      rounds: number of rounds.
      seed: of the order within rounds.

    Returns:
      Seconds of every repetition.
    """
    rng = np.random.default_rng(seed)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    slow = {name for name, run in runs.items() if seconds_of(run) > SLOW_SECONDS}
    slow_rounds = set(np.linspace(0, rounds - 1, min(rounds, SLOW_ROUNDS)).astype(int).tolist())
    names = list(runs)
    for number in range(rounds):
        for i in rng.permutation(len(names)):
            name = names[i]
            if name not in slow or number in slow_rounds:
                seconds[name].append(seconds_of(runs[name]))
                if name in slow:
                    time.sleep(SETTLE_SECONDS)
    return seconds
