"""How weights go to copies of experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fastjax.moe import checkpoint
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.copies import Copies
from fastjax.moe.levelled import Levelled, of_server
from fastjax.moe.planning import sizes_to_plan
from fastjax.moe.routing import Offsets
from fastjax.traced.nonnegative import look_up, quotient, remainder
from fastjax.traced.plan import plan_sizes


@jax.named_scope("moe_copies")
def plan_copies(
    levelled: Levelled | None, arrangement: Arrangement, token: jax.Array | None
) -> Copies | None:
    """How weights go to the copies of experts that are levelled so; None if they are not.

    The plan is made after `token`.
    """
    if levelled is None:
        return None
    servers, group = arrangement.servers, arrangement.inside
    rank = arrangement.group.rank()
    here = servers.experts // servers.devices
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
    sizes = sizes_to_plan(offsets.send_sizes, jnp.zeros_like(rank), token)
    plan = plan_sizes(sizes, group.axes, group.groups, group.spec)
    return checkpoint.named(Copies(look_up(slots, me), plan, offsets, here))


__all__ = ["plan_copies"]
