"""A dispatch in two steps: each token once to each server of its experts, then inside servers."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import (
    checkpoint,
    inside_servers,
    ordering,
    payload,
    room,
    routing,
    to_experts,
    types,
)
from fastjax.moe.crossing import (
    Destinations,
    InFlight,
    cross,
    find_crossing,
    find_destinations,
    land,
    number_type,
    numbers_of,
)
from fastjax.moe.handle import Crossing, Handle
from fastjax.moe.servers import Servers
from fastjax.moe.to_experts import Experts, Over
from fastjax.traced.axes import position
from fastjax.traced.nonnegative import look_up


class CountedCrossing(NamedTuple):
    """What is to cross, as far as a device knows it alone.

    Attributes:
      kept: which choices of this device's tokens find room at their experts.
      dropped: how many do not.
      going: int32, shape (tokens, k): experts of the choices that are kept; num_experts for others.
      wrong: an expert that there is not, or 0.
      destinations: of the tokens.
    """

    kept: jax.Array
    dropped: jax.Array
    going: jax.Array
    wrong: jax.Array
    destinations: Destinations


class PlannedCrossing(NamedTuple):
    """How tokens are to cross.

    Attributes:
      kept: which choices of this device's tokens find room at their experts.
      dropped: how many do not.
      crossing: the way that tokens take.
      numbers: by `numbers_of`.
    """

    kept: jax.Array
    dropped: jax.Array
    crossing: Crossing
    numbers: tuple[jax.Array, jax.Array]


class Crossed(NamedTuple):
    """Tokens in flight to the servers of their experts.

    Attributes:
      in_flight: those that come to this device.
      kept: which choices of this device's tokens find room at their experts.
      dropped: how many do not.
      crossing: the way that tokens came.
    """

    in_flight: InFlight
    kept: jax.Array
    dropped: jax.Array
    crossing: Crossing


def count_crossing(
    expert_ids: jax.Array, experts: Experts, servers: Servers, over: Over
) -> CountedCrossing:
    """Counts the tokens that are to cross to each server.

    Args:
      expert_ids: see `dispatch`.
      experts: of the devices of a group.
      servers: where they are.
      over: those devices.
    """
    choices = routing.check(expert_ids, experts.count)
    kept, dropped = find_room(choices, experts, over)
    going = jnp.where(kept, choices.experts, experts.count)
    destinations = find_destinations(going, servers, over)
    return CountedCrossing(kept, dropped, going, choices.wrong, destinations)


def plan_crossing(
    counted: CountedCrossing,
    counts: jax.Array,
    servers: Servers,
    over: Over,
    plan_dependency: ordering.Dependency,
) -> PlannedCrossing:
    """Plans the exchange of `cross_once`.

    Args:
      counted: by `count_crossing`.
      counts: of all devices, by position.
      servers: where experts are.
      over: the devices.
      plan_dependency: what the plan waits for.
    """
    kept, dropped, going, wrong, destinations = counted
    crossing = checkpoint.named(
        find_crossing(destinations, counts, wrong, servers, over, plan_dependency)
    )
    return PlannedCrossing(kept, dropped, crossing, numbers_of(going, crossing, servers))


def cross_once(
    x: jax.Array,
    weights: jax.Array | None,
    planned: PlannedCrossing,
    travels_in: np.dtype,
    dependency: ordering.Dependency,
) -> tuple[Crossed, ordering.Dependency]:
    """Sends tokens to the servers of their experts, once to each server.

    Args:
      x: tokens; see `dispatch`.
      weights: see `dispatch`.
      planned: by `plan_crossing`.
      travels_in: the type that rows travel in.
      dependency: what the crossing waits for.

    Returns:
      What crosses, and a dependency on the beginning of the crossing.
    """
    kept, dropped, crossing, numbers = planned
    in_flight, dependency = cross(x, weights, numbers, crossing, travels_in, dependency)
    return Crossed(in_flight, kept, dropped, crossing), dependency


def spread_inside(
    crossed: Crossed,
    experts: Experts,
    servers: Servers,
    inside: Over,
    travels_in: np.dtype,
    landing_dependency: ordering.Dependency,
    experts_dependency: ordering.Dependency,
    sums_dependency: ordering.Dependency,
) -> tuple[jax.Array, jax.Array, Handle, ordering.Dependency, ordering.Dependency]:
    """Sends what crossed to its experts, a copy to each.

    Args:
      crossed: by `cross_once`.
      experts: see there.
      servers: see there.
      inside: the devices of each server.
      travels_in: the type that rows travel in.
      landing_dependency: what the landing of tokens waits for.
      experts_dependency: what the experts wait for.
      sums_dependency: see `inside_servers.send`.

    Returns:
      What `dispatch` does; a dependency for the landing of the next chunk; and `sums_dependency`.
    """
    landed = land(crossed.in_flight, landing_dependency)
    # What finds no room has been taken out, so there is room for the rest.
    in_server = dataclasses.replace(experts, count=servers.experts, may_drop=False)
    by_expert = to_experts.sort_choices(landed.expert_ids, in_server)
    shape = landed.expert_ids.shape
    found = to_experts.find_route(by_expert, shape, in_server, inside, landing_dependency)
    handle = Handle(
        crossed.kept, crossed.dropped, found.group_rows, None, found.route, crossed.crossing
    )
    handle, group_sizes = checkpoint.named((handle, found.group_sizes))
    if landed.weights is not None:
        handle = dataclasses.replace(
            handle,
            weights=inside_servers.send_weights(landed.weights, handle.route, experts_dependency),
        )
    dtype = landed.x.dtype
    stays_in = dtype if payload.has_scales(travels_in, dtype) else travels_in
    rows, sums_dependency = inside_servers.send(
        landed.x, handle.route, stays_in, experts_dependency, sums_dependency
    )
    waited_for = [landed.x, handle.route.plan.table]
    landing_dependency = ordering.on_all(waited_for, landing_dependency)
    return rows, group_sizes, handle, landing_dependency, sums_dependency


def find_room(
    choices: routing.Choices, experts: Experts, over: Over
) -> tuple[jax.Array, jax.Array]:
    """Which choices find room at their experts, as without deduplication, and how many do not."""
    exists = choices.experts < experts.count
    if not experts.may_drop:
        return exists, jnp.zeros_like(choices.wrong)
    by_expert = routing.by_expert(choices, experts.count)
    (counts,) = to_experts.gather([by_expert.counts], over)
    blocks = counts.reshape(len(counts), len(counts), -1)
    going = room.keep(blocks, experts.rows, experts.alignment)
    going = look_up(going, position(over.axes, over.groups))
    kept = routing.kept(by_expert, going.reshape(-1), experts.count).reshape(exists.shape)
    return kept, (exists.sum(dtype=jnp.int32) - kept.sum(dtype=jnp.int32))


def beside_rows(
    top_k: int, weights: jax.Array | None, servers: Servers
) -> tuple[tuple[int, np.dtype], ...]:
    """The columns that travel with a token's row, and their types."""
    numbers = (top_k, number_type(servers))
    if weights is None:
        return (numbers,)
    return (top_k, types.summed_in(weights.dtype)), numbers


__all__ = [
    "CountedCrossing",
    "Crossed",
    "PlannedCrossing",
    "beside_rows",
    "count_crossing",
    "cross_once",
    "find_room",
    "plan_crossing",
    "spread_inside",
]
