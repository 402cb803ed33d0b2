"""Random traffic, the same for the same seed or drawn from a generator of yours, and its skew.

Skew comes in two kinds. FAST (arXiv 2505.09764) draws it for each pair of devices on its own, which
`pair_zipf` does. In Mixture-of-Experts layers it is the experts that are popular, with all senders
much alike, so that single receivers run hot: `expert_popularity`.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks

Popularity = Literal["zipf", "lognormal"]
Seed = int | np.random.Generator

# Above this, rows = round(share * total) is not exact in float64.
_MOST_ROWS = 2**53
# Bounds within which no power or exponential below over- or underflows to nothing.
_MOST_EXPONENT = 20
_MOST_SIGMA = 50
_LEAST_TILT, _MOST_TILT = 1e-6, 1e12


def zipf(count: int, exponent: float) -> np.ndarray:
    """Zipf's law: shares of `count` things, the r-th of them in proportion to 1 / r^exponent.

    Args:
      count: number of things, at least 1.
      exponent: from 0, where all shares are equal, to 20.

    Returns:
      float64, shape (count,), largest first; the sum is 1.

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    checks.integer("count", count, 1)
    checks.real("exponent", exponent, 0, _MOST_EXPONENT)
    weights = 1.0 / np.arange(1, count + 1) ** exponent
    return weights / weights.sum()


def uniform(devices: int, rows: int) -> np.ndarray:
    """Traffic without skew: each device sends each, itself included, rows / devices, within 1.

    Args:
      devices: number of devices.
      rows: rows that a device sends.

    Returns:
      Traffic, int64, shape (devices, devices). Where rows do not divide evenly, all senders give
      the rest to the same receivers.

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    _check_rows(devices, rows)
    return np.tile(round_shares(np.full(devices, 1 / devices), rows), (devices, 1))


def pair_zipf(
    devices: int,
    rows: int,
    *,
    exponent: float = 0.8,
    seed: Seed = 0,
) -> np.ndarray:
    """Skew by pair of devices, one reading of the traffic that FAST (arXiv 2505.09764) has.

    All pairs of a sender and a receiver, which may be the same device, have shares by `zipf` of
    devices * rows rows, in random order. Sizes that each pair drew for itself would be far milder
    at the same exponent.

    Args:
      devices: number of devices.
      rows: rows that a device sends on average.
      exponent: of Zipf's law; 0 is no skew, FAST mostly has 0.8.
      seed: of the order of pairs.

    Returns:
      Traffic, int64, shape (devices, devices), devices * rows in all.

    Raises:
      ArgumentError: an argument is out of bounds.
    """
    _check_rows(devices, rows)
    shares = np.random.default_rng(seed).permutation(zipf(devices**2, exponent))
    return round_shares(shares, devices * rows).reshape(devices, devices)


def expert_popularity(
    devices: int,
    rows: int,
    *,
    experts_per_device: int = 1,
    popularity: Popularity = "zipf",
    exponent: float = 0.8,
    sigma: float = 0.5,
    shuffle: bool = False,
    tilt: float | None = None,
    top_k: int = 1,
    seed: Seed = 0,
) -> np.ndarray:
    """Skew by expert: experts are popular or not, and all senders more or less agree on that.

    Expert e has share p_e of every sender's tokens: by `zipf`, expert 0 first, or in proportion to
    exp(sigma * z_e) with z_e standard normal. With `tilt`, sender i has shares drawn from
    Dirichlet(tilt * p) instead, whose mean is p and whose variance is p_e (1 - p_e) / (tilt + 1).
    Each sender then draws rows * top_k experts by its shares. Measured shares of real text have a
    Gini coefficient from 0.1 upward, and fit Zipf exponents of 0.4 to 0.8.

    Args:
      devices: number of devices; each holds as many experts, in order.
      rows: tokens of a device.
      experts_per_device: experts that a device holds.
      popularity: "zipf" or "lognormal".
      exponent: of Zipf's law.
      sigma: of the log-normal law; the Gini coefficient of many shares is erf(sigma / 2), 0.28 for
        the default.
      shuffle: give Zipf's shares to the experts in random order.
      tilt: how alike senders are, from 1e-6, where each has one expert of its own, upward; None for
        all alike.
      top_k: experts of a token. They are drawn one by one, so that they may be the same.
      seed: of the random numbers.

    Returns:
      Traffic, int64, shape (devices, devices); each row has rows * top_k.

    Raises:
      ArgumentError: an argument is out of bounds, or there is no such popularity.
    """
    _check_rows(devices, rows, top_k)
    experts = devices * checks.integer("experts_per_device", experts_per_device, 1)
    checks.real("sigma", sigma, 0, _MOST_SIGMA)
    if tilt is not None:
        checks.real("tilt", tilt, _LEAST_TILT, _MOST_TILT)
    rng = np.random.default_rng(seed)
    if popularity == "zipf":
        shares = zipf(experts, exponent)
        shares = rng.permutation(shares) if shuffle else shares
    elif popularity == "lognormal":
        logarithms = sigma * rng.standard_normal(experts)
        shares = np.exp(logarithms - logarithms.max())
        shares /= shares.sum()
    else:
        names = " or ".join(repr(name) for name in get_args(Popularity))
        raise ArgumentError(f"popularity must be {names}, got {popularity!r}.")
    if tilt is not None:
        # numpy refuses parameters of 0.
        shares = rng.dirichlet(np.maximum(tilt * shares, np.finfo(float).tiny), size=devices)
    counts = rng.multinomial(rows * top_k, shares, size=devices)  # by expert
    return counts.reshape(devices, devices, -1).sum(axis=2).astype(np.int64)


def _check_rows(devices: int, rows: int, top_k: int = 1) -> None:
    """Refuses numbers of devices, rows and experts of a token that make no matrix."""
    checks.integer("devices", devices, 1)
    checks.integer("rows", rows, 0)
    checks.integer("top_k", top_k, 1)
    if devices * rows * top_k > _MOST_ROWS:
        raise ArgumentError(
            f"{devices} devices with {rows * top_k} rows each are more than 2**53 rows."
        )


def round_shares(shares: np.ndarray, total: int) -> np.ndarray:
    """Integers that sum to total, each within one of its share of it."""
    edges = np.round(np.concatenate([[0.0], np.cumsum(shares)]) * total).astype(np.int64)
    edges[-1] = total  # the shares' sum is 1 but for rounding
    return np.diff(np.minimum(edges, total))


def gini(counts: Any) -> float:
    """The Gini coefficient: 0 where all counts are equal, towards 1 where one has everything.

    Half the mean difference of two counts, over all ordered pairs, divided by the mean count.

    Args:
      counts: numbers of 0 or more, of any shape; tokens of each expert, for one.

    Returns:
      From 0 to 1 - 1 / number of counts; 0 where all counts are 0.

    Raises:
      ArgumentError: there are no counts, or some is negative or not finite.
    """
    values = np.sort(np.asarray(counts, dtype=np.float64), axis=None)
    if not values.size or values[0] < 0 or not np.isfinite(values).all():
        raise ArgumentError("counts must be one number or more, each finite and 0 or more.")
    total = values.sum()
    if not total:
        return 0.0
    size = values.size
    order = 2 * np.arange(1, size + 1) - size - 1  # how many are smaller, minus how many larger
    return float(order @ values / (size * total))
