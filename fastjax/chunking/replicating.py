"""Whether devices that have the same tokens divide them, or sum the results of their experts."""

from __future__ import annotations

import dataclasses

from fastjax.chunking import levelling, prices
from fastjax.chunking.prices import Tokens
from fastjax.topology import Topology

_PASSES = 4  # over rows in memory: they are written and read at experts, and again at tokens


@dataclasses.dataclass(frozen=True)
class Replicated:
    """Tokens that all devices have.

    Attributes:
      count: how many.
      top_k: choices of each.
      row_bytes: bytes of a row that goes to one expert.
      result_bytes: of a row of the result.
      sum_bytes: of one in the type in which it is summed.
    """

    count: int
    top_k: int
    row_bytes: int
    result_bytes: int
    sum_bytes: int


def summing_is_faster(
    topology: Topology, tokens: Replicated, scheduler: str, platform: str
) -> bool:
    """Whether each device should have its experts work on all tokens, and results be summed.

    In whole nanoseconds: processes must decide alike, and their hosts may round differently.
    """
    divided, summed = predicted_times(topology, tokens, scheduler, platform)
    return round(summed * 1e9) < round(divided * 1e9)


def predicted_times(
    topology: Topology, tokens: Replicated, scheduler: str, platform: str
) -> tuple[float, float]:
    """Seconds by the cost model, without the experts, which have as many rows either way.

    Divided, each device takes its part: counts are gathered, a plan is made, rows go to experts and
    back, and all devices gather the results. Summed, all devices reduce an array of all tokens: as
    many start-ups as two gatherings have, and twice the bytes of one, of wide rows. And each device
    has a row in memory for each choice of all tokens, not only of its part.

    Args:
      topology: the fabric.
      tokens: of all devices.
      scheduler: that plans where tokens are divided.
      platform: of the devices; see `levelling.row_seconds`.
    """
    each = -(-tokens.count // topology.num_devices)
    part = Tokens(each, tokens.top_k, tokens.row_bytes, tokens.row_bytes)
    layer = prices.even, topology, topology.num_devices, part, scheduler
    moved = prices.predicted(*layer, deduplicated=False)
    gathered = _gathering(topology, 0) + _gathering(topology, tokens.count * tokens.result_bytes)
    of_token = tokens.top_k * _PASSES * tokens.row_bytes / levelling.memory_rate(platform)
    divided = sum(dataclasses.astuple(moved)) + gathered + each * of_token
    summed = 2 * _gathering(topology, tokens.count * tokens.sum_bytes) + tokens.count * of_token
    return divided, summed


def _gathering(topology: Topology, size: int) -> float:
    """Seconds in which all devices gather an array of so many bytes, each having a part of it.

    By recursive doubling: a start-up for each doubling, and all bytes but the own ones over the
    slowest link. A reduction is the same backwards, and then the same (Thakur, Rabenseifner and
    Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.1, 4.5).
    """
    n, m = topology.servers, topology.devices_per_server
    rate = topology.scale_out_bandwidth if n > 1 else topology.scale_up_bandwidth
    start_ups = _doublings(n) * topology.scale_out_latency
    start_ups += _doublings(m) * topology.scale_up_latency
    return start_ups + size * (n * m - 1) / (n * m) / rate


def _doublings(count: int) -> int:
    return (count - 1).bit_length()
