"""Tokens to the devices of their experts."""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import checkpoint, payload, routing
from fastjax.moe.handle import Handle
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import position, resolve_axis
from fastjax.traced.plan import plan_sizes
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
) -> tuple[jax.Array, jax.Array, Handle]:
    """Sends tokens to the devices of the experts that they chose.

    To be called inside `jax.shard_map`. Device d of the axis, or of its group, holds the experts
    from d * num_experts / devices on. Plans once: `combine` and both gradients use that plan.

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

    Returns:
      Three things:

      - rows: what arrived, by local expert and then by sender, shape (room, width); zero where
        nothing did.
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
    _check_tokens(x, expert_ids)
    _check_experts(num_experts, devices)
    _check_count("alignment", alignment)
    tokens, top_k = expert_ids.shape
    here = num_experts // devices
    room = _room(tokens, top_k, here, devices, buffer_factor)
    rows = -(-(room + here * (alignment - 1)) // alignment) * alignment
    _check_range(rows, devices * tokens * top_k)
    travels_in = payload.check(payload_dtype, x.dtype)

    x, expert_ids = jax_compat.vary_together([x, expert_ids], axes)
    by_expert = routing.by_expert(expert_ids, num_experts)
    counts = jax.lax.all_gather(by_expert.counts, axes, axis_index_groups=groups)
    may_drop = room < devices * tokens * top_k  # with room for all, the program need not look
    routes = routing.find(counts, position(axes, groups), rows, alignment, may_drop=may_drop)
    row_bytes = max(1, payload.row_bytes(x.shape[1], travels_in, x.dtype))
    plan = plan_sizes(
        _refusing(routes.there.send_sizes, by_expert.wrong),
        axes,
        groups,
        make_spec(axes, groups, topology, scheduler, row_bytes),
        num_experts,
    )
    kept = _kept(by_expert, routes)
    handle = Handle(
        kept=kept[by_expert.place].reshape(tokens, top_k),
        dropped=(by_expert.counts - routes.kept).sum(dtype=jnp.int32),
        group_rows=routes.group_rows,
        plan=plan,
        order=by_expert.order,
        place=by_expert.place,
        there=routes.there,
        back=routes.back,
        tokens=tokens,
        top_k=top_k,
        rows=rows,
    )
    handle, group_sizes = checkpoint.named((handle, routes.group_sizes))
    sent = payload.send(
        _spread(x, handle), rows, handle.there, handle.back, handle.plan, travels_in
    )
    return sent, group_sizes, handle


def _check_tokens(x: jax.Array, expert_ids: jax.Array) -> None:
    if x.ndim != 2:
        raise ArgumentError(f"x must be tokens, shape (tokens, width), got shape {x.shape}.")
    if expert_ids.ndim != 2 or expert_ids.shape[0] != x.shape[0] or expert_ids.shape[1] < 1:
        raise ArgumentError(
            f"expert_ids must have the experts of each of x's {x.shape[0]} tokens, shape "
            f"({x.shape[0]}, k), got shape {expert_ids.shape}."
        )
    if not np.issubdtype(expert_ids.dtype, np.integer):
        raise ArgumentError(f"expert_ids must be integers, got {expert_ids.dtype}.")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ArgumentError(f"{name} must be a positive integer, got {value!r}.")
    if value >= 2**31:
        raise ArgumentError(f"{name} must be below 2^31, got {value}.")


def _check_experts(num_experts: int, devices: int) -> None:
    _check_count("num_experts", num_experts)
    if num_experts % devices:
        raise ArgumentError(
            f"num_experts must be a multiple of the {devices} devices that share them, as many on "
            f"each; got {num_experts}."
        )


def _check_range(rows: int, choices: int) -> None:
    if choices >= 2**31:
        raise ArgumentError(
            f"the devices have {choices} choices together, more than int32 counts; dispatch fewer "
            "tokens at a time."
        )
    if rows >= 2**31:
        raise ArgumentError(
            f"a device would have room for {rows} rows, more than int32 counts; give a smaller "
            "buffer_factor or alignment, or dispatch fewer tokens at a time."
        )


def _room(tokens: int, top_k: int, here: int, devices: int, buffer_factor: float | None) -> int:
    """Rows that a device has room for, without padding.

    Args:
      tokens: of a device.
      top_k: choices of a token.
      here: experts of a device.
      devices: those that share the experts.
      buffer_factor: see `dispatch`.
    """
    if buffer_factor is None:
        return tokens * min(top_k, here) * devices
    is_number = isinstance(buffer_factor, (int, float, np.number))
    if isinstance(buffer_factor, bool) or not is_number or not 0 < buffer_factor < math.inf:
        raise ArgumentError(f"buffer_factor must be a positive number, got {buffer_factor!r}.")
    return math.ceil(min(buffer_factor, devices) * tokens * top_k)


def _refusing(send_sizes: jax.Array, wrong: jax.Array) -> jax.Array:
    """Sizes that the planner refuses where a token chose an expert that there is not."""
    return send_sizes.at[0].set(jnp.where(wrong > 0, -wrong, send_sizes[0]))


def _kept(by_expert: routing.Sorted, routes: routing.Routes) -> jax.Array:
    """Which of the sorted choices go to their experts."""
    experts = jnp.minimum(by_expert.experts, routes.kept.shape[0] - 1)
    nth = jnp.arange(experts.shape[0], dtype=jnp.int32) - routes.starts[experts]
    return (by_expert.experts < routes.kept.shape[0]) & (nth < routes.kept[experts])


def _spread(x: jax.Array, handle: Handle) -> jax.Array:
    """A row for each choice, by expert."""
    # Not x[order // k]: the transpose of that adds rows up in no certain order.
    each = jnp.broadcast_to(x[:, None], (handle.tokens, handle.top_k, x.shape[1]))
    return (
        each.reshape(handle.tokens * handle.top_k, x.shape[1])
        .at[handle.order]
        .get(unique_indices=True, mode="promise_in_bounds")
    )
