"""Counts of all devices, gathered by calls that wait as long as an exchange does, and no longer.

CPU devices have such calls. On other platforms `jax.lax.all_gather` takes their place, which waits
for the other devices without limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict, Unpack

import jax
import numpy as np
from jax.extend.core import Primitive

from fastjax import config, handlers, jax_compat
from fastjax.traced import automatic_axes, custom_calls
from fastjax.traced.axes import Axes, Groups, fold_metadata, refuse_mapped_axis
from fastjax.traced.plan_primitive import (
    PlanParams,
    emit_plan,
    plan_attributes,
    plan_ragged_all_to_all_p,
)
from fastjax.traced.plan_spec import PlanSpec


class GatherParams(TypedDict):
    """The parameters of `gather_counts_p`: those of `PlanParams` that it needs."""

    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    timeout_ms: int


gather_counts_p = Primitive("gather_counts")
"""Takes int32 of shape (counts,), returns those of all devices, by position: (devices * counts,)"""

plan_and_gather_p = Primitive("plan_and_gather")
"""Does what `plan_ragged_all_to_all_p` does, and returns what `gather_counts_p` does, too."""
plan_and_gather_p.multiple_results = True


def gather_counts(
    counts: jax.Array,
    axes: Axes,
    groups: Groups,
    spec: PlanSpec,
    timeout_ms: int | None = None,
) -> jax.Array:
    """The counts of all devices of a group, by position.

    Args:
      counts: int32, of any shape.
      axes: mesh axes.
      groups: groups of their positions, or None.
      spec: of any plan of these devices.
      timeout_ms: how long a device waits for the others; that of the options if left out.

    Returns:
      Shape (devices, *counts.shape).
    """
    (flat,) = jax_compat.vary_together([counts.reshape(-1)], axes)
    gathered = gather_counts_p.bind(
        flat,
        axis_name=axes,
        axis_index_groups=groups,
        spec=spec,
        timeout_ms=timeout_ms or config.current().timeout_ms,
    )
    return gathered.reshape(len(spec.rank_of), *counts.shape)


@gather_counts_p.def_impl
@plan_and_gather_p.def_impl
def _impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("counts are gathered within a mapped context, in shard_map.")


@gather_counts_p.def_abstract_eval
def _gather_abstract_eval(
    counts: jax_compat.Aval, *, axis_name: Axes, spec: PlanSpec, **_: object
) -> jax_compat.Aval:
    length = len(spec.rank_of) * counts.shape[0]
    return jax_compat.with_vma(
        counts.update(shape=(length,), dtype=np.dtype(np.int32), weak_type=False),
        frozenset(axis_name),
    )


@plan_and_gather_p.def_abstract_eval
def _plan_abstract_eval(
    sizes: jax_compat.Aval, *, axis_name: Axes, spec: PlanSpec, **_: object
) -> list[jax_compat.Aval]:
    gathered = _gather_abstract_eval(sizes, axis_name=axis_name, spec=spec)
    return [gathered.update(shape=(spec.table_words,)), gathered]


def _has_call(platform: str) -> bool:
    """Whether there is a call of ours that gathers; what emulates GPUs does as these do."""
    usable = platform == "cpu" and not handlers.unusable(platform)
    return usable and not handlers.emulates_gpus()


def _gather_lowering(
    ctx: jax_compat.LoweringContext,
    counts: jax_compat.MlirValue,
    *,
    platform: str,
    **params: Unpack[GatherParams],
) -> list[jax_compat.MlirValue]:
    axes, groups = params["axis_name"], params["axis_index_groups"]
    if not _has_call(platform):

        def gather(counts: jax.Array) -> jax.Array:
            return jax.lax.all_gather(counts, axes, axis_index_groups=groups, tiled=True)

        return jax_compat.lower_function(ctx, gather, counts)

    def bind(counts: jax.Array) -> jax.Array:
        return gather_counts_p.bind(counts, **params)

    inside = automatic_axes.lower(ctx, bind, [counts], rows=0)
    if inside is not None:
        return inside
    attributes = custom_calls.mesh_call_site(
        ctx, "gather_counts", axes, groups, params["spec"], params["timeout_ms"], platform
    )
    return [emit_plan(ctx, counts, attributes)]


def _plan_lowering(
    ctx: jax_compat.LoweringContext,
    sizes: jax_compat.MlirValue,
    *,
    platform: str,
    **params: Unpack[PlanParams],
) -> list[jax_compat.MlirValue]:
    if not _has_call(platform) or jax_compat.automatic_axes(ctx):

        def apart(sizes: jax.Array) -> tuple[jax.Array, jax.Array]:
            gather = {name: params[name] for name in GatherParams.__annotations__}
            table = plan_ragged_all_to_all_p.bind(sizes, **params)
            return table, gather_counts_p.bind(sizes, **gather)

        return jax_compat.lower_function(ctx, apart, sizes)
    table, gathered = ctx.avals_out
    words, counts = table.shape[0], gathered.shape[0]
    both = table.update(shape=(words + counts,))
    attributes = plan_attributes(ctx, platform, params)
    made = emit_plan(ctx.replace(avals_out=[both]), sizes, attributes)
    return jax_compat.lower_function(
        ctx.replace(avals_in=[both]), lambda made: (made[:words], made[words:]), made
    )


def _no_derivative(primitive: Primitive) -> Any:
    """As for plans: what JAX hands on for sizes of a custom_vjp is a tangent in name only."""

    def jvp(primals: Sequence[jax.Array], tangents: object, **params: object) -> Any:
        del tangents
        made = primitive.bind(*primals, **params)
        return made, jax.tree.map(jax_compat.zero_tangent, made)

    return jvp


def _gather_batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[GatherParams],
) -> tuple[jax.Array, int | None]:
    refuse_mapped_axis(axis_data, params["axis_name"])
    (counts,), (dim,) = values, dims
    if dim is None:
        return gather_counts_p.bind(counts, **params), None
    return _unfolded(gather_counts_p.bind(fold_metadata(counts, dim), **params), axis_data), 1


def _plan_batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[PlanParams],
) -> tuple[list[jax.Array], list[int | None]]:
    """A batch exchanges as one; see the batcher of `plan_ragged_all_to_all_p`."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    (sizes,), (dim,) = values, dims
    if dim is None:
        return plan_and_gather_p.bind(sizes, **params), [None, None]
    params["spec"] = params["spec"].of_batch(axis_data.size)
    table, gathered = plan_and_gather_p.bind(fold_metadata(sizes, dim), **params)
    return [table, _unfolded(gathered, axis_data)], [None, 1]


def _unfolded(gathered: jax.Array, axis_data: Any) -> jax.Array:
    """What `fold_metadata` has folded on each device, with the batch in the second dimension."""
    return gathered.reshape(gathered.shape[0] // axis_data.size, axis_data.size)


jax_compat.set_lowering(gather_counts_p, _gather_lowering)
jax_compat.set_lowering(plan_and_gather_p, _plan_lowering)
jax_compat.set_batcher(gather_counts_p, _gather_batcher)
jax_compat.set_batcher(plan_and_gather_p, _plan_batcher)
for _primitive in (gather_counts_p, plan_and_gather_p):
    jax_compat.set_jvp(_primitive, _no_derivative(_primitive))


__all__ = ["gather_counts", "gather_counts_p", "plan_and_gather_p"]
