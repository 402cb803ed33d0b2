"""The primitive that plans, and its rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad

from fastjax import jax_compat
from fastjax.traced.axes import fold_metadata, refuse_mapped_axis
from fastjax.traced.custom_calls import call_site_attributes, planning_attributes
from fastjax.traced.plan_spec import PlanSpec

plan_ragged_all_to_all_p = Primitive("plan_ragged_all_to_all")


@plan_ragged_all_to_all_p.def_impl
def _plan_impl(*_: Any, **__: Any) -> Any:
    raise RuntimeError("plan_ragged_all_to_all must be used within a mapped context, in shard_map.")


@plan_ragged_all_to_all_p.def_effectful_abstract_eval
def _plan_abstract_eval(send_sizes: Any, *, axis_name: Any, spec: PlanSpec, **_: Any) -> Any:
    table = send_sizes.update(shape=(spec.table_words,), dtype=np.dtype(np.int32), weak_type=False)
    table = jax_compat.with_vma(table, frozenset(axis_name))
    return table, jax_compat.axis_effects(axis_name)


def _plan_lowering(
    ctx: Any,
    send_sizes: Any,
    *,
    axis_name: tuple[Any, ...],
    axis_index_groups: tuple[tuple[int, ...], ...] | None,
    spec: PlanSpec,
    timeout_ms: int,
    experts: int,
    platform: str,
) -> list[Any]:
    attributes = call_site_attributes(
        ctx, "plan_ragged_all_to_all", axis_name, axis_index_groups, spec, timeout_ms, platform
    )
    attributes["experts"] = np.int64(experts)
    table = jax_compat.custom_call(
        ctx,
        "fastjax_plan_v1",
        [send_sizes, jax_compat.partition_id()],
        [ctx.avals_in[0], jax_compat.PARTITION_AVAL],
        ctx.avals_out[0],
        attributes | planning_attributes(spec),
    )
    return [table]


def _plan_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """Sizes have no derivative; what JAX hands on for those of a custom_vjp is one in name only."""
    del tangents
    table = plan_ragged_all_to_all_p.bind(*primals, **params)
    return table, jax_compat.zero_tangent(table)


def _plan_batcher(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
    """A batch exchanges as one: its plan is that of all sizes, laid out as the exchange does."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    (sizes,), (dim,) = values, dims
    if dim is not None:
        sizes = fold_metadata(sizes, dim)
    return plan_ragged_all_to_all_p.bind(sizes, **params), None


jax_compat.set_lowering(plan_ragged_all_to_all_p, _plan_lowering)
jax_compat.set_batcher(plan_ragged_all_to_all_p, _plan_batcher)
ad.primitive_jvps[plan_ragged_all_to_all_p] = _plan_jvp


__all__ = ["plan_ragged_all_to_all_p"]
