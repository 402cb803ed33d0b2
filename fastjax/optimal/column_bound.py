"""A lower bound for many servers, by column generation."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from fastjax.optimal.checks import Clock, scipy_module
from fastjax.optimal.cover import degree

_CLOSE = 1e-6


class _Column(NamedTuple):
    """A stage: its length, and the target of each server."""

    length: float
    target: np.ndarray


def column_bound(rows: np.ndarray, startup: Fraction, clock: Clock) -> Fraction:
    """What no cover costs less than: stages, each taken in parts, as a linear program.

    A stage of length u on a matching costs u + startup and carries at most min(u, rows) of each of
    its pairs. Prices for carrying a pair's rows such that no stage carries more worth than it
    costs make a lower bound: the price of all rows. Any prices will do after division by the worst
    stage's excess, which an assignment finds, so the bound is proved whatever the program's
    tolerance, and whenever time runs out.

    Args:
      rows: rows between servers; some are not zero.
      startup: rows that starting a stage costs.
      clock: when to stop.

    Returns:
      A bound of startup * stages + length, in rows.
    """
    fewest, largest = degree(rows), int(rows.max())
    # Beyond this startup the fewest stages are best, and the rest is linear in it.
    counted = min(startup, Fraction(fewest * largest))
    share = rows / largest
    bound = _best_price(share, float(counted / largest), clock)
    return Fraction(bound * (1 - 1e-12)) * largest + (startup - counted) * fewest


def _best_price(share: np.ndarray, startup: float, clock: Clock) -> float:
    columns = _shifted_pairs(share)
    best = 0.0
    while clock.left():
        prices, value = _prices(share, startup, columns, clock)
        if prices is None:
            break
        worst, new = _worst_stages(share, prices, startup)
        best = max(best, prices.sum() / worst)
        if not new or value - best < _CLOSE * value:
            break
        columns += new
    return best


def _shifted_pairs(share: np.ndarray) -> list[_Column]:
    """Stages to start from, which carry everything: server s sends to s + 1, to s + 2, ..."""
    source = np.arange(len(share))
    targets = [(source + k) % len(share) for k in range(1, len(share))]
    return [_Column(share[source, t].max() or 1.0, t) for t in targets]


def _prices(
    share: np.ndarray, startup: float, columns: list[_Column], clock: Clock
) -> tuple[np.ndarray | None, float]:
    """What carrying all rows of each pair is worth, and what the columns at hand make of it."""
    source, target = np.nonzero(share)
    amount = share[source, target]
    carried = np.array(
        [np.where(c.target[source] == target, np.minimum(c.length / amount, 1), 0) for c in columns]
    )
    result = scipy_module("optimize").linprog(
        [c.length + startup for c in columns],
        A_ub=-carried.T,
        b_ub=-np.ones(len(amount)),
        method="highs",
        options={"time_limit": clock.left()},
    )
    if result.status != 0:
        return None, 0.0
    prices = np.zeros_like(share)
    prices[source, target] = np.maximum(-result.ineqlin.marginals, 0)
    return prices, float(result.fun)


def _worst_stages(
    share: np.ndarray, prices: np.ndarray, startup: float
) -> tuple[float, list[_Column]]:
    """The largest worth of a stage over its cost, and stages worth more than they cost.

    For a given matching, worth less cost is concave and piecewise linear in the length, with
    breaks at the pairs' rows: no other lengths need a look.
    """
    assign = scipy_module("optimize").linear_sum_assignment
    worst, columns = 0.0, []
    for length in np.unique(share[share > 0]):
        worth = prices * np.minimum(length / np.where(share > 0, share, 1), 1)
        source, target = assign(worth, maximize=True)
        ratio = worth[source, target].sum() / (length + startup)
        worst = max(worst, ratio)
        if ratio > 1 + _CLOSE / 10:
            columns.append(_Column(length, target))
    return worst, columns
