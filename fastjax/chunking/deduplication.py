"""Whether tokens should cross to each server once, or once for each choice."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from fastjax.chunking import popularity, prices
from fastjax.chunking.prices import Price, Tokens
from fastjax.topology import Topology


def crosses_once(topology: Topology, num_experts: int, tokens: Tokens, scheduler: str) -> bool:
    """Whether the cost model predicts that it is faster, however popular experts are.

    It must be faster both if each expert is as popular as any other and if they are popular by
    Zipf's law. Both ways are predicted with the scheduler that is to plan them: one exchange
    against one between servers and one inside them. The way back takes as long.
    """
    if topology.servers == 1 or tokens.top_k == 1 or tokens.count == 0:
        return False
    work = topology, num_experts, tokens, scheduler
    return all(_is_less(*predict(*work)) for predict in (predicted_times, predicted_if_skewed))


def _is_less(once: float, each: float) -> bool:
    """In whole nanoseconds: processes must decide alike, and their hosts may round differently."""
    return round(once * 1e9) < round(each * 1e9)


def predicted_times(
    topology: Topology, num_experts: int, tokens: Tokens, scheduler: str
) -> tuple[float, float]:
    """Seconds that a dispatch takes by the cost model, for even experts: deduplicated, and not."""
    chosen = tokens.count * tokens.top_k
    rows = prices.crossing_rows(tokens.count, topology.servers, num_experts, tokens.top_k)
    crossing = prices.of_crossing(topology, rows, scheduler, tokens.crossing_bytes)
    inside = prices.of_inside(topology, chosen, tokens.row_bytes)
    each = prices.of_each_choice(topology, chosen, scheduler, tokens.row_bytes)
    return _whole(crossing) + _whole(inside), _whole(each)


@functools.lru_cache(maxsize=256)
def predicted_if_skewed(
    topology: Topology, num_experts: int, tokens: Tokens, scheduler: str
) -> tuple[float, float]:
    """The same for experts that are popular by Zipf's law, in an order that spreads them."""
    n, m = topology.servers, topology.devices_per_server
    chosen = popularity.chosen(num_experts, tokens.top_k)
    of_device = popularity.of_runs(chosen, n * m)
    hits = popularity.hits(popularity.of_runs(chosen, n), tokens.top_k)
    each = np.tile(_rows(tokens.count, of_device), (n * m, 1))
    servers = np.tile(_rows(tokens.count, hits), (n, 1)) * (1 - np.eye(n, dtype=np.int64))
    crossing = np.kron(servers, np.eye(m, dtype=np.int64))
    first = of_device.index(max(of_device)) // m * m
    inside = np.tile(_rows(tokens.count * n, of_device[first : first + m]), (m, 1))
    once = prices.price(crossing, topology, scheduler, tokens.crossing_bytes)
    copies = prices.inside(inside, topology, tokens.row_bytes)
    straight = prices.price(each, topology, scheduler, tokens.row_bytes)
    return _whole(once) + _whole(copies), _whole(straight)


def _rows(tokens: int, shares: Sequence[float]) -> np.ndarray:
    return np.array([round(tokens * share) for share in shares], np.int64)


def _whole(price: Price) -> float:
    return price.planning + price.exchange
