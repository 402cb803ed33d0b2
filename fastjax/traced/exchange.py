"""`fast_ragged_all_to_all`: what it checks before it binds its primitive."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from fastjax import config, jax_compat
from fastjax.errors import ArgumentError
from fastjax.topology import AxisName, Topology
from fastjax.traced import exchange_batching, exchange_gradients
from fastjax.traced.axes import Axes, Groups, check_length, check_metadata, resolve_axis
from fastjax.traced.contract import Metadata
from fastjax.traced.exchange_primitive import PLANNED, fast_ragged_all_to_all_p, params_now
from fastjax.traced.narrow_types import byte_sized
from fastjax.traced.plan import TracedPlan
from fastjax.traced.plan_spec import PlanSpec, make_spec


def fast_ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: AxisName,
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    plan: TracedPlan | None = None,
) -> jax.Array:
    """Exchanges ragged slices of rows between the devices of a mesh axis.

    Drop-in for `jax.lax.ragged_all_to_all`: the same arguments, the same meaning. To be called
    inside `jax.shard_map`. Each step's traffic is planned on the host by `scheduler` and then
    executed; see `plan_ragged_all_to_all` to plan once and exchange often.

    Args:
      operand: rows to send, shape (rows, ...), any type.
      output: the result where no row arrives, shape (output rows, ...), the type and
        trailing shape of operand. A donated or temporary buffer is written in place.
      input_offsets: first row of each slice in operand.
      send_sizes: rows of each slice.
      output_offsets: where each slice lands in the *receiver's* output.
      recv_sizes: rows that arrive here: `all_to_all(send_sizes, axis_name, 0, 0, tiled=True)`.
        These four are integers of any type, shape (k * group size,): k slices for each peer, peers
        in order of their position.
      axis_name: mesh axis, or several, to exchange over.
      axis_index_groups: groups of axis positions that exchange among themselves.
      topology: the fabric; by default that of `fastjax.options` or of the processes.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.
      plan: that of `plan_ragged_all_to_all` for these send_sizes, or its `transpose()` for
        the way back. It brings its own topology and scheduler.

    Returns:
      output, with the rows that arrived written over it. It varies over axis_name.

    Raises:
      ArgumentError: shapes or types do not fit each other, the axis or the plan.
      TopologyError: the topology does not fit the axis.
      OptionError: there is no such scheduler.
      UnsupportedError: the axis spans devices of several processes and there is no network
        between them (no `jax.distributed.initialize()`, no UCX). When it is lowered: the platform
        has no backend here, and `fastjax.options(fallback=)` forbids jax.lax's operation.
      NameError: the axis is not bound; call this inside `jax.shard_map`.
      jax.errors.JaxRuntimeError: while running: an offset or size is out of range (unless
        `fastjax.options(overflow="drop")` has such rows discarded), send and receive sizes
        disagree, the plan is for other sizes, output slices overlap (looked for only in
        `fastjax.options(check_overlaps=True)`), a device did not arrive in time, or another process
        is gone. The text names the devices and the expected values. The next exchange works, as far
        as its processes are there.
    """
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    metadata = Metadata(*map(jnp.asarray, (input_offsets, send_sizes, output_offsets, recv_sizes)))
    check_metadata(**metadata._asdict())
    _check_data(operand, output)
    axes, groups, group_size = resolve_axis(axis_name, axis_index_groups)
    check_length(group_size, **metadata._asdict())
    row_bytes = operand.dtype.itemsize * int(np.prod(operand.shape[1:]))
    if plan is None:
        spec = make_spec(axes, groups, topology, scheduler, row_bytes)
    else:
        spec = _spec_of(plan, axes, groups, topology, scheduler)
        if config.current().overflow == "drop":  # the plan is for all rows, of which some may go
            plan = None
    carried, restore = byte_sized(operand, output)
    tables = [] if plan is None else [plan.table]
    operands = jax_compat.vary_together([*carried, *metadata, *tables], axes)
    params = params_now(
        axes,
        groups,
        spec,
        operands=() if plan is None else PLANNED,
        transposed_plan=plan is not None and plan.transposed,
    )
    return restore(fast_ragged_all_to_all_p.bind(*operands, **params))


def _check_data(operand: jax.Array, output: jax.Array) -> None:
    if operand.ndim < 1 or output.ndim < 1:
        raise ArgumentError(
            f"operand and output must have rows: rank 1 or more, got shapes {operand.shape} and "
            f"{output.shape}."
        )
    if operand.shape[1:] != output.shape[1:]:
        raise ArgumentError(
            "operand and output must agree behind their leading dimension, got shapes "
            f"{operand.shape} and {output.shape}."
        )
    if operand.dtype != output.dtype:
        raise ArgumentError(
            f"operand and output must have one type, got {operand.dtype} and {output.dtype}."
        )


def _spec_of(
    plan: TracedPlan, axes: Axes, groups: Groups, topology: Topology | None, scheduler: str | None
) -> PlanSpec:
    if not isinstance(plan, TracedPlan):
        raise ArgumentError(
            f"plan must come from fastjax.plan_ragged_all_to_all, got {type(plan).__name__}."
        )
    if topology is not None or scheduler is not None:
        raise ArgumentError("a plan brings its topology and scheduler; pass those to the planning.")
    if (plan.axis_name, plan.axis_index_groups) != (axes, groups):
        raise ArgumentError(
            f"the plan is for axis {plan.axis_name} and groups {plan.axis_index_groups}, the "
            f"exchange for {axes} and {groups}."
        )
    return plan.spec


ad.primitive_jvps[fast_ragged_all_to_all_p] = exchange_gradients.jvp
ad.primitive_transposes[fast_ragged_all_to_all_p] = exchange_gradients.transpose
jax_compat.set_batcher(fast_ragged_all_to_all_p, exchange_batching.batch)
