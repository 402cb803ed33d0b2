"""What is exchanged: traffic of so many seconds of line rate, rows that say where they are from."""

import dataclasses
from collections.abc import Callable

import numpy as np

from emulated_cluster.fabric import Fabric
from fastjax.traffic import expert_popularity, pair_zipf, uniform

# Row r of device d holds, at column c, d * _DEVICE + r * _ROW + c * _COLUMN modulo 2^32: odd
# numbers, so that no two rows of an exchange are alike and none is all zeros.
_DEVICE, _ROW, _COLUMN = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
_MODEL_ROWS = 1 << 20

WORKLOADS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "pair-zipf": lambda n, rows, seed: pair_zipf(n, rows, exponent=0.8, seed=seed),
    "expert": lambda n, rows, seed: expert_popularity(
        n, rows, exponent=0.8, shuffle=True, seed=seed
    ),
    "balanced": lambda n, rows, seed: uniform(n, rows),  # noqa: ARG005
}


@dataclasses.dataclass(frozen=True)
class Load:
    """Bytes of the busiest ports, which no exchange can finish before.

    Attributes:
      server: the most that a server sends or receives over all its NICs.
      nic: the most that a NIC sends or receives if rows go from their device's to their target's.
      pair: bytes of the largest flow of one device to one device.
      total: bytes that go between servers.
    """

    server: int
    nic: int
    pair: int
    total: int

    def seconds(self, rails: int, rate: int) -> float:
        """The line-rate limit: the busiest server's bytes over all its NICs, nothing else."""
        return self.server * 8 / (rails * rate)


def load(traffic: np.ndarray, rails: int, row_bytes: int) -> Load:
    """What a traffic matrix of rows puts on the network."""
    servers = len(traffic) // rails
    owner = np.arange(len(traffic)) // rails
    crossing = np.where(owner[:, None] != owner, traffic, 0) * row_bytes
    tiles = crossing.reshape(servers, rails, servers, rails).sum(axis=(1, 3))
    return Load(
        server=int(max(tiles.sum(axis=0).max(), tiles.sum(axis=1).max())),
        nic=int(max(crossing.sum(axis=0).max(), crossing.sum(axis=1).max())),
        pair=int(traffic.max()) * row_bytes,
        total=int(crossing.sum()),
    )


def draw(workload: str, fabric: Fabric, row_bytes: int, seconds: float, seed: int) -> np.ndarray:
    """Traffic whose line-rate limit is about so many seconds.

    Returns:
      Rows that device i sends to device j; int64, shape (devices, devices).
    """
    devices = fabric.servers * fabric.rails
    model = load(WORKLOADS[workload](devices, _MODEL_ROWS, seed), fabric.rails, row_bytes)
    rows = round(_MODEL_ROWS * seconds / model.seconds(fabric.rails, fabric.rate))
    return WORKLOADS[workload](devices, max(1, rows), seed)


def rows_of(device: int, first: int, rows: int, width: int) -> np.ndarray:
    """Rows [first, first + rows) that a device sends; uint32, shape (rows, width)."""
    start = np.uint32((device + 1) * _DEVICE % 2**32)
    along = np.arange(first, first + rows, dtype=np.uint32) * np.uint32(_ROW)
    across = np.arange(width, dtype=np.uint32) * np.uint32(_COLUMN)
    return start + along[:, None] + across


def expected(traffic: np.ndarray, device: int, rows: int, width: int) -> np.ndarray:
    """What a device must hold afterwards: its rows by sender, then zeros up to `rows`."""
    result = np.zeros((rows, width), np.uint32)
    at = 0
    for sender, count in enumerate(traffic[:, device]):
        first = int(traffic[sender, :device].sum())
        result[at : at + count] = rows_of(sender, first, int(count), width)
        at += int(count)
    return result
