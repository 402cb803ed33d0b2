"""Tokens to the devices of their experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.moe import (
    arguments,
    checkpoint,
    choosing,
    payload,
    to_experts,
)
from fastjax.moe.by_server import beside_rows, dispatch_by_server
from fastjax.moe.handle import Handle
from fastjax.moe.servers import Servers
from fastjax.moe.to_experts import Experts, Over
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.plan_spec import make_spec


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
    axes, groups, devices = resolve_axis(axis_name, axis_index_groups)
    x, expert_ids = jnp.asarray(x), jnp.asarray(expert_ids)
    arguments.check_tokens(x, expert_ids)
    arguments.check_experts(num_experts, devices)
    arguments.check_count("alignment", alignment)
    arguments.check_deduplicate(deduplicate)
    tokens, top_k = expert_ids.shape
    weights = None if weights is None else arguments.check_weights(weights, (tokens, top_k))
    here = num_experts // devices
    available = arguments.room_of(tokens, top_k, here, devices, buffer_factor)
    rows = -(-(available + here * (alignment - 1)) // alignment) * alignment
    arguments.check_range(rows, devices * tokens * top_k)
    travels_in = payload.check(payload_dtype, x.dtype)
    may_drop = available < devices * tokens * top_k  # with room for all, the program need not look
    experts = Experts(num_experts, rows, alignment, may_drop)

    row_bytes = max(1, payload.row_bytes(x.shape[1], travels_in, x.dtype))
    spec = make_spec(axes, groups, topology, scheduler, row_bytes)
    servers = Servers(spec.topology, spec.rank_of, num_experts)
    beside = beside_rows(top_k, weights, servers)
    crossing_bytes = max(1, payload.layout(x.shape[1], travels_in, x.dtype, beside).row_bytes)
    if weights is not None:
        deduplicate = arguments.check_travelling(weights, deduplicate)
    if deduplicate is None:
        work = choosing.Tokens(tokens, top_k, row_bytes, crossing_bytes)
        deduplicate = choosing.crosses_once(servers, work, spec.scheduler)
    x, expert_ids = jax_compat.vary_together([x, expert_ids], axes)
    if deduplicate and servers.count > 1:
        over = Over(axes, groups, dataclasses.replace(spec, row_bytes=crossing_bytes))
        inside = servers.inside(axes, groups, row_bytes)
        return dispatch_by_server(
            x, expert_ids, weights, experts, servers, over, inside, travels_in
        )
    over = Over(axes, groups, spec)
    found = to_experts.find_route(expert_ids, experts, over)
    handle = Handle(found.route.kept, found.dropped, found.group_rows, weights, found.route, None)
    handle, group_sizes = checkpoint.named((handle, found.group_sizes))
    return to_experts.send(x, handle.route, travels_in), group_sizes, handle
