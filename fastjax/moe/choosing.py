"""Whether tokens should cross to each server once, or once for each choice."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from fastjax import scheduler_traits
from fastjax.host.plan import make_plan
from fastjax.moe.servers import Servers
from fastjax.topology import Topology


@dataclasses.dataclass(frozen=True)
class Tokens:
    """What is known of the tokens of a device when a program is traced.

    Attributes:
      count: how many.
      top_k: choices of each.
      row_bytes: bytes of a row that goes to one expert.
      crossing_bytes: and of one that crosses once, with the numbers of its experts and weights.
    """

    count: int
    top_k: int
    row_bytes: int
    crossing_bytes: int


def crosses_once(servers: Servers, tokens: Tokens, scheduler: str) -> bool:
    """Whether the cost model predicts that it is faster if each expert is as popular as any other.

    Both are predicted with the scheduler that is to plan them: one exchange against one between
    servers and one inside them. The way back takes as long.
    """
    if servers.count == 1 or tokens.top_k == 1 or tokens.count == 0:
        return False
    once, each = predicted_times(servers.topology, servers.num_experts, tokens, scheduler)
    # In whole nanoseconds: processes must decide alike, and their hosts may round differently.
    return round(once * 1e9) < round(each * 1e9)


@functools.lru_cache(maxsize=256)
def predicted_times(
    topology: Topology, num_experts: int, tokens: Tokens, scheduler: str
) -> tuple[float, float]:
    """Seconds that a dispatch takes by the cost model: deduplicated, and not."""
    n, m = topology.servers, topology.devices_per_server

    def seconds(traffic: np.ndarray, on: Topology, name: str, row_bytes: int) -> float:
        return make_plan(traffic, on, scheduler=name, row_bytes=row_bytes).predicted_time()

    chosen = tokens.count * tokens.top_k
    each = _even(chosen, n * m)
    crossing = np.kron(
        np.full((n, n), round(tokens.count * hit_probability(n, num_experts, tokens.top_k))),
        np.eye(m, dtype=np.int64),
    ) * np.kron(1 - np.eye(n, dtype=np.int64), np.ones((m, m), np.int64))
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None)
    once = seconds(crossing, topology, scheduler, tokens.crossing_bytes)
    inside = seconds(_even(chosen, m), one, scheduler_traits.FALLBACK, tokens.row_bytes)
    return once + inside, seconds(each, topology, scheduler, tokens.row_bytes)


def hit_probability(servers: int, num_experts: int, top_k: int) -> float:
    """How likely a token has an expert on a server, if its choices are any different experts."""
    elsewhere = num_experts - num_experts // servers
    if top_k > elsewhere:
        return 1.0
    return 1 - math.comb(elsewhere, top_k) / math.comb(num_experts, top_k)


def _even(rows: int, devices: int) -> np.ndarray:
    """The traffic of devices that each send as many rows to each, of `rows` in all."""
    shares = np.diff(np.arange(devices + 1) * rows // devices)
    return np.stack([np.roll(shares, device) for device in range(devices)])


__all__ = ["Tokens", "crosses_once", "hit_probability", "predicted_times"]
