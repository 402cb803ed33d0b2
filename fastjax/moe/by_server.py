"""A dispatch in two steps: each token once to each server of its experts, then inside servers."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import checkpoint, inside_servers, payload, room, routing, to_experts, types
from fastjax.moe.crossing import cross, find_crossing, number_type, numbers_of
from fastjax.moe.handle import Handle
from fastjax.moe.servers import Servers
from fastjax.moe.to_experts import Experts, Over
from fastjax.traced.axes import position


def dispatch_by_server(
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    experts: Experts,
    servers: Servers,
    over: Over,
    inside: Over,
    travels_in: np.dtype,
) -> tuple[jax.Array, jax.Array, Handle]:
    """Tokens to the servers of their experts, once each, and from there to the experts.

    Args:
      x: tokens; see `dispatch`.
      expert_ids: see `dispatch`.
      weights: see `dispatch`.
      experts: of the devices of a group.
      servers: where they are.
      over: those devices.
      inside: the devices of each server.
      travels_in: the type that rows travel in.

    Returns:
      What `dispatch` does.
    """
    choices = routing.check(expert_ids, experts.count)
    kept, dropped = _find_room(choices, experts, over)
    going = jnp.where(kept, choices.experts, experts.count)
    crossing = checkpoint.named(find_crossing(going, choices.wrong, servers, over))
    landed = cross(x, weights, numbers_of(going, crossing, servers), crossing, travels_in)
    # What finds no room has been taken out, so there is room for the rest.
    in_server = dataclasses.replace(experts, count=servers.experts, may_drop=False)
    found = to_experts.find_route(landed.expert_ids, in_server, inside)
    handle = Handle(kept, dropped, found.group_rows, None, found.route, crossing)
    handle, group_sizes = checkpoint.named((handle, found.group_sizes))
    if landed.weights is not None:
        handle = dataclasses.replace(
            handle, weights=inside_servers.send_weights(landed.weights, handle.route)
        )
    stays_in = x.dtype if payload.has_scales(travels_in, x.dtype) else travels_in
    return inside_servers.send(landed.x, handle.route, stays_in), group_sizes, handle


def _find_room(
    choices: routing.Choices, experts: Experts, over: Over
) -> tuple[jax.Array, jax.Array]:
    """Which choices find room at their experts, as without deduplication, and how many do not."""
    exists = choices.experts < experts.count
    if not experts.may_drop:
        return exists, jnp.zeros_like(choices.wrong)
    by_expert = routing.by_expert(choices, experts.count)
    counts = jax.lax.all_gather(by_expert.counts, over.axes, axis_index_groups=over.groups)
    blocks = counts.reshape(len(counts), len(counts), -1)
    going = room.keep(blocks, experts.rows, experts.alignment)[position(over.axes, over.groups)]
    kept = routing.kept(by_expert, going.reshape(-1), experts.count).reshape(exists.shape)
    return kept, (exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32))


def beside_rows(
    top_k: int, weights: jax.Array | None, servers: Servers
) -> tuple[tuple[int, np.dtype], ...]:
    """What travels with a token's row: columns, and their type."""
    numbers = (top_k, number_type(servers))
    if weights is None:
        return (numbers,)
    return (top_k, types.summed_in(weights.dtype)), numbers


__all__ = ["beside_rows", "dispatch_by_server"]
