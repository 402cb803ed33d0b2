"""The custom calls, emitted by their declarations while programs are lowered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastjax import jax_compat, network
from fastjax.scheduling import scheduler_number
from fastjax.traced.axes import Axes, Groups
from fastjax.traced.contract import AFTER, CustomCall
from fastjax.traced.plan_spec import PlanSpec

_STAGED_ID_BYTES = 8

network.follow()


def emit(
    ctx: jax_compat.LoweringContext,
    call: CustomCall,
    operands: Sequence[jax_compat.MlirValue],
    attributes: Mapping[str, object],
    *,
    gpu_stream: bool = False,
) -> list[jax_compat.MlirValue]:
    """Emits a call, whose result is that of the equation that is being lowered.

    Args:
      ctx: of the equation.
      call: the call.
      operands: the equation's first. The device's partition is added where the call takes it.
      attributes: by name, all that the call has.
      gpu_stream: whether a GPU runs it on the stream of collectives, beside the one that computes.
    """
    values, avals = list(operands), list(ctx.avals_in)[: len(operands)]
    if "partition" in call.operands:
        values.append(jax_compat.partition_id())
        avals.append(jax_compat.PARTITION_AVAL)
    if len(values) != len(call.operands):
        raise TypeError(f"{call.target} takes {call.operands}, got {len(values)} operands.")
    if gpu_stream:
        attributes = {**attributes, "gpu_stream": True}
    result_aval = ctx.avals_out[0]

    def emit_call(given: Sequence[jax_compat.MlirValue]) -> jax_compat.MlirValue:
        encoded = call.encoded(attributes)
        return jax_compat.custom_call(
            ctx, call.target, given, avals, result_aval, encoded, call.aliases
        )

    if not gpu_stream:
        return [emit_call(values)]
    return [jax_compat.on_collectives_stream(ctx, call.target, emit_call, values, result_aval)]


def emit_staged(
    ctx: jax_compat.LoweringContext,
    stage: CustomCall,
    call: CustomCall,
    operands: Sequence[jax_compat.MlirValue],
    attributes: Mapping[str, object],
    array: jax_compat.MlirValue | None = None,
) -> list[jax_compat.MlirValue]:
    """Emits a call that copies the operands of an exchange, and one that exchanges the copies.

    Args:
      ctx: of the equation.
      stage: the call that copies.
      call: the call that exchanges.
      operands: the equation's: `source`, `base`, and what the exchange takes besides.
      attributes: of the exchange, by name.
      array: the last operand of an equation of two results.

    Returns:
      The result of the exchange and, if there is an array, the array, which exists once the
      operands are copied.
    """
    base, array_aval = ctx.avals_in[1], ctx.avals_in[-1]
    (staged,) = emit(ctx, stage, operands, {"channel": attributes["channel"]})
    results = []
    if array is not None:
        results.append(_after(ctx, (array, staged), (array_aval, base)))
        # Both calls need what is staged, one of them in place: XLA copies it unless it sees that
        # the other one is earlier.
        staged = _after(ctx, (staged, results[0]), (base, array_aval))
    exchanged = jax_compat.custom_call(
        ctx,
        call.target,
        [staged, jax_compat.partition_id()],
        [base, jax_compat.PARTITION_AVAL],
        ctx.avals_out[0],
        call.encoded(attributes),
        call.aliases,
        # What has been copied is given back by this call, so it must not be removed alone.
        keep=array is not None,
    )
    return [exchanged, *results]


def _after(
    ctx: jax_compat.LoweringContext,
    operands: tuple[jax_compat.MlirValue, jax_compat.MlirValue],
    avals: tuple[Any, Any],
) -> jax_compat.MlirValue:
    return jax_compat.custom_call(ctx, AFTER.target, operands, avals, avals[0], {}, AFTER.aliases)


def can_stage(ctx: jax_compat.LoweringContext) -> bool:
    """Whether the result of an exchange has room for the id of its staged operands."""
    result: Any = ctx.avals_out[0]
    return result.size * result.dtype.itemsize >= _STAGED_ID_BYTES


def mesh_call_site(
    ctx: jax_compat.LoweringContext,
    operation: str,
    axes: Axes,
    groups: Groups,
    spec: PlanSpec,
    timeout_ms: int,
    platform: str,
) -> dict[str, object]:
    """Attributes of a call by all devices of a mesh.

    Where a group spans processes, this opens the network between them.
    """
    replicas = jax_compat.replica_groups(ctx, axes, groups)
    placed = jax_compat.device_processes(ctx, replicas)
    if placed is not None:
        network.ensure_open()
    processes, rails = placed or (None, None)
    axis = repr(axes[0]) if len(axes) == 1 else repr(axes)
    common = call_site(ctx, operation, axis, replicas, spec.rank_of, timeout_ms, platform)
    layer: dict[str, object] = {"tokens": spec.tokens or None, "top_k": spec.top_k or None}
    if spec.layer:  # so that a process whose layer does something else is told apart
        layer["shapes"] = f"{common['shapes']} in a layer of experts with {spec.layer}"
    return common | {"processes": processes, "rails": rails} | layer


def exchange_site(
    ctx: jax_compat.LoweringContext, params: Mapping[str, Any], platform: str
) -> dict[str, object]:
    """Attributes of an exchange by all devices of a mesh, of its primitive's parameters."""
    site = mesh_call_site(
        ctx,
        "fast_ragged_all_to_all",
        params["axis_name"],
        params["axis_index_groups"],
        params["spec"],
        params["timeout_ms"],
        platform,
    )
    return site | {"reverse": params["reverse"], "transposed_table": params["transposed_plan"]}


def call_site(
    ctx: jax_compat.LoweringContext,
    operation: str,
    axis: str,
    replica_groups: np.ndarray,
    rank_of: Sequence[int],
    timeout_ms: int,
    platform: str,
) -> dict[str, object]:
    """Attributes that say which call of which program this is, and who takes part in it.

    Args:
      ctx: of the equation.
      operation: what messages call it.
      axis: what messages call the axis.
      replica_groups: partitions of each group, shape (groups, members), in order of position.
      rank_of: the server-major number of each position of a group.
      timeout_ms: how long a device waits for the others.
      platform: the platform that the program is for.
    """
    operands: Sequence[Any] = ctx.avals_in
    return {
        "operation": operation,
        "name": jax_compat.op_name(ctx, operation),
        "axis": axis,
        "program": jax_compat.program_name(ctx),
        "shapes": " ".join(f"{a.dtype.name}{list(a.shape)}" for a in operands[:3]),
        "channel": jax_compat.new_channel(ctx),
        "timeout_ms": timeout_ms,
        "group_size": replica_groups.shape[1],
        "replica_groups": replica_groups,
        "rank_of": rank_of,
        "platform": platform,
    }


def planning(spec: PlanSpec) -> dict[str, object]:
    """Attributes of the calls that plan."""
    return {
        "topology": spec.topology.words,
        "scheduler": scheduler_number(spec.scheduler),
        "row_bytes": spec.row_bytes,
    }


__all__ = [
    "call_site",
    "can_stage",
    "emit",
    "emit_staged",
    "exchange_site",
    "mesh_call_site",
    "planning",
]
