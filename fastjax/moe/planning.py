"""Where rows go, and the plans of their exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import checkpoint, rails, routing
from fastjax.moe.levelled import Dealt, Levelled, deal, level, of_kept, of_server
from fastjax.moe.routing import Choices, Crossing, Offsets, Route, Sorted, Token
from fastjax.moe.servers import ExchangeGroup, Experts, Servers
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up, permuted, quotient, remainder
from fastjax.traced.plan import plan_and_gather

Deal = Callable[[jax.Array], Dealt]


class Room(NamedTuple):
    """Which choices of a device find room at their experts if all go at once.

    Attributes:
      kept: bool, shape (tokens, k).
      dropped: how many do not.
      expert_rows: choices of all devices for each expert, shape (num_experts,).
      device_rows: those that each device computes, shape (devices,).
    """

    kept: jax.Array
    dropped: jax.Array
    expert_rows: jax.Array
    device_rows: jax.Array


class Routed(NamedTuple):
    """How choices are to go, a row for each.

    Attributes:
      route: there and back.
      room: which choices found it.
    """

    route: Route
    room: Room


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


Planned = PlannedCrossing | Routed


def route(
    by_expert: Sorted,
    counts: jax.Array | None,
    experts: Experts,
    group: ExchangeGroup,
    token: Token,
    deal: Deal | None,
) -> Routed:
    """Where the choices of all devices go, and the plan of their exchange.

    Args:
      by_expert: of this device.
      counts: of all devices, by position, shape (devices, num_experts); None if they are to come
        with the plan, where they alone decide what is sent.
      experts: of the devices of a group.
      group: the devices.
      token: the plan is made after it.
      deal: deals the counts of all devices to these; None where rows are computed at home.
    """
    me, exists = group.position(), by_expert.choices.experts < experts.count
    plan = kept = None
    if counts is None:
        sizes = sizes_to_plan(by_expert.counts, by_expert.choices.wrong, token)
        told = group.axes, group.groups, group.spec, experts.count
        plan, counts = plan_and_gather(sizes, *told)
    dealt = routing.at_home(counts) if deal is None else deal(counts)
    if experts.may_drop:
        dealt = dealt._replace(sizes=routing.keep(dealt.sizes, experts.rows, experts.alignment))
        kept = routing.kept(by_expert, dealt, me)
    found = routing.find(dealt, me, experts.alignment)
    if plan is None:
        sizes = sizes_to_plan(found[0].send_sizes, by_expert.choices.wrong, token)
        plan = group.plan(sizes, experts.count)
    room = _room(exists, kept, counts, dealt)
    route = Route(room.kept, plan, by_expert.order, by_expert.place, *found, experts.rows)
    return checkpoint.named(Routed(route, room))


def _room(exists: jax.Array, kept: jax.Array | None, counts: jax.Array, dealt: Dealt) -> Room:
    """The outcome of sharing out the room, for choices that exist; None if all are kept."""
    dropped = jnp.zeros_like(exists, jnp.int32, shape=())
    if kept is not None:
        dropped = exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32)
    device_rows = dealt.sizes.sum((0, 2), dtype=counts.dtype)
    expert_rows = counts.sum(0, dtype=counts.dtype)
    return Room(exists if kept is None else kept, dropped, expert_rows, device_rows)


def sizes_to_plan(send_sizes: jax.Array, wrong: jax.Array, token: Token) -> jax.Array:
    """Sizes, after `token`; the planner refuses them where an expert id is out of range."""
    sizes = send_sizes.at[0].set(jnp.where(wrong > 0, -wrong, send_sizes[0]))
    return sizes if token is None else after(sizes, token)


def find_room(
    choices: Choices, experts: Experts, servers: Servers, group: ExchangeGroup
) -> tuple[Room, Levelled | None]:
    """Counts the choices of all devices, and shares out the room of their experts.

    Returns:
      The room; and how experts are levelled then, if they are.
    """
    by_expert = routing.by_expert(choices, experts.count)
    (counts,) = group.gather([by_expert.counts], experts.count)
    levelled = level(counts.sum(0, dtype=counts.dtype), servers, experts.balance)
    dealt = deal(counts, levelled, servers)
    dealt = dealt._replace(sizes=routing.keep(dealt.sizes, experts.rows, experts.alignment))
    if levelled is not None:
        levelled = of_kept(levelled, dealt.sizes, servers)
    kept = routing.kept(by_expert, dealt, group.position())
    return _room(choices.experts < experts.count, kept, counts, dealt), levelled


class Wanted(NamedTuple):
    """The tokens that are to cross, as far as a device knows it alone.

    Attributes:
      choices: those that are kept; num_experts for others.
      servers: int32, shape (tokens, k): the server of each choice; `servers.count` for none.
      goes: bool, shape (tokens, servers): whether a token crosses to a server.
      counts: int32, shape (servers + num_experts,): how many do, then choices of each expert.
      room: outcome of sharing out the room; None where there is room for all.
      levelled: how experts are, then.
    """

    choices: Choices
    servers: jax.Array
    goes: jax.Array
    counts: jax.Array
    room: Room | None
    levelled: Levelled | None


def want_crossing(
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
    going = choices.experts
    if experts.may_drop:
        room, levelled = find_room(choices, experts, servers, group)
        going = jnp.where(room.kept, going, experts.count)
    here = quotient(group.rank(), servers.devices)
    chosen = look_up(jnp.asarray(servers.server_of_expert()), going)
    every = jnp.arange(servers.count, dtype=jnp.int32)
    goes = (chosen[:, :, None] == every[None, None]).any(1) & (every != here)[None]
    of_servers = goes.sum(0, dtype=jnp.int32)
    counts = jnp.concatenate([of_servers, routing.count(going, experts.count)])
    return Wanted(Choices(going, choices.wrong), chosen, goes, counts, room, levelled)


@jax.named_scope("moe_cross")
def plan_crossing(
    wanted: Wanted,
    counts: jax.Array,
    servers: Servers,
    group: ExchangeGroup,
    token: Token,
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
    sizes = sizes_to_plan(dispatch.send_sizes, wanted.choices.wrong, token)
    found = Crossing(
        plan=group.plan(sizes, servers.num_experts),
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
    room = wanted.room
    if room is None:
        exists = wanted.choices.experts < servers.num_experts
        room = _room(exists, None, of_experts, deal(of_experts, levelled, servers))
    room, crossing = checkpoint.named((room, found))
    numbers = _numbers_of(wanted.choices.experts, crossing, servers)
    if levelled is not None:
        levelled = of_server(levelled, servers, crossing.here)
    return PlannedCrossing(room, crossing, numbers, levelled)


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
