"""Where rows go, a row for each choice, and the plan of their exchange."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fastjax.moe import routing
from fastjax.moe.handle import Route
from fastjax.moe.levelled import Dealt, Levelled, deal, level, of_kept
from fastjax.moe.servers import ExchangeGroup, Experts, Servers
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import TracedPlan, plan_and_gather, plan_sizes

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


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["route", "room", "group_rows", "group_sizes"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Routed:
    """The outcome of counting the choices of all devices.

    Attributes:
      route: there and back.
      room: which choices found it.
      group_rows, group_sizes: rows of each group of this device, without and with padding.
    """

    route: Route
    room: Room
    group_rows: jax.Array
    group_sizes: jax.Array


def find_route(
    expert_ids: jax.Array,
    experts: Experts,
    group: ExchangeGroup,
    token: jax.Array | None = None,
    deal: Deal | None = None,
) -> Routed:
    """Where the choices of all devices go, and the plan of their exchange.

    Args:
      expert_ids: shape (tokens, k), varying over the axes; -1 for choices that go nowhere.
      experts: of the devices of a group.
      group: the devices.
      token: the plan is made after it.
      deal: deals the counts of all devices to these; None where rows are computed at home.
    """
    by_expert = routing.by_expert(routing.check(expert_ids, experts.count), experts.count)
    if experts.may_drop or deal is not None:  # the rows to send depend on the counts of all devices
        (counts,) = group.gather([by_expert.counts], experts.count)
        return route(by_expert, counts, expert_ids.shape, experts, group, token, deal)
    sizes = sizes_to_plan(by_expert.counts, by_expert.wrong, token)
    plan, counts = plan_and_gather(sizes, group.axes, group.groups, group.spec, experts.count)
    found = routing.find(routing.at_home(counts), group.position(), experts.alignment)
    return _routed(by_expert, counts, expert_ids.shape, experts, found, plan, None)


def route(
    by_expert: routing.Sorted,
    counts: jax.Array,
    choices: tuple[int, ...],
    experts: Experts,
    group: ExchangeGroup,
    token: jax.Array | None,
    deal: Deal | None,
) -> Routed:
    """Does what `find_route` does, for choices that have been sorted, and counted on all devices.

    Args:
      by_expert: of this device, sorted.
      counts: of all devices, by position, shape (devices, num_experts).
      choices: shape of the choices, (tokens, k).
      experts: see `find_route`.
      group: see `find_route`.
      token: see `find_route`.
      deal: see `find_route`.
    """
    dealt = routing.at_home(counts) if deal is None else deal(counts)
    if experts.may_drop:
        dealt = dealt._replace(sizes=routing.keep(dealt.sizes, experts.rows, experts.alignment))
    me = group.position()
    found = routing.find(dealt, me, experts.alignment)
    sizes = sizes_to_plan(found.dispatch.send_sizes, by_expert.wrong, token)
    plan = plan_sizes(sizes, group.axes, group.groups, group.spec, experts.count)
    going = [look_up(array, me).reshape(-1) for array in (dealt.starts, dealt.sizes)]
    kept = routing.kept(by_expert, *going) if experts.may_drop else None
    return _routed(by_expert, counts, choices, experts, found, plan, kept)


def _routed(
    by_expert: routing.Sorted,
    counts: jax.Array,
    choices: tuple[int, ...],
    experts: Experts,
    found: routing.Routes,
    plan: TracedPlan,
    kept: jax.Array | None,
) -> Routed:
    exists = look_up(by_expert.experts < experts.count, by_expert.place)
    kept = exists if kept is None else kept
    tokens, top_k = choices
    route = Route(
        kept=kept.reshape(tokens, top_k),
        plan=plan,
        order=by_expert.order,
        place=by_expert.place,
        dispatch=found.dispatch,
        combine=found.combine,
        tokens=tokens,
        top_k=top_k,
        rows=experts.rows,
    )
    dropped = exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32)
    room = Room(route.kept, dropped, counts.sum(0, dtype=counts.dtype), found.device_rows)
    return Routed(route, room, found.group_rows, found.group_sizes)


def sizes_to_plan(send_sizes: jax.Array, wrong: jax.Array, token: jax.Array | None) -> jax.Array:
    """Sizes, after `token`; the planner refuses them where an expert id is out of range."""
    sizes = send_sizes.at[0].set(jnp.where(wrong > 0, -wrong, send_sizes[0]))
    return sizes if token is None else after(sizes, token)


def find_room(
    choices: routing.Choices, experts: Experts, servers: Servers, group: ExchangeGroup
) -> tuple[Room, Levelled | None]:
    """Counts the choices of all devices, and shares out the room of their experts.

    Returns:
      The room; and how experts are levelled then, if they are.
    """
    by_expert = routing.by_expert(choices, experts.count)
    (counts,) = group.gather([by_expert.counts], experts.count)
    expert_rows = counts.sum(0, dtype=counts.dtype)
    levelled = level(expert_rows, servers, experts.balance)
    dealt = deal(counts, levelled, servers)
    going, me = routing.keep(dealt.sizes, experts.rows, experts.alignment), group.position()
    if levelled is not None:
        levelled = of_kept(levelled, going, servers)
    slices = [look_up(array, me).reshape(-1) for array in (dealt.starts, going)]
    kept = routing.kept(by_expert, *slices).reshape(choices.experts.shape)
    exists = choices.experts < experts.count
    dropped = exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32)
    return Room(kept, dropped, expert_rows, going.sum((0, 2), dtype=going.dtype)), levelled


__all__ = ["Deal", "Room", "Routed", "find_room", "find_route", "route", "sizes_to_plan"]
