"""The one file that knows JAX's insides and how they differ between versions.

Everything else uses public names only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax._src import compiler as _compiler
from jax._src import config as _jax_config
from jax._src import core as _jax_core
from jax._src import dispatch as _dispatch
from jax._src import distributed as _distributed
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax.extend.core import JaxprEqn, Primitive
from jax.extend.mlir import ir
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

ragged_dot_p = _lax.ragged_dot_general_p

TreeT = TypeVar("TreeT")

LoweringRule = Callable[..., Sequence[MlirValue]]
BatchingRule = Callable[..., tuple[Any, Any]]


def with_symbolic_zeros(rule: Callable[..., Any], *operands: Any) -> Any:
    """What a `custom_vjp` that asks for symbolic zeros makes of operands.

    An eager `shard_map` of JAX refuses those (0.10 to 0.12); there this is a program of its own.
    """
    try:
        return rule(*operands)
    except NotImplementedError as error:
        if "symbolic_zeros" not in str(error):
            raise
    return jax.jit(rule)(*operands)


def vma(aval: Aval) -> frozenset[Hashable]:
    """Mesh axes that a value varies over; empty where check_vma is off."""
    return aval.mat.varying


def refuse_forbidden_axes(axes: Axes, operation: str) -> None:
    """Refuses what `jax.sharding.no_collectives` forbids, which JAX has from 0.12, as its own do.

    To be called by a primitive's type rule: JAX keeps what is forbidden in its trace contexts.
    """
    state = getattr(_jax_config, "no_collectives", None)
    forbidden = () if state is None else state.value
    for axis in axes:
        if axis in forbidden:
            raise _jax_core.ForbiddenCollectiveError(  # pyright: ignore[reportAttributeAccessIssue]
                f"Collective across axis '{axis}' is forbidden by `no_collectives`, but "
                f"`{operation}` acts on axis '{axis}'."
            )


def check_vma_enabled() -> bool:
    """Whether types track the axes that values vary over, here."""
    return bool(_jax_config._check_vma.value)


def with_vma(aval: Aval, axes: frozenset[Hashable]) -> Aval:
    """The type of a value that varies over `axes`, where that is tracked."""
    if not check_vma_enabled():
        return aval
    return aval.update(manual_axis_type=aval.mat.update(varying=aval.mat.varying | axes))


def vary_together(values: TreeT, axis_names: Axes) -> TreeT:
    """Makes arrays of a pytree vary over `axis_names` and over all that any of them varies over.

    A value that was the same on all devices gets its gradients summed over them, as it must.
    """
    if not check_vma_enabled():
        return values
    union = frozenset(axis_names).union(*(vma(jax.typeof(v)) for v in jax.tree.leaves(values)))
    order = [name for name in jax.sharding.get_abstract_mesh().axis_names if name in union]

    def varied(value: jax.Array) -> jax.Array:
        missing = tuple(name for name in order if name not in vma(jax.typeof(value)))
        return jax.lax.pcast(value, missing, to="varying") if missing else value

    return jax.tree.map(varied, values)


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


def concrete_mesh() -> jax.sharding.Mesh | None:
    """The mesh of `jax.set_mesh` with its devices, if the one that is traced for has its shape.

    `jax.sharding.get_mesh` refuses to tell while a program is traced.
    """
    mesh = _mesh.get_concrete_mesh()
    traced = jax.sharding.get_abstract_mesh()
    alike = list(mesh.shape.items()) == list(traced.shape.items())
    return mesh if alike and not mesh.empty else None


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


_PLATFORMS = ("cpu", "cuda", "rocm")  # that there are rules for from the start


def set_lowering(primitive: Primitive, rule: LoweringRule) -> None:
    """Lowers a primitive by rule(ctx, *values, platform=..., **params), for any platform.

    JAX would lower equal call sites once and share the result; each of ours needs a channel.
    """
    for platform in _PLATFORMS:
        lowering = functools.partial(rule, platform=platform)
        mlir.register_lowering(primitive, lowering, platform=platform, cacheable=False)

    def on_others(ctx: mlir.LoweringRuleContext, *values: MlirValue, **params: Any) -> Any:
        found = ctx.platforms or ctx.module_context.platforms
        other = next(name for name in found if name not in _PLATFORMS)
        return rule(ctx, *values, platform=other, **params)

    mlir.register_lowering(primitive, on_others, cacheable=False)
    _uncached.add(primitive)


_uncached: set[Primitive] = set()  # primitives of ours


def is_ours(primitive: Primitive) -> bool:
    """Whether fastjax has registered how a primitive is lowered."""
    return primitive in _uncached


_lower_per_platform = _mlir.lower_per_platform


@functools.wraps(_lower_per_platform)
def _lower_ours_per_platform(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    """JAX cannot lower what it does not cache for several platforms: it adds a list to a tuple."""
    if ctx.primitive in _uncached:
        ctx = ctx.replace(avals_out=list(ctx.avals_out))
    return _lower_per_platform(ctx, *args, **params)


_mlir.lower_per_platform = _lower_ours_per_platform


class Compilation:
    """A module that JAX is about to compile, or to read from its cache.

    Attributes:
      module: in StableHLO.
    """

    def __init__(self, run: Callable[[], Any], arguments: Mapping[str, Any]) -> None:
        self.module: ir.Module = arguments["computation"]
        self._run = run
        self._arguments = arguments

    def run(self) -> Any:
        """The executable; its `fingerprint` is that of what was compiled."""
        return self._run()

    @property
    def is_of_the_module_alone(self) -> bool:
        """Whether it would make the same again: no calls back into Python, and no profile."""
        given = self._arguments
        return not given["host_callbacks"] and given.get("pgle_profiler") is None

    @property
    def options(self) -> Hashable:
        """What the executable depends on besides the module."""
        given = self._arguments
        options = given["compile_options"].SerializeAsString()
        return options, given["executable_devices"], given["backend"]


def follow_modules(
    lowered: Callable[[ir.Module], None], compiled: Callable[[Compilation], Any]
) -> None:
    """Has JAX call functions of ours, from now on.

    Args:
      lowered: gets each module that is lowered, and may change it.
      compiled: returns the executable of a module.
    """
    lower_to_module, compile_or_get = _mlir.lower_jaxpr_to_module, _compiler.compile_or_get_cached
    signature = inspect.signature(compile_or_get)

    @functools.wraps(lower_to_module)
    def lower(*args: Any, **params: Any) -> Any:
        result: Any = lower_to_module(*args, **params)
        lowered(result.module)
        return result

    @functools.wraps(compile_or_get)
    def compile_module(*args: Any, **params: Any) -> Any:
        run = functools.partial(compile_or_get, *args, **params)
        return compiled(Compilation(run, signature.bind(*args, **params).arguments))

    _mlir.lower_jaxpr_to_module = lower
    _compiler.compile_or_get_cached = compile_module


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


def refuse_outside(primitive: Primitive) -> None:
    """Refuses a primitive outside of traced programs of several devices, in JAX's words."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"{primitive.name} must be used within a mapped context, in shard_map.")

    primitive.def_impl(refuse)


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


def set_no_derivative(primitive: Primitive) -> None:
    """Gives a primitive of integers the rule that they have no derivative.

    JAX hands on tangents of integers of a `custom_vjp`, in name only.
    """

    def rule(primals: Sequence[jax.Array], _: object, **params: Any) -> tuple[Any, Any]:
        made = primitive.bind(*primals, **params)
        return made, jax.tree.map(zero_tangent, made)

    set_jvp(primitive, rule)


def zero_tangent(value: jax.Array) -> ad.Zero:
    """The symbolic zero tangent of a value."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())
