"""What tokens choose if experts are popular by Zipf's law: a stand-in for skew that is not known.

The n-th most popular expert is chosen in proportion to 1 / n, or a power of it. Nothing is drawn at
random, and all arithmetic is of kinds that every host rounds alike: processes must find the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

_BISECTIONS = 64
_MOST_ODDS = 1e12
_DIGITS = 6


@functools.lru_cache(maxsize=16)
def chosen(num_experts: int, top_k: int, exponent: float = 1.0) -> tuple[float, ...]:
    """How likely each expert is among the k of a token, in an order that spreads popular ones.

    The odds of an expert are in proportion to its popularity, such that k are chosen on average.
    """
    if top_k >= num_experts:
        return (1.0,) * num_experts
    # Powers are the one thing that hosts may round differently, in digits that are cut off.
    rarity = [round(rank**exponent, _DIGITS) for rank in range(1, num_experts + 1)]
    low, high = 0.0, _MOST_ODDS
    for _ in range(_BISECTIONS):
        odds = (low + high) / 2
        many = math.fsum(odds / (rare + odds) for rare in rarity) > top_k
        low, high = (low, odds) if many else (odds, high)
    step = _spreading_step(num_experts)
    found = [0.0] * num_experts
    for rank, rare in enumerate(rarity):
        found[rank * step % num_experts] = high / (rare + high)
    return tuple(found)


def _spreading_step(count: int) -> int:
    """About the golden section of it, with which steps meet all numbers below it."""
    return next(s for s in range(max(1, count * 618 // 1000), 2 * count) if math.gcd(s, count) == 1)


def of_runs(likely: Sequence[float], runs: int) -> list[float]:
    """What equal runs of experts add up to: choices of a token in each."""
    length = len(likely) // runs
    return [math.fsum(likely[first : first + length]) for first in range(0, len(likely), length)]


def hits(choices: Sequence[float], top_k: int) -> list[float]:
    """How likely a token has any of its k choices in each of these, given how many it has there.

    As if it chose k times, and could choose the same expert again: up to 0.15 too low for the most
    popular.
    """
    return [1 - math.prod([1 - min(1.0, choice / top_k)] * top_k) for choice in choices]
