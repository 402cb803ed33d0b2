"""What the parts of a layer take by the cost model, where all experts are equally popular."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from fastjax import scheduling
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


@dataclasses.dataclass(frozen=True)
class Price:
    """Seconds of one exchange.

    Attributes:
      planning: on the host, before it.
      exchange: from the first row to the last.
    """

    planning: float
    exchange: float


def crossing_row_bytes(row_bytes: int, top_k: int, experts_of_server: int) -> int:
    """Bytes of a row that crosses once: its experts' numbers and float32 weights go with it."""
    number = np.min_scalar_type(experts_of_server).itemsize
    return row_bytes + top_k * (_WEIGHT_BYTES + number)


@functools.lru_cache(maxsize=256)
def of_each_choice(topology: Topology, rows: int, scheduler: str, row_bytes: int) -> Price:
    """One exchange of as many rows of each device, a row for each choice."""
    return price(_even(rows, topology.num_devices), topology, scheduler, row_bytes)


@functools.lru_cache(maxsize=256)
def of_crossing(topology: Topology, rows: int, scheduler: str, row_bytes: int) -> Price:
    """One exchange in which each device sends as many rows to each other server, over its NIC."""
    n, m = topology.servers, topology.devices_per_server
    servers = rows * (1 - np.eye(n, dtype=np.int64))
    return price(np.kron(servers, np.eye(m, dtype=np.int64)), topology, scheduler, row_bytes)


@functools.lru_cache(maxsize=256)
def of_inside(topology: Topology, rows: int, row_bytes: int) -> Price:
    """One exchange of each server's devices among themselves, of as many rows of each."""
    return inside(_even(rows, topology.devices_per_server), topology, row_bytes)


def inside(traffic: np.ndarray, topology: Topology, row_bytes: int) -> Price:
    """One exchange of the devices of a server, of any traffic."""
    one = dataclasses.replace(topology, servers=1, nic_bandwidths=None, placement=None)
    return price(traffic, one, scheduling.FALLBACK, row_bytes)


def price(traffic: np.ndarray, topology: Topology, scheduler: str, row_bytes: int) -> Price:
    """One exchange of any traffic."""
    plan = make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)
    planning = plan.planning_time()
    return Price(planning, plan.predicted_time() - planning)


def crossing_rows(tokens: int, servers: int, num_experts: int, top_k: int) -> int:
    """Rows that a device sends to each other server, where a token crosses once."""
    return round(tokens * hit_probability(servers, num_experts, top_k))


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
