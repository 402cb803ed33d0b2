"""The one file that knows JAX's insides and how they differ between versions.

Everything else uses public names only.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config as _jax_config
from jax._src import core as _jax_core
from jax._src import dispatch as _dispatch
from jax._src import distributed as _distributed
from jax._src.interpreters import pxla as _pxla
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import ad, batching, mlir

from fastjax.errors import UnsupportedError

LoweringContext = mlir.LoweringRuleContext
MlirValue = Any  # JAX does not export the type
"""What a primitive's operands and results are while it is lowered: an `ir.Value`, or several."""

Aval = _jax_core.ShapedArray
"""The type of a traced array."""

Tangent = jax.Array | ad.Zero
"""A tangent or a cotangent, where `ad.Zero` stands for one of zeros."""

Axes = tuple[Hashable, ...]
"""Names of mesh axes."""

LoweringRule = Callable[..., Sequence[MlirValue]]
BatchingRule = Callable[..., tuple[jax.Array, int | None]]


def axis_effects(axis_names: Axes) -> set[_jax_core.Effect]:
    """Effects that tie an equation to the mesh axes it runs over, as JAX's own collectives have."""
    return {_jax_core.NamedAxisEffect(name) for name in axis_names}


def vma(aval: Aval) -> frozenset[Hashable]:
    """Mesh axes that a value varies over; empty where check_vma is off."""
    return aval.mat.varying


def check_vma_enabled() -> bool:
    """Whether types track the axes that values vary over, here."""
    return bool(_jax_config._check_vma.value)


def with_vma(aval: Aval, axes: frozenset[Hashable]) -> Aval:
    """The type of a value that varies over `axes`, where that is tracked."""
    if not check_vma_enabled():
        return aval
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying | axes))


def vary_together(values: Sequence[jax.Array], axis_names: Axes) -> list[jax.Array]:
    """Makes values vary over `axis_names` and over all that any of them varies over.

    A value that was the same on all devices gets its gradients summed over them, as it must.
    """
    if not check_vma_enabled():
        return list(values)
    union = frozenset(axis_names).union(*(vma(jax.typeof(v)) for v in values))
    order = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in union]
    varied = []
    for value in values:
        missing = tuple(name for name in order if name not in vma(jax.typeof(value)))
        varied.append(jax.lax.pcast(value, missing, to="varying") if missing else value)
    return varied


def replica_groups(
    ctx: mlir.LoweringRuleContext,
    axis_names: Axes,
    axis_index_groups: tuple[tuple[int, ...], ...] | None,
) -> np.ndarray:
    """Partitions of each group, shape (groups, members), in order of position."""
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        raise UnsupportedError(
            f"axis {axis_names} is not bound by a mesh; call this inside jax.shard_map."
        )
    automatic = frozenset(axis_context.mesh.axis_names) - axis_context.manual_axes
    if any(axis_context.mesh.shape[name] > 1 for name in automatic):
        raise UnsupportedError(
            f"the enclosing shard_map leaves mesh axes {sorted(map(str, automatic))} automatic, so "
            "a device cannot tell which others it exchanges with; name all mesh axes in "
            "shard_map's axis_names (or leave that argument out)."
        )
    groups = _pxla.axis_groups(axis_context, axis_names)
    if axis_index_groups is not None:
        groups = [[axis[i] for i in group] for axis in groups for group in axis_index_groups]
    return np.array(groups, dtype=np.int64)


