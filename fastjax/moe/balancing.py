"""Whether a layer levels the experts of a server, and what it weighs copies against."""

from __future__ import annotations

import dataclasses

import jax

from fastjax.chunking import levelling
from fastjax.errors import ArgumentError
from fastjax.moe import arguments
from fastjax.moe.servers import Balance
from fastjax.topology import Topology

_SOME_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Balancing:
    """The keywords of `dispatch` and `layer` about levelling, as they were given.

    Attributes:
      balance: whether to, or None where the model of a layer decides.
      copies: the most that a device has.
      expert_bytes: of an expert's params, as far as they are known. By `row_seconds`, copies cost
        as many rows for any number.
      seconds_per_row: what the experts of a device take for a row, if that is known.
    """

    balance: bool | None
    copies: int
    expert_bytes: int = _SOME_BYTES
    seconds_per_row: float | None = None

    def __post_init__(self) -> None:
        if self.balance is not None and not isinstance(self.balance, bool):
            raise ArgumentError(f"balance must be True, False or None, got {self.balance!r}.")
        arguments.check_count("copies", self.copies)


def balance_of(
    asked: Balancing, topology: Topology, tokens: int, top_k: int, num_experts: int
) -> Balance | None:
    """How far experts are levelled; None if they are not.

    Left to the model, they are only where the time of a row on a device is given, and CPU devices
    belong to several processes: all devices of one process share its processors. On GPUs it is not
    known how long dealing takes.

    Args:
      asked: the keywords.
      topology: of a group.
      tokens: of a device.
      top_k: choices of each.
      num_experts: of the group.
    """
    if topology.devices_per_server == 1:
        return None
    platform = jax.default_backend()
    seconds = asked.seconds_per_row
    if seconds is None:
        seconds = levelling.row_seconds(asked.expert_bytes, platform)
    here = num_experts // topology.num_devices
    copies = min(asked.copies, (topology.devices_per_server - 1) * here)  # no more can be in use
    if asked.balance is None:
        known = asked.seconds_per_row is not None and jax.process_count() > 1 and platform == "cpu"
        work = topology, tokens, top_k, num_experts, copies, asked.expert_bytes, seconds
        if not (known and levelling.pays(*work, platform=platform)):
            return None
    elif not asked.balance:
        return None
    return Balance(copies, levelling.cost_rows(topology, asked.expert_bytes, seconds, copies))


__all__ = ["Balancing", "balance_of"]
