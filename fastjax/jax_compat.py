"""The one file that knows JAX's insides and how they differ between versions.

Everything else uses public names only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import compiler as _compiler
from jax._src import config as _jax_config
from jax._src import core as _jax_core
from jax._src import dispatch as _dispatch
from jax._src import distributed as _distributed
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import pxla as _pxla
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import ad, batching, mlir, partial_eval

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
BatchingRule = Callable[..., tuple[Any, Any]]


def our_primitives(program: ClosedJaxpr) -> set[Primitive]:
    """The primitives of fastjax in a traced program, and in its loops, branches and calls.

    They have no effects that would name their axes, as those of JAX's collectives do: JAX never
    frees what an equation with effects takes from a trace of tangents, so each gradient would leak.
    """
    found = set()
    left: list[Any] = [program.jaxpr]
    while left:
        for equation in left.pop().eqns:
            found |= {equation.primitive} & _uncached
            parts = jax.tree.leaves(list(equation.params.values()))
            left += [getattr(p, "jaxpr", p) for p in parts if isinstance(p, ClosedJaxpr | Jaxpr)]
    return found


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
    groups = _pxla.axis_groups(axis_context, axis_names)
    if axis_index_groups is not None:
        groups = [[axis[i] for i in group] for axis in groups for group in axis_index_groups]
    return np.array(groups, dtype=np.int64)


def automatic_axes(ctx: mlir.LoweringRuleContext) -> dict[Hashable, int]:
    """Sizes of the mesh axes that the enclosing shard_maps leave to XLA, but for those of 1."""
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, mlir.SPMDAxisContext):
        return {}
    mesh, manual = axis_context.mesh, axis_context.manual_axes
    return {name: size for name, size in mesh.shape.items() if name not in manual and size > 1}


def leaves_axes_to_xla() -> bool:
    """Whether the enclosing shard_maps leave mesh axes to XLA, but for those of size 1."""
    mesh = jax.sharding.get_abstract_mesh()
    return any(size > 1 and name not in mesh.manual_axes for name, size in mesh.shape.items())


def explicit_axes(ctx: mlir.LoweringRuleContext, aval: Aval) -> dict[Hashable, int | None]:
    """The mesh axes of explicit type, and the dimension of an array that each divides, if any."""
    mesh = ctx.module_context.axis_context.mesh  # pyright: ignore[reportAttributeAccessIssue]
    explicit = jax.sharding.AxisType.Explicit
    names = [
        n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == explicit
    ]
    found: dict[Hashable, int | None] = dict.fromkeys(names)
    for dim, part in enumerate(aval.sharding.spec):
        for name in part if isinstance(part, tuple) else (part,):
            if name in found:
                found[name] = dim
    return found


def lower_in_all_axes(
    ctx: mlir.LoweringRuleContext,
    function: Callable[..., Any],
    specs: Sequence[jax.sharding.PartitionSpec],
    result_spec: jax.sharding.PartitionSpec,
    *values: MlirValue,
) -> list[MlirValue]:
    """Lowers an equation as a function, in a shard_map over the axes that are left to XLA.

    As JAX lowers `axis_index` there. An operand that lies otherwise over axes of explicit type is
    resharded: shard_map does that for automatic axes only, and from JAX 0.11 refuses the others.

    Args:
      ctx: of the equation.
      function: of one result; takes and returns each device's part.
      specs: how operands are to lie over those axes.
      result_spec: how the result does.
      *values: the operands.
    """
    inner = jax.shard_map(function, in_specs=tuple(specs), out_specs=result_spec, check_vma=False)
    mesh = ctx.module_context.axis_context.mesh  # pyright: ignore[reportAttributeAccessIssue]

    def resharded(*operands: jax.Array) -> jax.Array:
        return inner(*map(jax.reshard, operands, specs))

    whole = resharded if jax.sharding.AxisType.Explicit in mesh.axis_types else inner
    with contextlib.ExitStack() as stack:
        if isinstance(mesh, jax.sharding.Mesh):  # for `device_processes`, inside
            stack.enter_context(_sharding_impls._internal_use_concrete_mesh(mesh))
        return lower_function(ctx, whole, *values)


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
            "cannot tell inside a nested shard_map; call the program inside jax.set_mesh(mesh), or "
            "exchange in the outermost shard_map."
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
    *,
    keep: bool = False,
) -> MlirValue:
    """Emits one FFI call of one result.

    Args:
      ctx: of the equation.
      target: the name of the handler.
      operands: of the call.
      operand_avals: their types.
      result_aval: the type of the result.
      attributes: by name.
      aliases: maps operands to results in their memory.
      keep: whether XLA must not remove the call if nothing needs its result.
    """
    rule = jax.ffi.ffi_lowering(target, operand_output_aliases=aliases, has_side_effect=keep)
    inner = ctx.replace(avals_in=list(operand_avals), avals_out=[result_aval])
    (result,) = rule(inner, *operands, **attributes)
    return result


_COLLECTIVES_STREAM = {"_xla_stream_annotation": "collective", "inlineable": "false"}


def on_collectives_stream(
    ctx: mlir.LoweringRuleContext,
    name: str,
    emit: Callable[[Sequence[MlirValue]], MlirValue],
    operands: Sequence[MlirValue],
    result_aval: _jax_core.AbstractValue,
) -> MlirValue:
    """Emits an operation for the stream on which GPUs run collectives.

    XLA starts it as it starts its own collectives, goes on, and waits for it where its result is
    needed. The attributes are those that JAX makes of `compute_on("gpu_stream:collective")`. That
    itself is of no use here: in a program for several platforms, it would lower its function for
    all of them. JAX 0.10's XLA heeds the attributes only where a function is called.

    Args:
      ctx: what JAX gave the lowering rule.
      name: of the function that holds the operation; numbered where there are several.
      emit: emits the operation, given its operands.
      operands: of the call of the function.
      result_aval: the type of the result.
    """
    result_type = mlir.aval_to_ir_type(ctx.module_context, result_aval)
    function_type = ir.FunctionType.get([value.type for value in operands], [result_type])
    function = func.FuncOp(name, function_type, visibility="private", ip=ctx.module_context.ip)
    symbol = ctx.module_context.symbol_table.insert(function).value
    with ir.InsertionPoint(function.add_entry_block()):
        func.ReturnOp([emit(function.arguments)])
    call = func.CallOp([result_type], ir.FlatSymbolRefAttr.get(symbol), list(operands))
    marks: dict[str, ir.Attribute] = {
        key: ir.StringAttr.get(value) for key, value in _COLLECTIVES_STREAM.items()
    }
    call.operation.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(marks)
    return call.result


def set_lowering(
    primitive: Primitive,
    rule: LoweringRule,
    platforms: Sequence[str] = ("cpu", "cuda", "rocm"),
) -> None:
    """Lowers a primitive by rule(ctx, *values, platform=..., **params).

    JAX would lower equal call sites once and share the result; each of ours needs a channel.

    Args:
      primitive: the primitive.
      rule: what is called, once for each platform that a program is lowered for.
      platforms: those that there is a rule for from the start; the rule is told any other by its
        name as well.
    """
    for platform in platforms:
        lowering = functools.partial(rule, platform=platform)
        mlir.register_lowering(primitive, lowering, platform=platform, cacheable=False)

    def on_others(ctx: mlir.LoweringRuleContext, *values: MlirValue, **params: Any) -> Any:
        found = ctx.platforms or ctx.module_context.platforms
        other = next(name for name in found if name not in platforms)
        return rule(ctx, *values, platform=other, **params)

    mlir.register_lowering(primitive, on_others, cacheable=False)
    _uncached.add(primitive)


_uncached: set[Primitive] = set()  # primitives of ours
_lower_per_platform = _mlir.lower_per_platform


@functools.wraps(_lower_per_platform)
def _lower_ours_per_platform(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    """JAX cannot lower what it does not cache for several platforms: it adds a list to a tuple."""
    if ctx.primitive in _uncached:
        ctx = ctx.replace(avals_out=list(ctx.avals_out))
    return _lower_per_platform(ctx, *args, **params)


_mlir.lower_per_platform = _lower_ours_per_platform


class _Named(NamedTuple):
    fingerprint: str  # of a module
    whole: bool  # whether it is the fingerprint of all that is compiled


_FFI_ATTRIBUTES = "mhlo.backend_config"
_lower_to_module = _mlir.lower_jaxpr_to_module
_compile = _compiler.compile_or_get_cached
_named_modules: weakref.WeakKeyDictionary[ir.Module, _Named] = weakref.WeakKeyDictionary()
_executables: dict[Hashable, Any] = {}
_compiling: dict[Hashable, threading.Lock] = {}
_EXECUTABLES_KEPT = 256


def name_modules(
    *, marked: str, name: str, on_executable: Callable[[str, bytes | None], None]
) -> None:
    """Tells FFI calls which module they are part of, in jobs of several processes, from now on.

    A process has one executable of a named module, however often the module is lowered and
    compiled, and keeps it: its launches are numbered, and would be numbered anew. So functions that
    are lowered to the same module share its numbers too, in the order in which they are called.
    Only a module that calls back into Python, also by custom_partitioning, or is compiled by a
    profile, is compiled each time.

    Args:
      marked: the attribute that such calls have.
      name: the attribute that they are given: a fingerprint of the module but for itself. It is
        the same in all processes, and is part of the program wherever that is cached.
      on_executable: told of each executable that is made of such a module: the fingerprint of the
        module, and that of the executable, which is none of the module's.
    """

    @functools.wraps(_lower_to_module)
    def lower(*args: Any, **params: Any) -> Any:
        result: Any = _lower_to_module(*args, **params)
        if job() is not None:
            _name_module(result.module, marked, name)
        return result

    @functools.wraps(_compile)
    def compile_once(*args: Any, **params: Any) -> Any:
        given = inspect.signature(_compile).bind(*args, **params).arguments
        named = _named_modules.get(given["computation"])
        if named is None:
            return _compile(*args, **params)
        module = named.fingerprint

        def compile_anew() -> Any:
            executable = _compile(*args, **params)
            on_executable(module, executable.fingerprint)
            return executable

        if not named.whole or given["host_callbacks"] or given.get("pgle_profiler") is not None:
            return compile_anew()
        options, devices = given["compile_options"], given["executable_devices"]
        key = (module, options.SerializeAsString(), devices, given["backend"])
        return _kept_executable(key, compile_anew)

    _mlir.lower_jaxpr_to_module = lower
    _compiler.compile_or_get_cached = compile_once


def _name_module(module: ir.Module, marked: str, name: str) -> None:
    """Gives the marked calls of a module its fingerprint."""
    calls: list[ir.Operation] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        attributes = operation.attributes
        if operation.name == "stablehlo.custom_call" and _FFI_ATTRIBUTES in attributes:
            given: Any = attributes[_FFI_ATTRIBUTES]
            if isinstance(given, ir.DictAttr) and marked in given:
                calls.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if not calls:
        return
    fingerprint, whole = _fingerprint(module)
    with module.context:
        for call in calls:
            attributes: Any = call.attributes[_FFI_ATTRIBUTES]
            named: dict[str, ir.Attribute] = {a.name: a.attr for a in attributes}
            named[name] = ir.StringAttr.get(fingerprint)
            call.attributes[_FFI_ATTRIBUTES] = ir.DictAttr.get(named)
    _named_modules[module] = _Named(fingerprint, whole)


class _Digest:
    """A file whose contents are hashed and not kept: a module may have gigabytes of constants."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, text: bytes) -> None:
        self.hash.update(text)


