"""Rates, read off times: robust lines, and how far repeated measurements would differ.

Exchanges in which every device sends `bytes` to one other take

    launch + latency + bytes / bandwidth

and the launch alone is what an exchange without rows takes. Of exchanges of equal bytes, those with
more partners take longer by what each transfer costs its device.

What disturbs a machine only ever makes an exchange longer, and large ones more often than small
ones. So what counts of an exchange's times is their lower quartile, which stays put until three
quarters of them are disturbed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from fastjax.cli.shared.measure import Timing

DRAWS = 500
QUARTILE = 25
PERCENTILES = (5, 95)
LEAST_FIT = 0.9


@dataclasses.dataclass(frozen=True)
class Rate:
    """What was found of one rate.

    Attributes:
      name: of `Topology`'s field.
      value: bytes/s or seconds; None where the times tell none.
      spread: where 90 % of repeated measurements would lie; None likewise.
      fit: how well the times lie on a line, as `fit_of_line` has it; None where it is not used.
      problem: why the value means nothing, if so; for people.
      nonsense: whether the times contradict the model, so that nothing may be stored.
    """

    name: str
    value: float | None = None
    spread: tuple[float, float] | None = None
    fit: float | None = None
    problem: str = ""
    nonsense: bool = False

    @property
    def usable(self) -> bool:
        """Whether it can be stored."""
        return self.value is not None and not self.problem


def theil_sen(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and intercept of the line through most of the points, outliers or not.

    The slope is the median of those through each two points (Theil 1950, Sen 1968), the intercept
    the median of what it leaves.

    Args:
      x: distinct values, shape (points,).
      y: any number of curves, shape (..., points).

    Returns:
      Two arrays of shape (...).
    """
    i, j = np.triu_indices(x.shape[0], 1)
    slope = np.median((y[..., j] - y[..., i]) / (x[j] - x[i]), axis=-1)
    return slope, np.median(y - slope[..., None] * x, axis=-1)


def fit_of_line(x: np.ndarray, y: np.ndarray) -> float:
    """How well y lies on the line of `theil_sen`: 1 for all of it, 0 or less for none of it.

    R² with medians of absolute values in place of means of squares, so that a size that went wrong
    counts no more than it does for the line; 0 where y does not vary.
    """
    slope, intercept = theil_sen(x, y)
    spread = float(np.median(np.abs(y - np.median(y))))
    left = float(np.median(np.abs(y - intercept - slope * x)))
    return 1 - (left / spread) ** 2 if spread else 0.0


def bandwidth_and_latency(
    fabric: str, idle: Timing, by_bytes: Mapping[int, Timing], seed: int = 0
) -> tuple[Rate, Rate]:
    """Rates of a fabric from one-to-one exchanges of several sizes.

    Args:
      fabric: "scale_up" or "scale_out".
      idle: the same exchange without rows.
      by_bytes: times by the bytes that each device sends; two sizes at least.
      seed: of the resampling.
    """
    x, y = _curves(by_bytes, seed)
    (launch,) = _quartiles([idle], seed + 1).T
    slope, intercept = theil_sen(x, y)
    fit = fit_of_line(x, y[0])
    name = f"{fabric}_bandwidth"
    low, high = _spread(slope)
    if min(low, slope[0]) <= 0:
        text = f"time does not grow with size, but by {slope[0] * 1e12:.3g} s for each TB"
        bandwidth = Rate(name, fit=fit, problem=text, nonsense=True)
    else:
        bandwidth = Rate(name, float(1 / slope[0]), (1 / high, 1 / low), fit)
        if fit < LEAST_FIT:
            text = f"times are on no line: fit {fit:.2f}, below {LEAST_FIT}"
            bandwidth = dataclasses.replace(bandwidth, problem=text, nonsense=True)
    return bandwidth, _small(f"{fabric}_latency", intercept - launch, fit)


def transfer_overhead(by_partners: Mapping[int, Timing], seed: int = 0) -> Rate:
    """Seconds for each transfer of a device, from exchanges of equal bytes to ever more partners.

    Args:
      by_partners: times by the number of partners; two numbers at least.
      seed: of the resampling.
    """
    x, y = _curves(by_partners, seed)
    return _small("transfer_overhead", theil_sen(x, y)[0], fit_of_line(x, y[0]))


def _small(name: str, draws: np.ndarray, fit: float) -> Rate:
    """A time that may well drown in noise, or be nothing."""
    low, high = _spread(draws)
    if low > 0:
        return Rate(name, float(draws[0]), (low, high), fit)
    return Rate(name, float(draws[0]), (low, high), problem="not above the noise")


def _curves(timings: Mapping[int, Timing], seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.array(sorted(timings), float)
    return x, _quartiles([timings[int(at)] for at in x], seed)


def _quartiles(timings: list[Timing], seed: int) -> np.ndarray:
    """Lower quartiles of each, then those of repetitions drawn anew; shape (1 + DRAWS, timings)."""
    rng = np.random.default_rng(seed)
    columns = []
    for timing in timings:
        seconds = np.array(timing.seconds)
        drawn = np.percentile(rng.choice(seconds, (DRAWS, seconds.size)), QUARTILE, axis=1)
        columns.append(np.concatenate([[np.percentile(seconds, QUARTILE)], drawn]))
    return np.stack(columns, axis=1)


def _spread(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws[1:], PERCENTILES)
    return float(low), float(high)


__all__ = ["Rate", "bandwidth_and_latency", "fit_of_line", "theil_sen", "transfer_overhead"]
