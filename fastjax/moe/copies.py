"""Weights of experts that other devices of a server compute for, too.

One exchange inside the server brings them to the slots, a row for each copy of an expert. Its
transpose brings their gradients home, and adds them up in the order of devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fastjax.moe import arguments
from fastjax.moe.routing import Offsets
from fastjax.traced.exchange import exchange_planned
from fastjax.traced.plan import TracedPlan

Params = Any  # a pytree of arrays


@dataclasses.dataclass(frozen=True)
class Copies:
    """Copies of experts for the devices of a server.

    Attributes:
      experts: int32, shape (copies,): the expert that each slot of this device has a copy of, by
        its number in the server; -1 for none.
      plan: of the exchange of weights.
      offsets: of it, a row for each slot of each device.
      here: experts of a device.
    """

    experts: jax.Array
    plan: TracedPlan
    offsets: Offsets
    here: int

    @property
    def count(self) -> int:
        """Slots of a device."""
        return self.experts.shape[-1]

    @jax.named_scope("moe_copies")
    def params(self, params: Params) -> Params:
        """Params of this device's experts, and behind them those of its copies.

        Raises:
          ArgumentError: a leaf has not one entry for each expert of the device.
        """
        arguments.check_params(params, self.here)
        return jax.tree.map(self._joined, params)

    def _joined(self, leaf: jax.Array) -> jax.Array:
        leaf = jnp.asarray(leaf)
        rows = leaf.reshape(self.here, -1)
        # Functions may divide by params, and multiply rows by those of all groups.
        unused = jax.lax.stop_gradient(rows[:1])
        base = jnp.broadcast_to(unused, (self.count, rows.shape[1]))
        copied = exchange_planned(rows, base, self.offsets, self.plan)
        return jnp.concatenate([leaf, copied.reshape(self.count, *leaf.shape[1:])])


jax.tree_util.register_dataclass(
    Copies, data_fields=["experts", "plan", "offsets"], meta_fields=["here"]
)


__all__ = ["Copies", "Params"]
