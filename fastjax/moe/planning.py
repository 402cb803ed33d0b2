"""Where the rows of one chunk go, and the plans of their exchanges."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import checkpoint, routing
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.levelled import Levelled, deal, level, of_kept
from fastjax.moe.linear import Trip
from fastjax.moe.routing import Choices, Crossing, Route, Sorted, Token
from fastjax.moe.servers import Servers
from fastjax.traced.after import after
from fastjax.traced.levelling import Dealt
from fastjax.traced.nonnegative import look_up, permuted, quotient, remainder
from fastjax.traced.plan import ExchangeGroup
from fastjax.traffic import landing


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Way:
    """A chunk that has been planned: there is a row for each choice, or for each token and server.

    Rows that cross to servers are copied inside these.

    Attributes:
      trip: of the rows.
      room: which choices found it.
      arrangement: what has been decided of all chunks.
      numbers: where tokens cross, of each choice's expert; see `Servers.number_in_server`.
      levelled: how experts are then, if they are.
    """

    trip: Trip
    room: Room
    arrangement: Arrangement = dataclasses.field(metadata={"static": True})
    numbers: jax.Array | None = None
    levelled: Levelled | None = None

    @property
    def crossing(self) -> Crossing | None:
        """Between servers, where tokens cross."""
        return self.trip if isinstance(self.trip, Crossing) else None


def route(
    by_expert: Sorted,
    counts: jax.Array | None,
    arrangement: Arrangement,
    group: ExchangeGroup,
    token: Token,
    levelled: Levelled | None,
) -> tuple[Route, Room]:
    """Where the choices of all devices go, a row for each, and the plan of their exchange.

    Args:
      by_expert: of this device.
      counts: of all devices, by position, shape (devices, num_experts); None if they are to come
        with the plan, where they alone decide what is sent.
      arrangement: of the rows.
      group: its devices, as statistics are told of them.
      token: the plan is made after it.
      levelled: how experts are, if they are.
    """
    experts, me = arrangement.experts, group.position()
    plan = kept = None
    if counts is None:
        sizes = sizes_to_plan(by_expert.counts, by_expert.choices.wrong, token)
        plan, counts = group.plan_and_gather(sizes, experts.count)
    dealt = deal(counts, levelled, arrangement.servers)
    if experts.drop:
        dealt = dealt._replace(sizes=routing.keep(dealt.sizes, experts.rows, experts.alignment))
        kept = routing.kept(by_expert, dealt, me)
    found = routing.find(dealt, me, experts.alignment)
    if plan is None:
        sizes = sizes_to_plan(found[0].send_sizes, by_expert.choices.wrong, token)
        plan = group.plan(sizes, experts.count)
    room = _room(by_expert.choices, kept, counts, dealt)
    route = Route(room.kept, plan, by_expert.order, by_expert.place, *found, experts.rows)
    return checkpoint.named((route, room))


def _room(choices: Choices, kept: jax.Array | None, counts: jax.Array, dealt: Dealt) -> Room:
    """The outcome of sharing out the room; kept is None if all choices that exist are."""
    exists = choices.experts < counts.shape[1]
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
    choices: Choices, arrangement: Arrangement, group: ExchangeGroup
) -> tuple[Choices, Room, Levelled | None]:
    """Counts the choices of all devices, and shares out the room of their experts.

    Returns:
      The choices that find it; the room; and how experts are levelled then, if they are.
    """
    experts, servers = arrangement.experts, arrangement.servers
    by_expert = routing.by_expert(choices, experts.count)
    (counts,) = group.gather([by_expert.counts], experts.count)
    levelled = level(counts.sum(0, dtype=counts.dtype), servers, experts.balance)
    dealt = deal(counts, levelled, servers)
    dealt = dealt._replace(sizes=routing.keep(dealt.sizes, experts.rows, experts.alignment))
    if levelled is not None:
        levelled = of_kept(levelled, dealt.sizes, servers)
    room = _room(choices, routing.kept(by_expert, dealt, group.position()), counts, dealt)
    return choices.only(room.kept, experts.count), room, levelled


class Wanted(NamedTuple):
    """The tokens that are to cross, as far as a device knows it alone.

    Attributes:
      choices: of all tokens.
      servers: int32, shape (tokens, k): the server of each choice; `servers.count` for none.
      goes: bool, shape (tokens, servers): whether a token crosses to a server.
      counts: int32, shape (servers + num_experts,): how many do, then choices of each expert.
    """

    choices: Choices
    servers: jax.Array
    goes: jax.Array
    counts: jax.Array


def want_crossing(choices: Choices, servers: Servers, group: ExchangeGroup) -> Wanted:
    """Counts the tokens that are to cross to each server.

    Args:
      choices: of this device.
      servers: where experts are.
      group: the devices.
    """
    here = quotient(group.rank(), servers.devices)
    chosen = look_up(jnp.asarray(servers.server_of_expert()), choices.experts)
    every = jnp.arange(servers.count, dtype=jnp.int32)
    goes = (chosen[:, :, None] == every[None, None]).any(1) & (every != here)[None]
    of_experts = routing.count(choices.experts, servers.num_experts)
    counts = jnp.concatenate([goes.sum(0, dtype=jnp.int32), of_experts])
    return Wanted(choices, chosen, goes, counts)


@jax.named_scope("moe_cross")
def plan_crossing(
    wanted: Wanted,
    counts: jax.Array,
    room: Room | None,
    servers: Servers,
    group: ExchangeGroup,
    token: Token,
    levelled: Levelled | None,
) -> tuple[Crossing, Room]:
    """Where the tokens of all devices arrive, and the plan of their exchange.

    Args:
      wanted: of this device's tokens.
      counts: of all devices, by position, shape (devices, servers + num_experts).
      room: the outcome of sharing it out; None where there is room for all.
      servers: where experts are.
      group: the devices.
      token: the plan is made after it.
      levelled: how experts are, if they are.
    """
    goes, counted = wanted.goes, wanted.goes.astype(jnp.int32)
    tokens, top_k = wanted.servers.shape
    rank, rank_of = group.rank(), np.array(servers.rank_of)
    counts, of_experts = counts[:, : servers.count], counts[:, servers.count :]
    by_rank = permuted(counts, servers.position_at).reshape(servers.count, -1, servers.count)
    shares = servers.rail_shares()
    sent = landing.rows_to_devices(by_rank, shares, jnp, quotient)
    # Rows lie in lists, by server and so by rank, and arrive by the rank that they come from.
    listed = jnp.cumsum(sent, axis=1, dtype=sent.dtype) - sent
    by_rank = routing.find(Dealt(sent[..., None], listed[..., None]), rank, 1)[:2]
    dispatch, combine = jax.tree.map(lambda a: permuted(a, rank_of), by_rank)
    mine = wanted.counts[: servers.count]
    first = jnp.cumsum(mine, dtype=jnp.int32) - mine
    entry = first[None] + jnp.cumsum(counted, axis=0, dtype=jnp.int32) - counted
    entry = jnp.where(goes, entry, 0)
    token_of, server_of = _list(goes, entry, min(top_k, servers.count - 1))
    sizes = sizes_to_plan(dispatch.send_sizes, wanted.choices.wrong, token)
    crossing = Crossing(
        plan=group.plan(sizes, servers.num_experts),
        dispatch=dispatch,
        combine=combine,
        token=token_of,
        server=server_of,
        entry=entry,
        goes=goes,
        chosen=wanted.servers,
        here=quotient(rank, servers.devices),
        rows=landing.room(tokens, shares),
    )
    if room is None:
        room = _room(wanted.choices, None, of_experts, deal(of_experts, levelled, servers))
    return checkpoint.named((crossing, room))


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
