"""The primitive that plans, and its rules."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from fastjax import config, jax_compat
from fastjax.traced import automatic_axes, custom_calls, fallback
from fastjax.traced.axes import Axes, Groups, fold_metadata, refuse_mapped_axis
from fastjax.traced.contract import PLAN
from fastjax.traced.plan_spec import PlanSpec


class PlanParams(TypedDict):
    """The parameters of `plan_ragged_all_to_all_p`.

    Attributes:
      axis_name: mesh axes.
      axis_index_groups: groups of their positions.
      spec: what the plan depends on besides the sizes.
      timeout_ms: how long a device waits for the others.
      experts: of an MoE layer, for messages; 0 elsewhere.
      fallback: the option: what platforms without a backend of ours get.
    """

    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    timeout_ms: int
    experts: int
    fallback: str


def plan_params(axes: Axes, groups: Groups, spec: PlanSpec, experts: int) -> PlanParams:
    """The parameters of a plan that is traced now."""
    now = config.current()
    return {
        "axis_name": axes,
        "axis_index_groups": groups,
        "spec": spec,
        "timeout_ms": now.timeout_ms,
        "experts": experts,
        "fallback": now.fallback,
    }


plan_ragged_all_to_all_p = Primitive("plan_ragged_all_to_all")


@plan_ragged_all_to_all_p.def_impl
def _plan_impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("plan_ragged_all_to_all must be used within a mapped context, in shard_map.")


@plan_ragged_all_to_all_p.def_abstract_eval
def _plan_abstract_eval(
    send_sizes: jax_compat.Aval, *, axis_name: Axes, spec: PlanSpec, **_: object
) -> jax_compat.Aval:
    table = send_sizes.update(shape=(spec.table_words,), dtype=np.dtype(np.int32), weak_type=False)
    return jax_compat.with_vma(table, frozenset(axis_name))


def _plan_lowering(
    ctx: jax_compat.LoweringContext,
    send_sizes: jax_compat.MlirValue,
    *,
    platform: str,
    **params: Unpack[PlanParams],
) -> list[jax_compat.MlirValue]:
    spec = params["spec"]
    if fallback.needed(platform, params["fallback"]):
        # JAX's exchange, which takes its place there, reads no table.
        return jax_compat.lower_function(
            ctx, lambda _: jnp.zeros(spec.table_words, jnp.int32), send_sizes
        )
    bind = functools.partial(plan_ragged_all_to_all_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, [send_sizes], rows=0)
    if inside is not None:
        return inside
    return [emit_plan(ctx, send_sizes, plan_attributes(ctx, platform, params))]


def emit_plan(
    ctx: jax_compat.LoweringContext,
    sizes: jax_compat.MlirValue,
    attributes: dict[str, object],
) -> jax_compat.MlirValue:
    """Emits a call of all devices of a mesh that plans or gathers."""
    (operand,) = custom_calls.operands_of(ctx, [sizes])
    operands = {"send_sizes": operand, **custom_calls.partition()}
    return custom_calls.emit(ctx, PLAN, operands, attributes)


def plan_attributes(
    ctx: jax_compat.LoweringContext, platform: str, params: PlanParams
) -> dict[str, object]:
    """The attributes of a call that plans."""
    spec = params["spec"]
    attributes = custom_calls.mesh_call_site(
        ctx,
        "plan_ragged_all_to_all",
        params["axis_name"],
        params["axis_index_groups"],
        spec,
        params["timeout_ms"],
        platform,
    )
    return attributes | custom_calls.planning(spec) | {"experts": params["experts"]}


def _plan_jvp(
    primals: Sequence[jax.Array],
    tangents: Sequence[jax_compat.Tangent],
    **params: Unpack[PlanParams],
) -> tuple[jax.Array, jax_compat.Tangent]:
    """Sizes have no derivative; what JAX hands on for those of a custom_vjp is one in name only."""
    del tangents
    table = plan_ragged_all_to_all_p.bind(*primals, **params)
    return table, jax_compat.zero_tangent(table)


def _plan_batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[PlanParams],
) -> tuple[jax.Array, None]:
    """A batch exchanges as one: its plan is that of all sizes, laid out as the exchange does."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    (sizes,), (dim,) = values, dims
    if dim is not None:
        sizes = fold_metadata(sizes, dim)
        params["spec"] = params["spec"].of_batch(axis_data.size)
    return plan_ragged_all_to_all_p.bind(sizes, **params), None


jax_compat.set_lowering(plan_ragged_all_to_all_p, _plan_lowering)
jax_compat.set_batcher(plan_ragged_all_to_all_p, _plan_batcher)
ad.primitive_jvps[plan_ragged_all_to_all_p] = _plan_jvp


__all__ = ["PlanParams", "emit_plan", "plan_attributes", "plan_params", "plan_ragged_all_to_all_p"]
