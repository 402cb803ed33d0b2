"""Sends a row for each choice to the device of its expert, and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import ordering, payload, routing, types
from fastjax.moe.handle import Route
from fastjax.traced.axes import Axes, Groups, position
from fastjax.traced.gathering import gather_counts
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import plan_and_gather, plan_sizes
from fastjax.traced.plan_spec import PlanSpec


@dataclasses.dataclass(frozen=True)
class Over:
    """The devices that exchange.

    Attributes:
      axes: mesh axes.
      groups: groups of their positions, or None.
      spec: what the planner is told.
    """

    axes: Axes
    groups: Groups
    spec: PlanSpec

    def described(self, layer: str) -> Over:
        """The same; messages say of the layer what it does."""
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, layer=layer))

    def told(self, expert_ids: jax.Array) -> Over:
        """The same; statistics are told of these choices, shape (tokens, k)."""
        tokens, top_k = expert_ids.shape
        spec = dataclasses.replace(self.spec, tokens=tokens, top_k=top_k)
        return dataclasses.replace(self, spec=spec)


@dataclasses.dataclass(frozen=True)
class Experts:
    """The experts of devices that exchange with each other, and what goes to them.

    Attributes:
      count: experts of these devices together.
      rows: room of each device.
      alignment: each expert's rows are padded to a multiple of it.
      may_drop: whether there may be more rows than room.
    """

    count: int
    rows: int
    alignment: int
    may_drop: bool


@dataclasses.dataclass(frozen=True)
class Routed:
    """What is known once all choices are counted.

    Attributes:
      route: there and back.
      dropped: choices of this device that found no room.
      group_rows, group_sizes: rows of each local expert, without and with padding.
    """

    route: Route
    dropped: jax.Array
    group_rows: jax.Array
    group_sizes: jax.Array


def sort_choices(expert_ids: jax.Array, experts: Experts) -> routing.Sorted:
    """Choices by expert, and how many each expert has.

    Args:
      expert_ids: shape (tokens, k), varying over the axes; -1 for choices that go nowhere.
      experts: of the devices of a group.
    """
    return routing.by_expert(routing.check(expert_ids, experts.count), experts.count)


def gather(counts: Sequence[jax.Array], over: Over) -> list[jax.Array]:
    """The counts of all devices, by position, by one call for all of the arrays."""
    together = jnp.stack(counts) if len(counts) > 1 else counts[0][None]
    gathered = gather_counts(together, over.axes, over.groups, over.spec)
    return [gathered[:, number] for number in range(len(counts))]


def find_route(
    by_expert: routing.Sorted,
    shape: tuple[int, ...],
    experts: Experts,
    over: Over,
    plan_dependency: ordering.Dependency = None,
) -> Routed:
    """Where the choices of all devices go, and the plan of their exchange.

    Args:
      by_expert: this device's choices, sorted.
      shape: of the choices, (tokens, k).
      experts: of the devices of a group.
      over: the devices.
      plan_dependency: what the plan waits for.
    """
    tokens, top_k = shape
    send = lambda sizes: ordering.wait(refusing(sizes, by_expert.wrong), plan_dependency)  # noqa: E731
    planned = over.axes, over.groups, over.spec, experts.count
    found = functools.partial(
        routing.find,
        me=position(over.axes, over.groups),
        rows=experts.rows,
        alignment=experts.alignment,
        may_drop=experts.may_drop,
    )
    if experts.may_drop:  # what is sent depends on the counts of all
        (counts,) = gather([by_expert.counts], over)
        routes = found(counts)
        plan = plan_sizes(send(routes.there.send_sizes), *planned)
    else:
        plan, counts = plan_and_gather(send(by_expert.counts), *planned)
        routes = found(counts)
    route = Route(
        kept=routing.kept(by_expert, routes.kept, experts.count).reshape(tokens, top_k),
        plan=plan,
        order=by_expert.order,
        place=by_expert.place,
        there=routes.there,
        back=routes.back,
        tokens=tokens,
        top_k=top_k,
        rows=experts.rows,
    )
    dropped = (by_expert.counts - routes.kept).sum(dtype=jnp.int32)
    return Routed(route, dropped, routes.group_rows, routes.group_sizes)


def refusing(send_sizes: jax.Array, wrong: jax.Array) -> jax.Array:
    """Sizes that the planner refuses where a token chose an expert that there is not."""
    return send_sizes.at[0].set(jnp.where(wrong > 0, -wrong, send_sizes[0]))


def send(
    x: jax.Array, route: Route, travels_in: np.dtype, dependency: ordering.Dependency = None
) -> tuple[jax.Array, ordering.Dependency]:
    """Sends the rows of tokens to their experts, after `dependency`.

    Returns:
      The rows at their experts, shape (route.rows, width); and a dependency on the beginning of
      the exchange.
    """
    rows = _spread(x, route)
    ways = route.there, route.back
    rows, dependency, _ = payload.send(rows, route.rows, *ways, route.plan, travels_in, dependency)
    return rows, dependency


def add_up(
    rows: jax.Array,
    route: Route,
    weights: jax.Array | None,
    travels_in: np.dtype,
    dependency: ordering.Dependency = None,
) -> tuple[jax.Array, ordering.Dependency, ordering.Dependency]:
    """Returns the rows of experts to their tokens, weighted and added up, in a wide type.

    Args:
      rows: shape (route.rows, width).
      route: that of `send`.
      weights: of each choice, shape (tokens, k); 1 if left out.
      travels_in: the type that rows travel in.
      dependency: what the exchange waits for.

    Returns:
      Shape (tokens, width); and two dependencies on the beginning of the exchange, as
      `payload.send` returns them.
    """
    choices = (route.tokens, route.top_k)
    each = jnp.ones(choices, rows.dtype) if weights is None else weights
    returned, dependency, experts_dependency = payload.send(
        rows,
        route.tokens * route.top_k,
        route.back,
        route.there,
        route.plan.transpose(),
        travels_in,
        dependency,
    )
    returned = look_up(returned, route.place, unique=True)
    returned = returned.reshape(*choices, rows.shape[1])
    returned, each = jax_compat.vary_together([returned, each], route.plan.axis_name)
    each = jnp.where(route.kept, each, 0)  # of choices that go nowhere, it may be anything
    wide = types.summed_in(rows.dtype, each.dtype)
    return (
        (returned.astype(wide) * each.astype(wide)[..., None]).sum(1),
        dependency,
        experts_dependency,
    )


def _spread(x: jax.Array, route: Route) -> jax.Array:
    """A row for each choice, by expert."""
    # Not x[order // k]: the transpose of that adds rows up in no certain order.
    each = jnp.broadcast_to(x[:, None], (route.tokens, route.top_k, x.shape[1]))
    each = each.reshape(route.tokens * route.top_k, x.shape[1])
    return look_up(each, route.order, unique=True)


__all__ = [
    "Experts",
    "Over",
    "Routed",
    "add_up",
    "find_route",
    "gather",
    "refusing",
    "send",
    "sort_choices",
]