def _fingerprint(module: ir.Module) -> _Named:
    """Of what is the same in all processes."""
    partitioned: list[tuple[ir.Operation, ir.Attribute]] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        attributes: Any = operation.attributes
        if (
            operation.name == "stablehlo.custom_call"
            and attributes["call_target_name"].value == "CustomSPMDPartitioning"
            and "backend_config" in attributes
        ):
            partitioned.append((operation, attributes["backend_config"]))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    digest: Any = _Digest()
    with module.context:
        # A call of jax.experimental.custom_partitioning has the address of a Python object, which
        # knows what is compiled, and which JAX can leave out of the keys of its cache, too.
        for operation, _ in partitioned:
            operation.attributes["backend_config"] = ir.StringAttr.get("")
        # Without where in the source each operation is from, which may differ between hosts.
        module.operation.print(file=digest, binary=True, enable_debug_info=False)
        for operation, given in partitioned:
            operation.attributes["backend_config"] = given
    return _Named(digest.hash.hexdigest()[:32], not partitioned)


def _kept_executable(key: Hashable, make: Callable[[], Any]) -> Any:
    """What `make` returned first. Threads that want the same wait, and no others."""
    with _compiling.setdefault(key, threading.Lock()):
        if key not in _executables:
            _executables[key] = make()
            # The first that was made, in every process.
            for old in list(_executables)[:-_EXECUTABLES_KEPT]:
                _executables.pop(old, None)
                _compiling.pop(old, None)
        return _executables[key]


