"""To which servers tokens go, on which devices they arrive, and the plan of their exchange."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import checkpoint, rails, routing
from fastjax.moe.handle import Crossing
from fastjax.moe.levelled import Levelled, deal, of_server
from fastjax.moe.planning import Room, Routed, find_room, sizes_to_plan
from fastjax.moe.routing import Offsets
from fastjax.moe.servers import ExchangeGroup, Experts, Servers
from fastjax.traced.nonnegative import look_up, permuted, quotient, remainder
from fastjax.traced.plan import plan_sizes


class Wanted(NamedTuple):
    """The tokens that are to cross, as far as a device knows it alone.

    Attributes:
      experts: int32, shape (tokens, k): of the choices that are kept; num_experts for others.
      wrong: an expert id that is out of range, or 0.
      servers: int32, shape (tokens, k): the server of each choice; `servers.count` for none.
      goes: bool, shape (tokens, servers): whether a token crosses to a server.
      counts: int32, shape (servers + num_experts,): how many do, then choices of each expert.
      room: outcome of sharing out the room; None where there is room for all.
      levelled: how experts are, then.
    """

    experts: jax.Array
    wrong: jax.Array
    servers: jax.Array
    goes: jax.Array
    counts: jax.Array
    room: Room | None
    levelled: Levelled | None


class PlannedCrossing(NamedTuple):
    """How tokens are to cross.

    Attributes:
      room: which choices find it at their experts.
      crossing: the way that tokens take.
      numbers: by `_numbers_of`.
      levelled: how the experts of this server are, if they are.
    """

    room: Room
    crossing: Crossing
    numbers: tuple[jax.Array, jax.Array]
    levelled: Levelled | None


def count(
    expert_ids: jax.Array, experts: Experts, servers: Servers, group: ExchangeGroup
) -> Wanted:
    """Counts the tokens that are to cross to each server.

    Args:
      expert_ids: see `dispatch`; varying over the axes.
      experts: of the devices of a group.
      servers: where they are.
      group: those devices.
    """
    choices = routing.check(expert_ids, experts.count)
    room = levelled = None
    if experts.may_drop:
        room, levelled = find_room(choices, experts, servers, group)
    going = (
        choices.experts if room is None else jnp.where(room.kept, choices.experts, experts.count)
    )
    here = quotient(group.rank(), servers.devices)
    chosen = look_up(jnp.asarray(servers.server_of_expert()), going)
    every = jnp.arange(servers.count, dtype=jnp.int32)
    goes = (chosen[:, :, None] == every[None, None]).any(1) & (every != here)[None]
    of_servers = goes.sum(0, dtype=jnp.int32)
    counts = jnp.concatenate([of_servers, routing.count(going, experts.count)])
    return Wanted(going, choices.wrong, chosen, goes, counts, room, levelled)


Planned = PlannedCrossing | Routed


@jax.named_scope("moe_cross")
def plan(
    wanted: Wanted,
    counts: jax.Array,
    servers: Servers,
    group: ExchangeGroup,
    token: jax.Array | None,
    levelled: Levelled | None,
) -> PlannedCrossing:
    """Where the tokens of all devices arrive, and the plan of their exchange.

    Args:
      wanted: of this device's tokens.
      counts: of all devices, by position, shape (devices, servers + num_experts).
      servers: where experts are.
      group: the devices.
      token: the plan is made after it.
      levelled: how experts are, if they are.
    """
    goes, counted = wanted.goes, wanted.goes.astype(jnp.int32)
    tokens, top_k = wanted.servers.shape
    rank = group.rank()
    counts, of_experts = counts[:, : servers.count], counts[:, servers.count :]
    sent = rails.rows_to_devices(permuted(counts, servers.position_at), servers)
    dispatch, combine = _offsets(sent, rank, np.array(servers.rank_of))
    mine = wanted.counts[: servers.count]
    first = jnp.cumsum(mine, dtype=jnp.int32) - mine
    entry = first[None] + jnp.cumsum(counted, axis=0, dtype=jnp.int32) - counted
    entry = jnp.where(goes, entry, 0)
    token_of, server_of = _list(goes, entry, min(top_k, servers.count - 1))
    sizes = sizes_to_plan(dispatch.send_sizes, wanted.wrong, token)
    found = Crossing(
        plan=plan_sizes(sizes, group.axes, group.groups, group.spec, servers.num_experts),
        dispatch=dispatch,
        combine=combine,
        token=token_of,
        server=server_of,
        entry=entry,
        goes=goes,
        chosen=wanted.servers,
        here=quotient(rank, servers.devices),
        room=rails.room(tokens, servers),
    )
    crossing = checkpoint.named(found)
    numbers = _numbers_of(wanted.experts, crossing, servers)
    room = wanted.room or _room_for_all(wanted, of_experts, servers, levelled)
    if levelled is not None:
        levelled = of_server(levelled, servers, crossing.here)
    return PlannedCrossing(room, crossing, numbers, levelled)


def _room_for_all(
    wanted: Wanted, counts: jax.Array, servers: Servers, levelled: Levelled | None
) -> Room:
    """The outcome of sharing out room that all choices find."""
    expert_rows = counts.sum(0, dtype=counts.dtype)
    device_rows = deal(counts, levelled, servers).sizes.sum((0, 2), dtype=counts.dtype)
    kept = wanted.experts < len(expert_rows)
    return Room(kept, jnp.zeros_like(wanted.wrong), expert_rows, device_rows)


def _offsets(sent: jax.Array, rank: jax.Array, rank_of: np.ndarray) -> tuple[Offsets, Offsets]:
    """Offsets and sizes of this device, by position, of the rows that are `sent`, by rank.

    Rows lie in lists, by server and so by rank, and arrive by the rank that they come from.
    """
    listed = jnp.cumsum(sent, axis=1, dtype=sent.dtype) - sent
    arrived = jnp.cumsum(sent, axis=0, dtype=sent.dtype) - sent
    of_row = lambda array: permuted(look_up(array, rank), rank_of)  # noqa: E731
    of_column = lambda array: permuted(look_up(array, slice(None), rank), rank_of)  # noqa: E731
    to_each, from_each = of_row(sent), of_column(sent)
    return (
        Offsets(of_row(listed), to_each, of_row(arrived), from_each),
        Offsets(of_column(arrived), from_each, of_column(listed), to_each),
    )


def _list(goes: jax.Array, entry: jax.Array, each: int) -> tuple[jax.Array, jax.Array]:
    """Tokens and servers of all entries; of those that are not in use, the first of each.

    Args:
      goes: see `Crossing`.
      entry: see `Crossing`.
      each: the most entries of a token.
    """
    tokens, servers = goes.shape
    number = jnp.arange(tokens * servers, dtype=jnp.int32).reshape(goes.shape)
    at = jnp.where(goes, entry, tokens * each)
    listed = jnp.zeros_like(entry, shape=tokens * each).at[at]
    listed = listed.set(number, mode="drop", wrap_negative_indices=False)
    return quotient(listed, servers), remainder(listed, servers)


def _numbers_of(
    experts: jax.Array, crossing: Crossing, servers: Servers
) -> tuple[jax.Array, jax.Array]:
    """The numbers that experts have in the own server, and in that of each entry; 0 for none.

    One more than they are, so that rows that nobody wrote have none, in as few bytes as will do.

    Args:
      experts: int32, shape (tokens, k); num_experts where a choice goes nowhere.
      crossing: the way.
      servers: where experts are.
    """
    numbers = jnp.asarray((servers.number_in_server() + 1).astype(servers.number_type()))
    number = look_up(numbers, experts)
    of = lambda number, chosen, server: jnp.where(chosen == server, number, 0)  # noqa: E731
    token = crossing.token
    own = of(number, crossing.chosen, crossing.here)
    chosen = look_up(crossing.chosen, token)
    there = of(look_up(number, token), chosen, crossing.server[:, None])
    return own.astype(number.dtype), there.astype(number.dtype)


__all__ = ["Planned", "PlannedCrossing", "Wanted", "count", "plan"]
