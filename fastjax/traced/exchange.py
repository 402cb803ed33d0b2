"""`fast_ragged_all_to_all`: the exchange, its primitive and the rules of its transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from fastjax import config, jax_compat
from fastjax.errors import ArgumentError
from fastjax.topology import AxisName, Topology
from fastjax.traced import plan as planning
from fastjax.traced.plan import PlanSpec, TracedPlan

# Gradients of rows that were sent to several devices are added up, in these types.
_SUMMABLE = tuple(
    np.dtype(t)
    for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64, jnp.complex128)
)


def fast_ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: AxisName,
    axis_index_groups: Any = None,
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
      output: what the result holds where no row arrives, shape (output rows, ...), the type and
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
      plan: what `plan_ragged_all_to_all` returned for these send_sizes, or its `transpose()` for
        the way back. It brings its own topology and scheduler.

    Returns:
      output, with the rows that arrived written over it. It varies over axis_name.

    Raises:
      ArgumentError: shapes or types do not fit each other, the axis or the plan.
      TopologyError: the topology does not fit the axis.
      OptionError: there is no such scheduler.
      UnsupportedError: the axis spans devices of several processes and there is no network
        between them (no `jax.distributed.initialize()`, no UCX), or the enclosing shard_map leaves
        axes automatic.
      NameError: the axis is not bound; call this inside `jax.shard_map`.
      jax.errors.JaxRuntimeError: while running: an offset or size is out of range, send and receive
        sizes disagree, the plan is for other sizes, output slices overlap (looked for only in
        `fastjax.options(check_overlaps=True)`), a device did not arrive in time, or another process
        is gone. The text names the devices and what was wanted. The next exchange works, as far as
        its processes are there.
    """
    axes, groups, group_size = planning.resolve_axis(axis_name, axis_index_groups)
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    metadata = {
        "input_offsets": jnp.asarray(input_offsets),
        "send_sizes": jnp.asarray(send_sizes),
        "output_offsets": jnp.asarray(output_offsets),
        "recv_sizes": jnp.asarray(recv_sizes),
    }
    planning.check_metadata(group_size, **metadata)
    _check_data(operand, output)
    row_bytes = operand.dtype.itemsize * int(np.prod(operand.shape[1:]))
    if plan is None:
        spec = planning.make_spec(axes, groups, topology, scheduler, row_bytes)
        tables = []
    else:
        spec = _spec_of(plan, axes, groups, topology, scheduler)
        tables = [plan.table]
    carried, restore = _byte_sized(operand, output)
    operands = jax_compat.vary_together([*carried, *metadata.values(), *tables], axes)
    result = fast_ragged_all_to_all_p.bind(
        *operands,
        axis_name=axes,
        axis_index_groups=groups,
        spec=spec,
        transposed_plan=plan is not None and plan.transposed,
        reverse=False,
        timeout_ms=config.current().timeout_ms,
        check_overlaps=config.current().check_overlaps,
    )
    return restore(result)


def _check_data(operand: Any, output: Any) -> None:
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
    plan: TracedPlan, axes: Any, groups: Any, topology: Topology | None, scheduler: str | None
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


def _byte_sized(operand: Any, output: Any) -> Any:
    """Types narrower than a byte (int4, ...) travel in one byte an element, exactly."""
    dtype = operand.dtype
    name = dtype.name
    if "int" in name and name.removeprefix("u") in ("int1", "int2", "int4"):
        wide = jnp.uint8 if name.startswith("u") else jnp.int8
    elif name.startswith("float4"):
        wide = jnp.float16
    else:
        return (operand, output), lambda result: result
    return (operand.astype(wide), output.astype(wide)), lambda result: result.astype(dtype)


fast_ragged_all_to_all_p = Primitive("fast_ragged_all_to_all")
"""The primitive.

Operands: source, base, input_offsets, send_sizes, output_offsets, recv_sizes and, where the
exchange was planned before, the stage table. With `reverse`, rows travel from output space to
operand space along the same offsets, and those that land on each other are summed: the transpose.
"""


@fast_ragged_all_to_all_p.def_impl
def _impl(*_: Any, **__: Any) -> Any:
    raise RuntimeError("fast_ragged_all_to_all must be used within a mapped context, in shard_map.")


@fast_ragged_all_to_all_p.def_effectful_abstract_eval
def _abstract_eval(source: Any, base: Any, *metadata: Any, axis_name: Any, **_: Any) -> Any:
    axes = frozenset(axis_name).union(*(jax_compat.vma(a) for a in (source, base, *metadata)))
    result = jax_compat.with_vma(base.update(weak_type=False), axes)
    return result, jax_compat.axis_effects(axis_name)


