"""`dispatch` sends tokens to the devices of their experts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import (
    arguments,
    checkpoint,
    crossing,
    each_choice,
    inside_servers,
    linear,
    planning_crossings,
    routing,
)
from fastjax.moe.arrangement import Arrangement, Options, arrange
from fastjax.moe.balancing import Balancing
from fastjax.moe.handle import Handle
from fastjax.moe.levelled import Levelled, deal, level
from fastjax.moe.planning import Routed, find_route, route
from fastjax.moe.planning_copies import plan_copies
from fastjax.moe.planning_crossings import Planned, PlannedCrossing
from fastjax.moe.servers import ExchangeGroup
from fastjax.topology import AxisName, Topology
from fastjax.traced.after import after
from fastjax.traced.axes import resolve_axis


@arguments.with_buffer_factor
@jax.named_scope("moe_dispatch")
def dispatch(
    x: jax.Array,
    expert_ids: jax.Array,
    *,
    num_experts: int,
    axis_name: AxisName,
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    buffer_factor: float | None = None,
    alignment: int = 1,
    payload_dtype: DTypeLike | None = None,
    weights: jax.Array | None = None,
    deduplicate: bool | None = None,
    balance: bool = False,
    copies: int = 4,
    no_expert: int | None = None,
) -> tuple[jax.Array, jax.Array, Handle]:
    """Sends tokens to the devices of the experts that they chose.

    To be called inside `jax.shard_map`. Device d of the axis, or of its group, holds the experts
    from d * num_experts / devices on. Plans once: `combine` and both gradients use that plan.
    Deduplicated tokens need a second plan, inside servers.

    Args:
      x: tokens of this device, shape (..., width): any number of axes in front.
      expert_ids: experts of each token, integers, shape (..., k). -1: none, for choices that go
        nowhere. The exchange fails where there is no such expert.
      num_experts: experts of all devices together, a multiple of the devices.
      axis_name: mesh axis, or several, that experts are spread over.
      axis_index_groups: groups of axis positions, each with all experts.
      topology: the fabric; by default that of `fastjax.options` or of the processes.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.
      buffer_factor: room for arriving rows, as a multiple of tokens * k; what a device gets if all
        devices get the same is 1. By default there is room for all that can arrive, as long as the
        choices of a token are different experts. Where more arrive, the device's most popular
        experts lose rows, and of these the senders that have most, their last tokens.
      alignment: each expert's rows are padded with zeros to a multiple of this many.
      payload_dtype: floating-point type that rows travel in, and then are x's again; by default
        x's. What it cannot hold, float16's infinities say, is lost. In a type of one byte (fp8)
        rows have a scale each, gradients are sent in x's type, and there is no forward mode.
      weights: of each token's choices, shape (..., k), for `combine`, which then needs none.
        Deduplicated tokens take them along.
      deduplicate: whether a token goes once to each server that has experts of its, and is copied
        there; what they make of it is then summed there before it comes back. By default where the
        cost model predicts that it is faster, so not on one server. There is no forward mode.
      balance: whether devices of a server compute rows of each other's popular experts, so that
        none has more than others. Groups of rows are then those of a device's own experts, and
        behind them those of its copies of others: `handle.params` has the params for these.
      copies: the most copies of experts that a device has then; no more than its server has other
        experts.
      no_expert: a number that means no expert in expert_ids, beside -1: num_experts, for instance.

    Returns:
      Three things:

      - rows: what arrived, by group and then by sender, or by the device of this server that
        it crossed to, shape (room, width); zero where nothing did. A group is a local expert, or
        with balance a copy of another.
      - group_sizes: int32, shape (groups,): rows of each with padding, for `jax.lax.ragged_dot`.
      - handle: for `combine`; it also tells what was dropped.

    Raises:
      ArgumentError: shapes or types do not fit, num_experts is no multiple of the devices, or
        an option makes no sense.
      TopologyError, OptionError, UnsupportedError, NameError, jax.errors.JaxRuntimeError: as
        `fast_ragged_all_to_all`.
    """
    resolve_axis(axis_name, axis_index_groups)  # that there is no axis comes first
    tokens = arguments.check_tokens(x, expert_ids, weights, num_experts, no_expert)
    x, expert_ids, weights, shape = tokens
    if balance is None:
        raise ArgumentError("balance must be True or False, got None.")
    options = Options(
        num_experts,
        axis_name,
        axis_index_groups,
        topology,
        scheduler,
        buffer_factor,
        alignment,
        payload_dtype,
        deduplicate,
        Balancing(balance, copies),
    )
    arrangement = arrange(x, expert_ids, weights, options)
    x, expert_ids = jax_compat.vary_together([x, expert_ids], arrangement.group.axes)
    plans = plan_dispatches([expert_ids], [arrangement])
    rows, group_sizes, handle = send_tokens(x, weights, plans.planned[0], arrangement)
    made = plan_copies(plans.levelled, arrangement, plans.first())
    kept = tokens.restored(handle.kept)
    return rows, group_sizes, dataclasses.replace(handle, kept=kept, shape=shape, copies=made)


class Plans(NamedTuple):
    """The plans of chunks.

    Attributes:
      planned: of each chunk.
      token: exists after all of them; None if there is one.
      levelled: how experts are, if they are.
    """

    planned: list[Planned]
    token: jax.Array | None
    levelled: Levelled | None

    def first(self) -> jax.Array:
        """Exists after the first plan, the one that is refused."""
        return _table(self.planned[0])

    def params(self, params: Any, arrangement: Arrangement) -> Any:
        """Of all groups of a device, from those of its experts."""
        if not jax.tree.leaves(params):
            return params
        copies = plan_copies(self.levelled, arrangement, self.first())
        return params if copies is None else copies.params(params)


def plan_dispatches(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None = None,
) -> Plans:
    """Plans the exchange of `dispatch` between all devices for each chunk of tokens.

    One collective gathers the counts of all chunks. A plan that is refused ends the program on all
    devices. No device may then have begun an exchange that waits for the others: so no plan is made
    before all counts are gathered, and none before the first. That is the one that is refused,
    since it gets the wrong choices of all chunks (`whole_layer`). The others are made at once, so
    plans are made in two rounds, whatever the number of chunks.

    Args:
      expert_ids: of each chunk, shape (tokens, k).
      arrangements: of each chunk, which differ in the experts' rows only.
      levelled: how experts are, if that has been decided; otherwise it is by the rows of all
        chunks.
    """
    arrangement = arrangements[0]
    group = arrangement.crossing if arrangement.deduplicated else arrangement.group
    groups = [group.of_choices(ids) for ids in expert_ids]
    if arrangement.deduplicated:
        plans = _plan_crossings(expert_ids, arrangements, groups, levelled)
    elif arrangement.experts.balance is not None:
        plans = _plan_levelled(expert_ids, arrangements, groups, levelled)
    else:
        planned: list[Planned] = []
        for ids, told, a in zip(expert_ids, groups, arrangements, strict=True):
            token = _table(planned[0]) if planned else None
            planned.append(checkpoint.named(find_route(ids, a.experts, told, token)))
        plans = Plans(planned, None, None)
    if len(plans.planned) == 1:
        return plans
    token = jnp.zeros((), jnp.float32)
    for plan in plans.planned:
        token = after(token, _table(plan))
    return plans._replace(token=jax.lax.stop_gradient(token))


def _plan_crossings(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    groups: Sequence[ExchangeGroup],
    levelled: Levelled | None,
) -> Plans:
    """Plans for tokens that cross once."""
    servers = arrangements[0].servers
    wanted = [
        planning_crossings.count(ids, a.experts, servers, told)
        for ids, a, told in zip(expert_ids, arrangements, groups, strict=True)
    ]
    # Of those that find room. Where some may not, all have been counted before.
    experts = arrangements[0].experts.count if wanted[0].room is None else 0
    told = groups[0].of_choices(*expert_ids)
    counts = told.gather([tokens.counts for tokens in wanted], experts, servers.count)
    if levelled is None:
        of_experts = [told[:, servers.count :] for told in counts]
        levelled = wanted[0].levelled or _levelled(of_experts, arrangements[0])
    planned: list[Planned] = []
    for tokens, of_all, told in zip(wanted, counts, groups, strict=True):
        token = _table(planned[0]) if planned else None
        planned.append(planning_crossings.plan(tokens, of_all, servers, told, token, levelled))
    return Plans(planned, None, levelled)


def _plan_levelled(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    groups: Sequence[ExchangeGroup],
    levelled: Levelled | None,
) -> Plans:
    """Plans for a row for each choice, to experts that are levelled."""
    count = arrangements[0].experts.count
    sorted_ = [routing.by_expert(routing.check(ids, count), count) for ids in expert_ids]
    counts = groups[0].of_choices(*expert_ids).gather([c.counts for c in sorted_], count)
    levelled = levelled or _levelled(counts, arrangements[0])
    dealing = functools.partial(deal, levelled=levelled, servers=arrangements[0].servers)
    planned: list[Planned] = []
    for ids, choices, of_all, told, a in zip(
        expert_ids, sorted_, counts, groups, arrangements, strict=True
    ):
        token = _table(planned[0]) if planned else None
        found = route(choices, of_all, ids.shape, a.experts, told, token, dealing)
        planned.append(checkpoint.named(found))
    return Plans(planned, None, levelled)


def _levelled(counts: Sequence[jax.Array], arrangement: Arrangement) -> Levelled | None:
    """How experts are levelled for the rows of all chunks, if they are."""
    rows = [told.sum(0, dtype=told.dtype) for told in counts]
    return level(functools.reduce(jnp.add, rows), arrangement.servers, arrangement.experts.balance)


def _table(planned: Planned) -> jax.Array:
    way = planned.route if isinstance(planned, Routed) else planned.crossing
    return way.plan.table


def send_tokens(
    x: jax.Array, weights: jax.Array | None, planned: Planned, arrangement: Arrangement
) -> tuple[jax.Array, jax.Array, Handle]:
    """Does what `dispatch` does, along a plan, with derivatives."""
    wire = arrangement.wire
    if isinstance(planned, Routed):
        each = each_choice.of_each_choice(x, planned.route)
        rows = each_choice.exchange(each, planned.route, wire, dispatches=True)
        return rows, planned.group_sizes, handle_of(planned, weights)
    way = planned.crossing
    mapped = crossing.Crossed(wire, crossing.gradient_wire(wire, x.dtype))
    operands, constants = (x, crossing.weights_to_send(weights, len(x))), (planned.numbers, way)
    crossed = linear.apply(mapped, operands, constants, way.plan.axis_name)
    routed = arrangement.route_inside(crossed[2], planned.levelled)
    rows = crossed[0].astype(inside_servers.copied_type(x.dtype, wire))
    rows = inside_servers.copy_to_experts(rows, routed.route).astype(x.dtype)
    each = None if weights is None else inside_servers.send_weights(crossed[1], routed.route)
    return rows, routed.group_sizes, handle_of(routed, each, planned)


def handle_of(
    routed: Routed, weights: jax.Array | None, crossed: PlannedCrossing | None = None
) -> Handle:
    """The handle of a dispatch.

    Args:
      routed: to experts.
      weights: of choices, or of rows at experts where tokens cross once.
      crossed: to other servers before that, where tokens cross once.
    """
    room, way = (routed.room, None) if crossed is None else (crossed.room, crossed.crossing)
    kept, dropped, way = checkpoint.named((room.kept, room.dropped, way))
    return Handle(kept, dropped, routed.group_rows, weights, routed.route, way, kept.shape[:-1])


__all__ = [
    "Plans",
    "dispatch",
    "handle_of",
    "plan_dispatches",
    "send_tokens",
]
