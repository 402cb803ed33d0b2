"""How experts and devices are spread over servers, as far as a traced program knows."""

from __future__ import annotations

import dataclasses

import numpy as np

from fastjax.topology import Topology
from fastjax.traffic import landing


@dataclasses.dataclass(frozen=True)
class Balance:
    """How far the experts of a server are levelled.

    Attributes:
      copies: the most experts of other devices that a device computes for.
      cost_rows: the rows that a copy takes as long as.
    """

    copies: int
    cost_rows: int


@dataclasses.dataclass(frozen=True)
class Experts:
    """The experts of devices that exchange with each other, and the room for their rows.

    Attributes:
      count: experts of these devices together.
      devices: how many these are.
      alignment: each expert's rows are padded to a multiple of it.
      balance: whether devices of a server compute for each other.
      available: rows that find room on each device, whichever of its experts they are of; 0 until
        they are given room.
      rows: room of each device, with that for padding.
      drop: whether rows without room are dropped, or go in a further round; None if all find it.
    """

    count: int
    devices: int
    alignment: int
    balance: Balance | None
    available: int = 0
    rows: int = 0
    drop: bool | None = None

    @property
    def here(self) -> int:
        """Experts of each device."""
        return self.count // self.devices

    @property
    def groups(self) -> int:
        """Groups of rows of one expert on each device: of its own experts, then of copies."""
        return self.here + (0 if self.balance is None else self.balance.copies)

    def with_room(self, available: int, choices: tuple[int, int], *, drop: bool | None) -> Experts:
        """The same, with room for rows of the choices, (tokens, k), of each device.

        Args:
          available: rows that are to find room.
          choices: of each device, (tokens, k).
          drop: see above. The first round has room for one token of each device, whatever they
            choose. None: it has been decided already which rows go.
        """
        tokens, top_k = choices
        most = self.devices * tokens * top_k
        if drop is False:
            available = min(max(available, self.devices * top_k), most)
        over = available < most  # with room for all, the program need not look
        padding = self.groups * (self.alignment - 1)
        rows = -(-(available + padding) // self.alignment) * self.alignment
        drop = drop if over else None
        return dataclasses.replace(self, available=available, rows=rows, drop=drop)


@dataclasses.dataclass(frozen=True)
class Servers:
    """The servers of an axis, or of each of its groups.

    Attributes:
      topology: the fabric of one group, server-major.
      rank_of: server-major number of each position of the group.
      num_experts: of a group's devices together.
    """

    topology: Topology
    rank_of: tuple[int, ...]
    num_experts: int

    @property
    def count(self) -> int:
        """Servers of a group."""
        return self.topology.servers

    @property
    def devices(self) -> int:
        """Devices of each server."""
        return self.topology.devices_per_server

    @property
    def position_at(self) -> np.ndarray:
        """The position of each rank, shape (ranks,)."""
        return np.argsort(self.rank_of)

    @property
    def experts(self) -> int:
        """Experts of each server."""
        return self.num_experts // self.count

    def server_of_expert(self) -> np.ndarray:
        """The server of each expert, then `count`, for choices that go nowhere."""
        return np.append(self._rank_of_expert() // self.devices, self.count).astype(np.int32)

    def number_in_server(self) -> np.ndarray:
        """The number of each expert in its server, and 1: 0, as of rows that nobody wrote, is none.

        The last is 0, for choices that go nowhere.
        """
        here = self.num_experts // len(self.rank_of)
        local = self._rank_of_expert() % self.devices * here + np.arange(self.num_experts) % here
        return np.append(local + 1, 0).astype(self.number_type())

    def number_type(self) -> np.dtype:
        """The type of the numbers of a server's experts in messages."""
        return np.min_scalar_type(self.experts)

    def _rank_of_expert(self) -> np.ndarray:
        here = self.num_experts // len(self.rank_of)
        return np.repeat(np.array(self.rank_of), here)

    def rail_shares(self) -> np.ndarray:
        """Those of `traffic.landing`."""
        return landing.rail_shares(self.count, self.devices, self.topology.nic_bandwidths)