def _lowering(ctx: Any, *operands: Any, **params: Any) -> list[Any]:
    avals = list(ctx.avals_in)
    values = list(operands)
    partition = jax_compat.partition_id()
    # The transport brings every count together anyway: planning apart would have the devices meet
    # twice.
    plans_itself = len(values) < 7
    attributes = planning.call_site_attributes(
        ctx,
        "fast_ragged_all_to_all",
        params["axis_name"],
        params["axis_index_groups"],
        params["spec"],
        params["timeout_ms"],
        params["platform"],
    )
    attributes["reverse"] = np.bool_(params["reverse"])
    attributes["check_overlaps"] = np.bool_(params["check_overlaps"])
    attributes["transposed_table"] = np.bool_(params["transposed_plan"])
    planned = planning.planning_attributes(params["spec"])
    # Where a plan is given, the topology is told to those who ask for figures.
    attributes |= planned if plans_itself else {"topology": planned["topology"]}
    result = jax_compat.custom_call(
        ctx,
        "fastjax_plan_exchange_v1" if plans_itself else "fastjax_exchange_v1",
        [*values, partition],
        [*avals, jax_compat.PARTITION_AVAL],
        ctx.avals_out[0],
        attributes,
        aliases={1: 0},
    )
    return [result]


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    source, base, *rest = primals
    source_dot, base_dot, *_ = tangents
    if type(source_dot) is ad.Zero and type(base_dot) is ad.Zero:
        result = fast_ragged_all_to_all_p.bind(*primals, **params)
        return result, jax_compat.zero_tangent(result)
    if len(rest) == 4:
        rest.append(_plan_now(rest[1], params))
    result = fast_ragged_all_to_all_p.bind(source, base, *rest, **params)
    result_dot = fast_ragged_all_to_all_p.bind(
        ad.instantiate_zeros(source_dot), ad.instantiate_zeros(base_dot), *rest, **params
    )
    return result, result_dot


def _plan_now(send_sizes: Any, params: dict[str, Any]) -> Any:
    """Plans for the value and its gradient together: the way back is the same plan, backwards."""
    return planning.plan_ragged_all_to_all_p.bind(
        send_sizes,
        axis_name=params["axis_name"],
        axis_index_groups=params["axis_index_groups"],
        spec=params["spec"],
        timeout_ms=params["timeout_ms"],
        experts=0,
    )


def _transpose(ct: Any, source: Any, base: Any, *rest: Any, **params: Any) -> list[Any]:
    nones = [None] * len(rest)
    wants_source, wants_base = ad.is_undefined_primal(source), ad.is_undefined_primal(base)
    if type(ct) is ad.Zero:
        return [
            jax_compat.zero_cotangent(source) if wants_source else None,
            jax_compat.zero_cotangent(base) if wants_base else None,
            *nones,
        ]
    with jax.named_scope("fast_ragged_all_to_all_gradient"):
        source_ct = _source_cotangent(ct, source.aval, rest, params) if wants_source else None
        base_ct = _base_cotangent(ct, rest, params) if wants_base else None
    return [source_ct, base_ct, *nones]


def _source_cotangent(ct: Any, aval: Any, rest: Any, params: dict[str, Any]) -> Any:
    dtype = ct.dtype
    # Other types (fp8) have no sum of their own; their values are exact in float32.
    wide = ct if dtype in _SUMMABLE else ct.astype(jnp.float32)
    zeros = jnp.zeros(aval.shape, wide.dtype)
    operands = jax_compat.vary_together([wide, zeros, *rest], params["axis_name"])
    back = fast_ragged_all_to_all_p.bind(*operands, **{**params, "reverse": not params["reverse"]})
    return back.astype(dtype)


def _base_cotangent(ct: Any, rest: Any, params: dict[str, Any]) -> Any:
    """The result takes nothing from base where a row landed."""
    input_offsets, send_sizes, output_offsets, recv_sizes, *_ = rest
    if params["reverse"]:
        starts, sizes = input_offsets, send_sizes
    else:
        starts, sizes = _landings(output_offsets, params), recv_sizes
    landed = _covered(starts, sizes, ct.shape[0])
    landed = landed.reshape((-1,) + (1,) * (ct.ndim - 1))
    return jnp.where(landed, jnp.zeros((), ct.dtype), ct)


def _landings(output_offsets: Any, params: dict[str, Any]) -> Any:
    """Where what arrives here lands: the offsets that others have for this device."""
    axes, groups = params["axis_name"], params["axis_index_groups"]
    if groups is None:
        return jax.lax.all_to_all(output_offsets, axes, 0, 0, tiled=True)
    # JAX has no vmap of an all_to_all with groups.
    everyone = jax.lax.all_gather(output_offsets, axes, axis_index_groups=groups)
    size = len(groups[0])
    for_each = everyone.reshape(size, size, -1)
    return jnp.take(for_each, planning.position(axes, groups), axis=1).reshape(-1)


def _covered(starts: Any, sizes: Any, rows: int) -> Any:
    """Which of `rows` rows lie in some slice; slices without rows lie nowhere."""
    if rows >= 2**31:
        raise ArgumentError(
            f"gradients for an output of {rows} rows need more than int32 counts; split it."
        )
    starts, sizes = starts.astype(jnp.int32), sizes.astype(jnp.int32)
    starts = jnp.where(sizes > 0, starts, 0)
    edges = jnp.zeros(rows + 1, jnp.int32).at[starts].add(1).at[starts + sizes].add(-1)
    return jnp.cumsum(edges)[:rows] > 0


