"""`dispatch` sends tokens to the devices of their experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.moe import arguments, checkpoint, ordering, to_experts
from fastjax.moe.arrangement import Arrangement, arrange
from fastjax.moe.by_server import (
    Crossed,
    PlannedCrossing,
    count_crossing,
    cross_once,
    plan_crossing,
    spread_inside,
)
from fastjax.moe.handle import Handle
from fastjax.moe.to_experts import Routed
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis


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
) -> tuple[jax.Array, jax.Array, Handle]:
    """Sends tokens to the devices of the experts that they chose.

    To be called inside `jax.shard_map`. Device d of the axis, or of its group, holds the experts
    from d * num_experts / devices on. Plans once: `combine` and both gradients use that plan.
    Deduplicated tokens need a second plan, inside servers.

    Args:
      x: tokens of this device, shape (tokens, width).
      expert_ids: experts of each token, integers, shape (tokens, k). -1: none, for choices that go
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
      weights: of each token's choices, shape (tokens, k), for `combine`, which then needs none.
        Deduplicated tokens take them along.
      deduplicate: whether a token goes once to each server that has experts of its, and is copied
        there; what they make of it is then summed there before it comes back. By default where the
        cost model predicts that it is faster, so not on one server. There is no forward mode.

    Returns:
      Three things:

      - rows: what arrived, by local expert and then by sender, or by the device of this server that
        it crossed to, shape (room, width); zero where nothing did.
      - group_sizes: int32, shape (experts of a device,): rows of each local expert with padding,
        for `jax.lax.ragged_dot`.
      - handle: for `combine`; it also tells what was dropped.

    Raises:
      ArgumentError: shapes or types do not fit, num_experts is no multiple of the devices, or
        an option makes no sense.
      TopologyError, OptionError, UnsupportedError, NameError, jax.errors.JaxRuntimeError: as
        `fast_ragged_all_to_all`.
    """
    resolve_axis(axis_name, axis_index_groups)  # that there is no axis comes first
    x, expert_ids, weights = arguments.check_tokens(x, expert_ids, weights)
    arrangement = arrange(
        x,
        expert_ids,
        weights,
        num_experts=num_experts,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
        topology=topology,
        scheduler=scheduler,
        buffer_factor=buffer_factor,
        alignment=alignment,
        payload_dtype=payload_dtype,
        deduplicate=deduplicate,
    )
    x, expert_ids = jax_compat.vary_together([x, expert_ids], arrangement.over.axes)
    (planned,), _ = plan_dispatches([expert_ids], [arrangement])
    in_flight, _ = start_dispatch(x, weights, planned, arrangement, None)
    rows, group_sizes, handle, *_ = finish_dispatch(in_flight, arrangement)
    return rows, group_sizes, handle


Arrived = tuple[jax.Array, jax.Array, Handle]


Planned = PlannedCrossing | Routed


def plan_dispatches(
    expert_ids: Sequence[jax.Array], arrangements: Sequence[Arrangement]
) -> tuple[list[Planned], ordering.Dependency]:
    """Plans the exchange of `dispatch` between all devices for each chunk of tokens.

    One collective gathers the counts of all chunks. A plan that is refused ends the program on all
    devices. No device may then have begun what waits for the others: so no plan is made before all
    counts are gathered, and none before the first. That is the one that is refused, since it gets
    the wrong choices of all chunks (`whole_layer`). The others are made at once, so plans are made
    in two rounds, whatever the number of chunks.

    Args:
      expert_ids: of each chunk, shape (tokens, k).
      arrangements: of each chunk, which differ in the experts' rows only.

    Returns:
      What `start_dispatch` takes, for each chunk; and a dependency on all plans, None if there is
      one chunk.
    """
    chunks = list(zip(expert_ids, arrangements, strict=True))
    first = arrangements[0]
    over = first.crossing if first.once else first.over
    dependency = ordering.satisfied() if len(chunks) > 1 else None
    planned: list[Planned] = []
    tables: list[jax.Array] = []
    if first.once:
        crossings = [count_crossing(ids, a.experts, a.servers, over) for ids, a in chunks]
        counts = to_experts.gather([counted.destinations.counts for counted in crossings], over)
        for counted, of_all, ids in zip(crossings, counts, expert_ids, strict=True):
            crossing = plan_crossing(counted, of_all, first.servers, over.told(ids), dependency)
            if not planned:
                dependency = ordering.on_all([crossing.crossing.plan.table], dependency)
            tables.append(crossing.crossing.plan.table)
            planned.append(crossing)
        return planned, ordering.on_all(tables, dependency)
    choices = [to_experts.sort_choices(ids, a.experts) for ids, a in chunks]
    for by_expert, (ids, a) in zip(choices, chunks, strict=True):
        found = to_experts.find_route(by_expert, ids.shape, a.experts, over.told(ids), dependency)
        if dependency is not None:
            # Before rows depend on it, or a backward pass that makes these again would plan again.
            found = dataclasses.replace(found, route=checkpoint.named(found.route))
        if not planned:
            dependency = ordering.on_all([found.route.plan.table], dependency)
        tables.append(found.route.plan.table)
        planned.append(found)
    return planned, ordering.on_all(tables, dependency)


def start_dispatch(
    x: jax.Array,
    weights: jax.Array | None,
    planned: Planned,
    arrangement: Arrangement,
    dependency: ordering.Dependency,
) -> tuple[Crossed | Arrived, ordering.Dependency]:
    """Starts the exchange of `dispatch` between all devices, after `dependency`.

    Returns:
      What `finish_dispatch` takes, and a dependency on the beginning of the exchange.
    """
    travels_in = arrangement.travels_in
    if isinstance(planned, PlannedCrossing):
        return cross_once(x, weights, planned, travels_in, dependency)
    route = planned.route
    handle = Handle(route.kept, planned.dropped, planned.group_rows, weights, route, None)
    handle, group_sizes = checkpoint.named((handle, planned.group_sizes))
    rows, dependency = to_experts.send(x, handle.route, travels_in, dependency)
    return (rows, group_sizes, handle), dependency


def finish_dispatch(
    in_flight: Crossed | Arrived,
    arrangement: Arrangement,
    landing_dependency: ordering.Dependency = None,
    experts_dependency: ordering.Dependency = None,
    sums_dependency: ordering.Dependency = None,
) -> tuple[jax.Array, jax.Array, Handle, ordering.Dependency, ordering.Dependency]:
    """Returns what `dispatch` does, once the exchange of `start_dispatch` has ended.

    Args:
      in_flight: from `start_dispatch`.
      arrangement: the same.
      landing_dependency: what the landing of tokens that cross once waits for.
      experts_dependency: what the experts wait for.
      sums_dependency: that of `combine_in_order`.

    Returns:
      What `dispatch` does; a dependency for the landing of the next chunk; and `sums_dependency`.
    """
    if isinstance(in_flight, Crossed):
        return spread_inside(
            in_flight,
            arrangement.experts,
            arrangement.servers,
            arrangement.inside,
            arrangement.travels_in,
            landing_dependency,
            experts_dependency,
            sums_dependency,
        )
    rows, group_sizes, handle = in_flight
    rows = ordering.chain(rows, experts_dependency)
    return rows, group_sizes, handle, landing_dependency, sums_dependency
