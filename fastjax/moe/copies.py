"""Weights of experts that other devices of a server compute for, too.

One exchange inside the server brings them to the slots, a row for each copy of an expert. Its
transpose brings their gradients home, and adds them up in the order of devices.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fastjax.moe import arguments, checkpoint
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.levelled import Levelled, of_server
from fastjax.moe.routing import Offsets, Token
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up, quotient, remainder
from fastjax.traced.plan import TracedPlan
from fastjax.traced.planned_exchange import exchange_planned

Params = Any  # a pytree of arrays


@jax.tree_util.register_dataclass
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
    here: int = dataclasses.field(metadata={"static": True})

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
        base = jnp.broadcast_to(unused, (self.experts.shape[-1], rows.shape[1]))
        copied = exchange_planned(rows, base, self.offsets, self.plan)
        return jnp.concatenate([leaf, copied.reshape(-1, *leaf.shape[1:])])


@jax.named_scope("moe_copies")
def plan_copies(levelled: Levelled | None, arrangement: Arrangement, token: Token) -> Copies | None:
    """How weights go to the copies of experts that are levelled so; None if they are not.

    The plan is made after `token`.
    """
    if levelled is None:
        return None
    servers, group = arrangement.servers, arrangement.inside.group
    rank = arrangement.group.rank()
    here = arrangement.experts.here
    slots = of_server(levelled, servers, quotient(rank, servers.devices)).slots
    me, (devices, copies) = remainder(rank, servers.devices), slots.shape
    experts, used = jnp.maximum(slots, 0), slots >= 0
    home, slot = quotient(experts, here), jnp.arange(copies, dtype=jnp.int32)
    device = jnp.arange(devices, dtype=jnp.int32)[:, None]
    sent = used & (home == me)
    wanted = look_up(used, me)[None] & (look_up(home, me)[None] == device)
    offsets = Offsets(
        remainder(experts, here).reshape(-1),
        sent.reshape(-1).astype(jnp.int32),
        jnp.broadcast_to(slot, slots.shape).reshape(-1),
        wanted.reshape(-1).astype(jnp.int32),
    )
    sizes = offsets.send_sizes if token is None else after(offsets.send_sizes, token)
    return checkpoint.named(Copies(look_up(slots, me), group.plan(sizes), offsets, here))