def device_processes(
    ctx: mlir.LoweringRuleContext, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Each partition's process, and its device's number in there; None where no group spans any.

    Devices of a process are numbered in the order of their ids, those that the mesh leaves out too,
    so that a device has one number in all programs.
    """
    if jax.process_count() == 1:
        return None
    mesh = ctx.module_context.axis_context.mesh  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(mesh, jax.sharding.AbstractMesh):
        raise UnsupportedError(
            "in a job of several processes, fastjax must know which process each device is in, and "
            "cannot tell inside a nested shard_map; exchange in the outermost shard_map."
        )
    devices = mesh.devices.reshape(-1)
    processes = np.array([device.process_index for device in devices], dtype=np.int64)
    spanned = processes[groups]
    if (spanned == spanned[:, :1]).all():
        return None
    number_of: dict[int, int] = {}
    met: dict[int, int] = {}
    for device in sorted(jax.devices(devices[0].platform), key=lambda d: d.id):
        number_of[device.id] = met.get(device.process_index, 0)
        met[device.process_index] = number_of[device.id] + 1
    return processes, np.array([number_of[device.id] for device in devices], dtype=np.int64)


@dataclasses.dataclass(frozen=True)
class Job:
    """The job that `jax.distributed.initialize` started.

    Attributes:
      process: this process's number.
      processes: how many there are.
      client: its client of the job's coordinator, which has a key-value store.
      coordinator: "host:port".
    """

    process: int
    processes: int
    client: Any
    coordinator: str


def job() -> Job | None:
    """The job that this process is part of, if any."""
    state = _distributed.global_state
    if state.client is None:
        return None
    return Job(
        state.process_id, state.num_processes, state.client, state.coordinator_address or "unknown"
    )


def new_channel(ctx: mlir.LoweringRuleContext) -> int:
    """A number for a call site, the same in every process that lowers the program."""
    return ctx.module_context.new_channel()


def program_name(ctx: mlir.LoweringRuleContext) -> str:
    """What JAX calls the program that is being lowered, for messages."""
    name: Any = ctx.module_context.module.operation.attributes["sym_name"]
    return name.value


def op_name(ctx: mlir.LoweringRuleContext, operation: str) -> str:
    """What HLO metadata, and so profiles, call an operation that is being lowered."""
    stack = str(ctx.name_stack)
    return f"{stack}/{operation}" if stack else operation


PARTITION_AVAL = _jax_core.ShapedArray((), np.dtype(np.uint32))
"""The type of `partition_id()`."""


def partition_id() -> MlirValue:
    """The running device's partition, a uint32 scalar, as an MLIR value."""
    return stablehlo.partition_id()


def custom_call(
    ctx: mlir.LoweringRuleContext,
    target: str,
    operands: Sequence[MlirValue],
    operand_avals: Sequence[_jax_core.AbstractValue],
    result_aval: _jax_core.AbstractValue,
    attributes: Mapping[str, str | np.generic | np.ndarray],
    aliases: dict[int, int] | None = None,
) -> MlirValue:
    """Emits one FFI call of one result; `aliases` maps operands to results in their memory."""
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=aliases)
    inner = ctx.replace(avals_in=list(operand_avals), avals_out=[result_aval])
    (result,) = rule(inner, *operands, **attributes)
    return result


def set_lowering(
    primitive: Primitive,
    rule: LoweringRule,
    platforms: Sequence[str] = ("cpu", "cuda", "rocm"),
) -> None:
    """Lowers a primitive by rule(ctx, *values, platform=..., **params) on those platforms.

    JAX would lower equal call sites once and share the result; each of ours needs a channel.
    """
    for platform in platforms:
        lowering = functools.partial(rule, platform=platform)
        mlir.register_lowering(primitive, lowering, platform=platform, cacheable=False)


def set_impl(primitive: Primitive) -> None:
    """Lets a primitive run outside of traced programs too, as one of its own."""
    primitive.def_impl(functools.partial(_dispatch.apply_primitive, primitive))


def set_batcher(primitive: Primitive, rule: BatchingRule) -> None:
    """Registers rule(axis_data, values, dims, **params) -> (result, dim)."""
    batching.fancy_primitive_batchers[primitive] = rule


def zero_tangent(value: jax.Array) -> ad.Zero:
    """The symbolic zero tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


def zero_cotangent(value: ad.UndefinedPrimal) -> ad.Zero:
    """The symbolic zero cotangent of an undefined primal."""
    return ad.Zero(value.aval)


__all__ = [
    "PARTITION_AVAL",
    "Aval",
    "Axes",
    "Job",
    "LoweringContext",
    "MlirValue",
    "Tangent",
    "axis_effects",
    "check_vma_enabled",
    "custom_call",
    "device_processes",
    "job",
    "new_channel",
    "op_name",
    "partition_id",
    "program_name",
    "replica_groups",
    "set_batcher",
    "set_impl",
    "set_lowering",
    "vary_together",
    "vma",
    "with_vma",
    "zero_cotangent",
    "zero_tangent",
]
