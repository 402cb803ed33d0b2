"""Timing: repetitions of several things in turn, and what is read off them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

import numpy as np

SLOW_SECONDS = 0.15
SLOW_ROUNDS = 7
SETTLE_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of every repetition of one thing."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Middle repetition."""
        return float(np.median(self.seconds))

    @property
    def fastest(self) -> float:
        """Shortest repetition."""
        return min(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Bounds of the middle half of the repetitions."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(low), float(high)

    def record(self) -> dict[str, object]:
        """Milliseconds, for the JSON record."""
        low, high = self.quartiles
        return {
            "runs": len(self.seconds),
            "median_ms": round(self.median * 1e3, 4),
            "min_ms": round(self.fastest * 1e3, 4),
            "p25_ms": round(low * 1e3, 4),
            "p75_ms": round(high * 1e3, 4),
            "max_ms": round(max(self.seconds) * 1e3, 4),
            "all_ms": [round(s * 1e3, 4) for s in self.seconds],
        }


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
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """Times several things side by side: every round runs each of them once, in random order.

    What disturbs the machine for a while then disturbs all of them, so that ratios of medians stay
    fair. Things that take more than `SLOW_SECONDS` run in only `SLOW_ROUNDS` of the rounds, and are
    followed by a pause, since freeing their memory goes on behind their end. All should have run
    before, so that nothing is compiled here.

    Args:
      runs: what to time, by name; each must block until it is done.
      rounds: number of rounds.
      seed: of the order within rounds.
      progress: called after every round.
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
        progress()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def algbw(traffic: np.ndarray, row_bytes: int, seconds: float) -> float:
    """GB/s as nccl-tests has it: the busiest device's bytes, sent or received, by the time."""
    busiest = max(traffic.sum(axis=0).max(), traffic.sum(axis=1).max())
    return float(busiest) * row_bytes / seconds / 1e9


def busbw(traffic: np.ndarray, row_bytes: int, seconds: float) -> float:
    """GB/s as nccl-tests has it: algbw without the share that stays on the device."""
    devices = traffic.shape[0]
    return algbw(traffic, row_bytes, seconds) * (devices - 1) / devices


def mean_bw(traffic: np.ndarray, row_bytes: int, seconds: float) -> float:
    """GB/s as the FAST paper has it: all bytes by devices and time."""
    return float(traffic.sum()) * row_bytes / traffic.shape[0] / seconds / 1e9


__all__ = ["Timing", "algbw", "busbw", "interleave", "mean_bw", "seconds_of"]
