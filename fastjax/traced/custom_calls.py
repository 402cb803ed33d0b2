"""The custom calls, emitted by their declarations while programs are lowered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir.dialects import stablehlo

from fastjax import jax_compat, network, scheduling
from fastjax.traced.axes import Axes, Groups
from fastjax.traced.contract import CALLS, CustomCall
from fastjax.traced.plan_spec import PlanSpec

network.follow()


class Operand(NamedTuple):
    """An operand of a call.

    Attributes:
      value: the operand.
      aval: its type.
    """

    value: jax_compat.MlirValue
    aval: jax_compat.Aval


def emit(
    ctx: jax_compat.LoweringContext,
    call: CustomCall,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, object],
    *,
    keep: bool = False,
) -> jax_compat.MlirValue:
    """Emits a call whose result is the first of the equation that is being lowered.

    Args:
      ctx: of the equation.
      call: the call.
      operands: by name, in order.
      attributes: by name, all that the call has but the names of its operands.
      keep: whether XLA must not remove the call if nothing needs its result.
    """
    attributes = {**attributes, "operands": call.named([*operands])}
    return emit_unnamed(ctx, call, [*operands.values()], ctx.avals_out[0], attributes, keep=keep)


def emit_unnamed(
    ctx: jax_compat.LoweringContext,
    call: CustomCall,
    operands: Sequence[Operand],
    result_aval: jax_compat.Aval,
    attributes: Mapping[str, object],
    *,
    keep: bool = False,
) -> jax_compat.MlirValue:
    """Emits a call whose operands have no names; see `emit`."""
    values, avals = [o.value for o in operands], [o.aval for o in operands]
    rule = jax.ffi.ffi_lowering(
        call.target, operand_output_aliases=call.aliases, has_side_effect=keep
    )
    inner = ctx.replace(avals_in=avals, avals_out=[result_aval])
    (result,) = rule(inner, *values, **call.encoded(attributes))
    return result


def emit_several(
    ctx: jax_compat.LoweringContext,
    call: CustomCall,
    operands: Mapping[str, Operand],
    attributes: Mapping[str, object],
    batch: tuple[int, ...] = (),
) -> list[jax_compat.MlirValue]:
    """Emits a call in whose result those of the equation follow each other, behind a batch."""
    shapes = [aval.shape[len(batch) :] for aval in ctx.avals_out]
    lengths = [math.prod(shape) for shape in shapes]
    joined = ctx.avals_out[0].update(shape=(*batch, sum(lengths)))
    made = emit(ctx.replace(avals_out=[joined]), call, operands, attributes)
    if len(shapes) == 1:
        return [made]

    def split(made: jax.Array) -> list[jax.Array]:
        parts = jnp.split(made, np.cumsum(lengths[:-1]), axis=-1)
        return [p.reshape(*batch, *shape) for p, shape in zip(parts, shapes, strict=True)]

    return jax_compat.lower_function(ctx.replace(avals_in=[joined]), split, made)


def operands_of(
    ctx: jax_compat.LoweringContext, values: Sequence[jax_compat.MlirValue]
) -> list[Operand]:
    """The first operands of an equation that is being lowered."""
    avals: Sequence[Any] = ctx.avals_in
    return [Operand(*pair) for pair in zip(values, avals[: len(values)], strict=True)]


def partition() -> dict[str, Operand]:
    """The operand of calls that all devices of a mesh make."""
    aval = jax_compat.Aval((), np.dtype(np.uint32))
    return {"partition": Operand(stablehlo.partition_id(), aval)}


class CallParams(TypedDict):
    """The parameters that all primitives have whose calls all devices of a mesh make.

    Attributes:
      axis_name: mesh axes.
      axis_index_groups: groups of their positions.
      spec: what the plan depends on besides the sizes.
      timeout_ms: how long a device waits for the others.
      fallback: the option: what platforms without a backend of ours get.
    """

    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    timeout_ms: int
    fallback: str


def mesh_call_site(
    ctx: jax_compat.LoweringContext, operation: str, params: CallParams, platform: str
) -> dict[str, object]:
    """Attributes of a call by all devices of a mesh.

    Where a group spans processes, this opens the network between them.
    """
    axes, spec, timeout_ms = params["axis_name"], params["spec"], params["timeout_ms"]
    replicas = jax_compat.replica_groups(ctx, axes, params["axis_index_groups"])
    placed = jax_compat.device_processes(ctx, replicas)
    if placed is not None:
        network.ensure_open()
        spec.warn_of_false_servers(axes, placed[0][replicas])
    processes, rails = placed or (None, None)
    axis = repr(axes[0]) if len(axes) == 1 else repr(axes)
    common = call_site(ctx, operation, axis, replicas, spec.rank_of, timeout_ms, platform)
    layer: dict[str, object] = {"tokens": spec.tokens or None, "top_k": spec.top_k or None}
    if spec.layer:  # so that a process whose layer does something else is told apart
        layer["shapes"] = f"{common['shapes']} in a layer of experts with {spec.layer}"
    return common | {"processes": processes, "rails": rails} | layer


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
        "scheduler": scheduling.ALL[spec.scheduler].number,
        "row_bytes": spec.row_bytes,
    }


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """Returns the `disabled_checks` for `jax.export.export` of programs with exchanges.

    JAX refuses to export custom calls that it does not know to be stable. fastjax's are: exported
    programs run with later versions, as long as the version in their names is known. The list
    includes the call that takes their place on platforms without a backend.
    """
    targets = (*CALLS, "ragged_all_to_all")
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