def _batcher(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    planning.refuse_mapped_axis(axis_data, params["axis_name"])
    if all(dim is None for dim in dims):
        return fast_ragged_all_to_all_p.bind(*values, **params), None
    if all(dim is None for dim in dims[2:]):
        return _batch_data_only(axis_data.size, values, dims, params)
    # A transposed table was made from what are receive sizes here.
    planned_from = dims[5] if params["transposed_plan"] else dims[3]
    if len(dims) == 7 and (dims[6] is not None or planned_from is None):
        # Each element of the batch has the traffic that its plan is for: one exchange for each.
        return _batch_one_by_one(values, dims, params)
    return _batch_folded(axis_data.size, values, dims, params)


def _batch_data_only(size: int, values: Any, dims: Any, params: dict[str, Any]) -> Any:
    """The same rows of every element travel together: the batch becomes part of the row."""
    data = [_batch_at(v, d, size, 1) for v, d in zip(values[:2], dims[:2], strict=True)]
    return fast_ragged_all_to_all_p.bind(*data, *values[2:], **params), 1


def _batch_one_by_one(values: Any, dims: Any, params: dict[str, Any]) -> Any:
    batched = [jnp.moveaxis(v, d, 0) for v, d in zip(values, dims, strict=True) if d is not None]

    def element(parts: list[Any]) -> Any:
        part = iter(parts)
        operands = [v if d is None else next(part) for v, d in zip(values, dims, strict=True)]
        return fast_ragged_all_to_all_p.bind(*operands, **params)

    return jax.lax.map(element, batched), 0


def _batch_folded(size: int, values: Any, dims: Any, params: dict[str, Any]) -> Any:
    """The batch becomes one exchange of stacked rows, with `size` times the updates."""
    source, base = (_batch_at(v, d, size, 0) for v, d in zip(values[:2], dims[:2], strict=True))
    source_rows, base_rows = source.shape[1], base.shape[1]
    operand_rows, output_rows = (
        (base_rows, source_rows) if params["reverse"] else (source_rows, base_rows)
    )
    if size * max(operand_rows, output_rows) >= 2**31:
        raise ArgumentError(
            f"vmap of {size} elements makes one exchange of {size} x "
            f"{max(operand_rows, output_rows)} rows, more than int32 counts; map over fewer."
        )
    metadata = [_batch_at(v, d, size, 1) for v, d in zip(values[2:6], dims[2:6], strict=True)]
    input_offsets, send_sizes, output_offsets, recv_sizes = metadata
    input_offsets = _offsets_in_batch(input_offsets, send_sizes, operand_rows)
    output_offsets = _offsets_in_batch(output_offsets, send_sizes, output_rows)
    folded = [
        planning.fold_metadata(m, 1)
        for m in (input_offsets, send_sizes, output_offsets, recv_sizes)
    ]
    merged = [x.reshape(-1, *x.shape[2:]) for x in (source, base)]
    operands = jax_compat.vary_together([*merged, *folded, *values[6:]], params["axis_name"])
    result = fast_ragged_all_to_all_p.bind(*operands, **params)
    return result.reshape(size, base_rows, *result.shape[1:]), 0


def _offsets_in_batch(offsets: Any, sizes: Any, rows: int) -> Any:
    """Offsets, shape (entries, batch), as rows of the stacked batch, int32.

    A slice that leaves its element would land in another one's rows, where nobody could tell: its
    offset becomes -1, which is refused when the program runs.
    """
    offsets, sizes = _clipped(offsets), _clipped(sizes)
    leaves = (sizes > 0) & ((offsets < 0) | (offsets > rows - sizes))
    first = jnp.arange(offsets.shape[1], dtype=jnp.int32)[None] * rows
    return jnp.where(leaves, -1, jnp.where(sizes > 0, offsets + first, 0))


def _clipped(array: Any) -> Any:
    """As int32; what that cannot hold stays out of every range."""
    limits = jnp.iinfo(array.dtype)
    return jnp.clip(array, max(limits.min, -1), min(limits.max, 2**31 - 1)).astype(jnp.int32)


def _batch_at(value: Any, dim: int | None, size: int, at: int) -> Any:
    """The value with its batch dimension, made if need be, at `at`."""
    if dim is None:
        shape = (*value.shape[:at], size, *value.shape[at:])
        return jnp.broadcast_to(jnp.expand_dims(value, at), shape)
    return jnp.moveaxis(value, dim, at)


ad.primitive_jvps[fast_ragged_all_to_all_p] = _jvp
ad.primitive_transposes[fast_ragged_all_to_all_p] = _transpose
jax_compat.set_batcher(fast_ragged_all_to_all_p, _batcher)
jax_compat.set_lowering(fast_ragged_all_to_all_p, _lowering)

__all__ = ["fast_ragged_all_to_all", "fast_ragged_all_to_all_p"]
