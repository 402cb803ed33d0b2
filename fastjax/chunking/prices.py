"""What the exchanges of a layer take, priced by the cost model or by a simulation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from fastjax import scheduling
from fastjax.chunking.resources import Parts
from fastjax.host.plan import make_plan
from fastjax.topology import Topology

_WEIGHT_BYTES = 4


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


Price = tuple[float, float, float]
"""Seconds of planning an exchange, of the exchange, and of its way back by the same plan."""

Pricer = Callable[[np.ndarray, Topology, str, int, int], Price]
"""Prices an exchange: traffic, fabric, scheduler, and the bytes of a row out and back."""


def crossing_row_bytes(row_bytes: int, top_k: int, experts_of_server: int) -> int:
    """Bytes of a row that crosses once: its experts' numbers and float32 weights go with it."""
    number = np.min_scalar_type(experts_of_server).itemsize
    return row_bytes + top_k * (_WEIGHT_BYTES + number)


def exchanges(
    traffic: Sequence[np.ndarray], topology: Topology, tokens: Tokens, scheduler: str, price: Pricer
) -> Parts:
    """Dispatch and combine of a layer.

    Args:
      traffic: rows between all devices, one for each choice. Or, deduplicated, two matrices and
        more: rows that cross between servers, and then, for each server, those inside it, which all
        move at once. Of servers that are alike, one is enough.
      topology: the fabric.
      tokens: of a device.
      scheduler: that plans the first of these exchanges.
      price: of each.
    """
    row, (first, *inside) = tokens.row_bytes, traffic
    if not inside:
        planning, out, back = price(first, topology, scheduler, row, row)
        if topology.servers == 1:
            return Parts(planning, copies=out, sums=back)
        return Parts(planning, out=out, back=back)
    planning, out, back = price(first, topology, scheduler, tokens.crossing_bytes, row)
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None, placement=None)
    own = [price(each, one, scheduling.FALLBACK, row, row) for each in inside]
    planned, copies, sums = map(max, zip(*own, strict=True))
    return Parts(planning + planned, out=out, copies=copies, sums=sums, back=back)


def by_cost_model(
    traffic: np.ndarray, topology: Topology, scheduler: str, out_bytes: int, back_bytes: int
) -> Price:
    """As it is predicted; the way back like the same exchange of rows of its bytes."""
    plans = {
        size: make_plan(traffic, topology, scheduler=scheduler, row_bytes=size)
        for size in {out_bytes, back_bytes}
    }
    planning = {size: plan.planning_time() for size, plan in plans.items()}
    exchange = {size: plan.predicted_time() - planning[size] for size, plan in plans.items()}
    return planning[out_bytes], exchange[out_bytes], exchange[back_bytes]


@functools.lru_cache(maxsize=256)
def predicted(
    traffic: Callable[..., Sequence[np.ndarray]],
    topology: Topology,
    num_experts: int,
    tokens: Tokens,
    scheduler: str,
    *,
    deduplicated: bool,
) -> Parts:
    """What a layer's exchanges take by the cost model.

    Args:
      traffic: `even`, or another function like it.
      topology: the fabric.
      num_experts: of all devices together.
      tokens: of a device.
      scheduler: that plans the exchanges.
      deduplicated: whether a token crosses once to each server.
    """
    layer = traffic(topology, num_experts, tokens, deduplicated=deduplicated)
    return exchanges(layer, topology, tokens, scheduler, by_cost_model)


def even(
    topology: Topology, num_experts: int, tokens: Tokens, *, deduplicated: bool
) -> list[np.ndarray]:
    """The traffic, as `exchanges` takes it, if all experts are equally popular."""
    n, m, rows = topology.servers, topology.devices_per_server, tokens.count * tokens.top_k
    if not deduplicated:
        return [_spread(rows, n * m)]
    crossing = round(tokens.count * hit_probability(n, num_experts, tokens.top_k))
    return [over_own_nics(np.full((n, n), crossing), m), _spread(rows, m)]


def over_own_nics(servers: np.ndarray, devices: int) -> np.ndarray:
    """Rows that each device of a server sends to the one at its place in each other server."""
    others = servers * (1 - np.eye(len(servers), dtype=np.int64))
    return np.kron(others, np.eye(devices, dtype=np.int64))


def hit_probability(servers: int, num_experts: int, top_k: int) -> float:
    """How likely a token has an expert on a server, if its choices are any different experts."""
    elsewhere = num_experts - num_experts // servers
    if top_k > elsewhere:
        return 1.0
    return 1 - math.comb(elsewhere, top_k) / math.comb(num_experts, top_k)


def _spread(rows: int, devices: int) -> np.ndarray:
    """The traffic of devices that each send as many rows to each, of `rows` in all."""
    shares = np.diff(np.arange(devices + 1) * rows // devices)
    return np.stack([np.roll(shares, device) for device in range(devices)])