def forget_executables() -> None:
    """Lets executables of named modules go. To be called at the end, before JAX's own."""
    _executables.clear()


def lower_function(
    ctx: mlir.LoweringRuleContext, function: Callable[..., Any], *values: MlirValue
) -> list[MlirValue]:
    """Lowers an equation as a function, of as many results as the equation's primitive has."""
    several = ctx.primitive is not None and ctx.primitive.multiple_results
    return list(mlir.lower_fun(function, multiple_results=several)(ctx, *values))


def manual_axes(axis_names: Axes) -> Axes:
    """All mesh axes that are manual here, those of `axis_names` first."""
    others = jax.sharding.get_abstract_mesh().manual_axes
    return (*axis_names, *(name for name in others if name not in axis_names))


def set_impl(primitive: Primitive) -> None:
    """Lets a primitive run outside of traced programs too, as one of its own."""
    primitive.def_impl(functools.partial(_dispatch.apply_primitive, primitive))


def set_batcher(primitive: Primitive, rule: BatchingRule) -> None:
    """Registers rule(axis_data, values, dims, **params) -> (result, dim).

    A primitive of several results has sequences of both.
    """
    batching.fancy_primitive_batchers[primitive] = rule


def replace_if_unused(
    primitive: Primitive, result: int, replacement: Callable[[JaxprEqn], JaxprEqn]
) -> None:
    """Replaces equations of which nothing needs a result, but something needs another.

    JAX removes those of which nothing needs any result.

    Args:
      primitive: of the equations.
      result: its place among the results.
      replacement: makes the equation that takes the place of another; some operands are enough.
    """

    def rule(used: Sequence[bool], *others: Any) -> tuple[list[bool], JaxprEqn | None]:
        eqn: JaxprEqn = others[-1]  # newer versions of JAX pass something between
        if not any(used):
            return [False] * len(eqn.invars), None
        if used[result]:
            return [True] * len(eqn.invars), eqn
        eqn, whole = replacement(eqn), eqn
        return [any(v is w for w in eqn.invars) for v in whole.invars], eqn

    partial_eval.dce_rules[primitive] = rule


def set_jvp(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Registers rule(primals, tangents) -> (result, tangent)."""
    ad.primitive_jvps[primitive] = rule


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
    "automatic_axes",
    "check_vma_enabled",
    "custom_call",
    "device_processes",
    "explicit_axes",
    "forget_executables",
    "job",
    "lower_function",
    "lower_in_all_axes",
    "manual_axes",
    "name_modules",
    "new_channel",
    "on_collectives_stream",
    "op_name",
    "our_primitives",
    "partition_id",
    "program_name",
    "replace_if_unused",
    "replica_groups",
    "set_batcher",
    "set_impl",
    "set_jvp",
    "set_lowering",
    "vary_together",
    "vma",
    "with_vma",
    "zero_cotangent",
    "zero_tangent",
]
