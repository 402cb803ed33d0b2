"""Where rows go, a row for each choice, and the plan of their exchange."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fastjax.moe import routing
from fastjax.moe.handle import Route
from fastjax.moe.servers import ExchangeGroup, Experts
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import plan_and_gather, plan_sizes


class Room(NamedTuple):
    """Which choices of a device find room at their experts if all go at once.

    Attributes:
      kept: bool, shape (tokens, k).
      dropped: how many do not.
      expert_rows: choices of all devices for each expert, shape (num_experts,).
      rows: those that this device's experts get.
    """

    kept: jax.Array
    dropped: jax.Array
    expert_rows: jax.Array
    rows: jax.Array


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
      group_rows, group_sizes: rows of each local expert, without and with padding.
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
) -> Routed:
    """Where the choices of all devices go, and the plan of their exchange.

    Args:
      expert_ids: shape (tokens, k), varying over the axes; -1 for choices that go nowhere.
      experts: of the devices of a group.
      group: the devices.
      token: the plan is made after it.
    """
    tokens, top_k = expert_ids.shape
    by_expert = routing.by_expert(routing.check(expert_ids, experts.count), experts.count)
    plan_arguments = group.axes, group.groups, group.spec, experts.count
    find = functools.partial(
        routing.find,
        me=group.position(),
        rows=experts.rows,
        alignment=experts.alignment,
        may_drop=experts.may_drop,
    )
    if experts.may_drop:  # the rows to send depend on the counts of all devices
        (counts,) = group.gather([by_expert.counts])
        routes = find(counts)
        sizes = sizes_to_plan(routes.dispatch.send_sizes, by_expert.wrong, token)
        plan = plan_sizes(sizes, *plan_arguments)
    else:
        sizes = sizes_to_plan(by_expert.counts, by_expert.wrong, token)
        plan, counts = plan_and_gather(sizes, *plan_arguments)
        routes = find(counts)
    route = Route(
        kept=routing.kept(by_expert, routes.kept, experts.count).reshape(tokens, top_k),
        plan=plan,
        order=by_expert.order,
        place=by_expert.place,
        dispatch=routes.dispatch,
        combine=routes.combine,
        tokens=tokens,
        top_k=top_k,
        rows=experts.rows,
    )
    dropped = (by_expert.counts - routes.kept).sum(dtype=jnp.int32)
    rows = routes.group_rows.sum(dtype=counts.dtype)
    room = Room(route.kept, dropped, counts.sum(0, dtype=counts.dtype), rows)
    return Routed(route, room, routes.group_rows, routes.group_sizes)


def sizes_to_plan(send_sizes: jax.Array, wrong: jax.Array, token: jax.Array | None) -> jax.Array:
    """Sizes, after `token`; the planner refuses them where an expert id is out of range."""
    sizes = send_sizes.at[0].set(jnp.where(wrong > 0, -wrong, send_sizes[0]))
    return sizes if token is None else after(sizes, token)


def find_room(choices: routing.Choices, experts: Experts, group: ExchangeGroup) -> Room:
    """Counts the choices of all devices, and shares out the room of their experts."""
    exists = choices.experts < experts.count
    by_expert = routing.by_expert(choices, experts.count)
    (counts,) = group.gather([by_expert.counts])
    blocks = counts.reshape(len(counts), len(counts), -1)
    going, me = routing.keep(blocks, experts.rows, experts.alignment), group.position()
    kept = routing.kept(by_expert, look_up(going, me).reshape(-1), experts.count)
    kept = kept.reshape(exists.shape)
    return Room(
        kept,
        exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32),
        counts.sum(0, dtype=counts.dtype),
        look_up(going, slice(None), me).sum(dtype=jnp.int32),
    )


__all__ = ["Room", "Routed", "find_room", "find_route", "sizes_to_plan"]
