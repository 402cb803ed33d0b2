"""Whether tokens should cross to each server once, or once for each choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fastjax.chunking import popularity, prices
from fastjax.chunking.prices import Tokens
from fastjax.topology import Topology


def crosses_once(topology: Topology, num_experts: int, tokens: Tokens, scheduler: str) -> bool:
    """Whether the cost model predicts that it is faster, however popular experts are.

    It must be faster both if each expert is as popular as any other and if they are popular by
    Zipf's law. Both ways are predicted with the scheduler that is to plan them: one exchange
    against one between servers and one inside them. The way back takes as long.
    """
    if topology.servers == 1 or tokens.top_k == 1 or tokens.count == 0:
        return False

    def dispatch(traffic: Callable[..., list[np.ndarray]], *, deduplicated: bool) -> int:
        """In whole nanoseconds: processes must decide alike, and their hosts may round apart."""
        layer = topology, num_experts, tokens, scheduler
        parts = prices.predicted(traffic, *layer, deduplicated=deduplicated)
        return round((parts.planning + parts.out + parts.copies) * 1e9)

    return all(
        dispatch(traffic, deduplicated=True) < dispatch(traffic, deduplicated=False)
        for traffic in (prices.even, skewed)
    )


def skewed(
    topology: Topology, num_experts: int, tokens: Tokens, *, deduplicated: bool
) -> list[np.ndarray]:
    """As `prices.even`, if experts are popular by Zipf's law, in an order that spreads them."""
    n, m = topology.servers, topology.devices_per_server
    chosen = popularity.chosen(num_experts, tokens.top_k)
    of_device = popularity.of_runs(chosen, n * m)
    if not deduplicated:
        return [_alike(n * m, tokens.count, of_device)]
    hits = popularity.hits(popularity.of_runs(chosen, n), tokens.top_k)
    first = of_device.index(max(of_device)) // m * m
    inside = _alike(m, tokens.count * n, of_device[first : first + m])  # of the busiest device
    return [prices.over_own_nics(_alike(n, tokens.count, hits), m), inside]


def _alike(senders: int, tokens: int, shares: Sequence[float]) -> np.ndarray:
    """Rows of senders that all send these shares of as many tokens."""
    return np.tile(np.array([round(tokens * share) for share in shares], np.int64), (senders, 1))
