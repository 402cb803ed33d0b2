"""Whether levelling the experts of a server pays: what it saves the slowest device, and adds.

Times are of the forward pass. With gradients, experts work three times as long, and two to three
times as many bytes of weights and their gradients travel, so the ratio stays about the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from fastjax import _core
from fastjax.chunking import popularity
from fastjax.topology import Topology

LEAST_GAIN = 0.1
"""The share of experts' time to be saved where experts are popular by Zipf's law with 0.8."""

MOST_LOSS = 0.03
"""The share that may be lost where experts are equally popular, and there is nothing to save."""

# Guesses for devices of which nothing else is known, good to a factor of two or three.
# FLOP/s by the bytes of an element, since elements of half the size are about twice as fast. GPUs:
# 400 TFLOP/s in bf16, two fifths of an H200's peak by NVIDIA's data sheet. A core with AVX2 at
# 3 GHz: half of its peak in float32.
_FLOPS_BY_BYTES = {"gpu": 2 * 400e12, "cpu": 4 * 50e9}
# Bytes/s of memory, read or written: the H200's by its data sheet; a channel of DDR4.
_MEMORY = {"gpu": 4.8e12, "cpu": 20e9}
_ZIPF = 0.8  # the upper end of what real traces fit
_MOST_ROWS = 2**31 - 1


def row_seconds(expert_bytes: int, platform: str) -> float:
    """A guess at what an expert takes for a row, where nobody says: two FLOP for each element.

    Args:
      expert_bytes: of its parameters.
      platform: "cpu"; all others count as GPUs.
    """
    return 2 * expert_bytes / _of(_FLOPS_BY_BYTES, platform)


def memory_rate(platform: str) -> float:
    """A guess at the bytes/s of a device's memory, read or written; platforms as above."""
    return _of(_MEMORY, platform)


def _of(rates: dict[str, float], platform: str) -> float:
    return rates.get(platform, rates["gpu"])


@dataclasses.dataclass(frozen=True)
class Levelling:
    """Experts that are levelled.

    Attributes:
      topology: the fabric.
      copies: the most experts of others that a device computes for.
      expert_bytes: of an expert's parameters.
      seconds_per_row: what it takes for a row.
      platform: of the devices, as for `row_seconds`.
    """

    topology: Topology
    copies: int
    expert_bytes: int
    seconds_per_row: float
    platform: str

    @property
    def cost_rows(self) -> int:
        """Rows that take as long as weights travel, for each copy that a device may have.

        Where each device of a server has a copy, few of them send all. Drawn routing of known
        models (docs/how_to/balance_experts.md) has the busiest send half as many as there are
        devices. To count what is received only would take copies that cost more than they save.

        At most as many as the planner takes for so many copies on a device.
        """
        most = _MOST_ROWS // self.copies
        sent = self.expert_bytes * max(1, self.topology.devices_per_server // 2)
        bytes_per_row = self.topology.scale_up_bandwidth * self.seconds_per_row
        return most if sent >= most * bytes_per_row else math.ceil(sent / bytes_per_row)

    def deal(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The slots and rows of `fastjax.traced.levelling.Levelled`, given the rows of each expert.

        These are fewer than 2**31 together.
        """
        fabric = self.topology
        shape = (fabric.servers, fabric.devices_per_server, self.copies, self.cost_rows)
        slots, dealt = _core.level_experts(np.ascontiguousarray(rows, np.int32), *shape)
        return slots.reshape(fabric.num_devices, -1), dealt.reshape(fabric.num_devices, -1)

    def weights_seconds(self, slots: np.ndarray, experts: int) -> float:
        """How long weights travel: what the device takes that sends, or receives, most."""
        used = slots >= 0
        sent = np.bincount(slots[used] // (experts // len(slots)), minlength=1)
        most = max(int(used.sum(1).max()), int(sent.max()))
        return most * self.expert_bytes / self.topology.scale_up_bandwidth

    def fixed_seconds(self, experts: int) -> float:
        """What it takes in any case.

        Devices meet twice more, for counts and for weights; and weights of a device's own experts
        and of its slots are joined, whether slots are used or not: read once and written once.
        """
        fabric = self.topology
        counts = fabric.scale_out_latency if fabric.servers > 1 else fabric.scale_up_latency
        groups = experts // fabric.num_devices + self.copies
        joining = 2 * groups * self.expert_bytes / memory_rate(self.platform)
        return counts + fabric.scale_up_latency + joining

    def gain(self, rows: np.ndarray) -> float:
        """The share of the experts' time that is saved, given the rows of each expert."""
        home = rows.reshape(self.topology.num_devices, -1).sum(1).max() * self.seconds_per_row
        slots, dealt = self.deal(rows)
        added = self.weights_seconds(slots, len(rows)) + self.fixed_seconds(len(rows))
        time = dealt.sum(1).max() * self.seconds_per_row + added
        return float(1 - time / home) if home else -math.inf


@functools.lru_cache(maxsize=256)
def pays(model: Levelling, tokens: int, top_k: int, num_experts: int) -> bool:
    """Whether a layer should level its experts, where nothing is known of their popularity.

    It must gain where they are popular by Zipf's law, and lose little where they all are alike.
    Exchanges are left out: they change little, and chunks may hide them.

    Args:
      model: the experts.
      tokens: of a device.
      top_k: experts of a token.
      num_experts: of all devices together.
    """
    total = tokens * model.topology.num_devices
    alone = model.topology.devices_per_server == 1
    if alone or not num_experts <= total * top_k <= _MOST_ROWS:
        return False
    shares = popularity.chosen(num_experts, top_k, _ZIPF)
    even = np.full(num_experts, total * top_k // num_experts)
    skewed = np.array([int(total * share) for share in shares])
    return model.gain(even) > -MOST_LOSS and model.gain(skewed) > LEAST_GAIN
