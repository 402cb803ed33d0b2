"""The primitive that plans exchanges and gathers counts, and its rules.

CPU devices have a call for either and for both, which waits as long as an exchange does, and no
longer. On other platforms `jax.lax.all_gather` gathers, which waits for the other devices without
limit.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import handlers, jax_compat
from fastjax.traced import automatic_axes, custom_calls
from fastjax.traced import fallback as fallbacks
from fastjax.traced.axes import Axes, fold_metadata, refuse_mapped_axis
from fastjax.traced.contract import PLAN
from fastjax.traced.custom_calls import CallParams
from fastjax.traced.plan_spec import PlanSpec


class PlanParams(CallParams):
    """The parameters of `plan_ragged_all_to_all_p`.

    Attributes:
      experts: of an MoE layer, for messages; where it only gathers, those that have counts, which
        statistics tell. 0 elsewhere.
      servers: counts before those of experts; together they may come several times over.
      plans, gathers: which of the results there are.
    """

    experts: int
    servers: int
    plans: bool
    gathers: bool


plan_ragged_all_to_all_p = Primitive("plan_ragged_all_to_all")
"""Takes the sizes of a device, or any counts: int32, shape (counts,).

Returns the device's stage table, where it plans; then, where it gathers, the counts of all devices
by position, shape (devices * counts,).
"""
plan_ragged_all_to_all_p.multiple_results = True


@plan_ragged_all_to_all_p.def_abstract_eval
def _abstract_eval(
    counts: jax_compat.Aval,
    *,
    axis_name: Axes,
    spec: PlanSpec,
    plans: bool,
    gathers: bool,
    **_: object,
) -> list[jax_compat.Aval]:
    operation = plan_ragged_all_to_all_p.name if plans else "gather_counts"
    jax_compat.refuse_forbidden_axes(axis_name, operation)
    lengths = [spec.table_words] * plans + [len(spec.rank_of) * counts.shape[0]] * gathers
    int32 = counts.update(dtype=np.dtype(np.int32), weak_type=False)
    results = (int32.update(shape=(length,)) for length in lengths)
    return [jax_compat.with_vma(result, frozenset(axis_name)) for result in results]


def _lowering(
    ctx: jax_compat.LoweringContext,
    counts: jax_compat.MlirValue,
    *,
    platform: str,
    **params: Unpack[PlanParams],
) -> list[jax_compat.MlirValue]:
    axes, groups, spec = params["axis_name"], params["axis_index_groups"], params["spec"]
    if params["gathers"] and not handlers.are_cpus(platform):

        def apart(counts: jax.Array) -> list[jax.Array]:
            plans = {**params, "gathers": False}
            made = plan_ragged_all_to_all_p.bind(counts, **plans) if params["plans"] else []
            return [*made, jax.lax.all_gather(counts, axes, axis_index_groups=groups, tiled=True)]

        return jax_compat.lower_function(ctx, apart, counts)
    if fallbacks.needed(platform, params["fallback"]):
        # JAX's exchange, which takes its place there, reads no table.
        return jax_compat.lower_function(
            ctx, lambda _: [jnp.zeros(spec.table_words, jnp.int32)], counts
        )
    bind = functools.partial(plan_ragged_all_to_all_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, [counts], rows=0)
    if inside is not None:
        return inside
    operation = "plan_ragged_all_to_all" if params["plans"] else "gather_counts"
    attributes = custom_calls.mesh_call_site(ctx, operation, params, platform)
    if params["plans"]:
        attributes |= custom_calls.planning(spec) | {"experts": params["experts"]}
    elif params["experts"]:
        attributes |= {name: params[name] for name in ("experts", "servers")}
        attributes["topology"] = spec.topology.words
    (operand,) = custom_calls.operands_of(ctx, [counts])
    operands = {"send_sizes": operand, **custom_calls.partition()}
    return custom_calls.emit_several(ctx, PLAN, operands, attributes)


def _batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[PlanParams],
) -> tuple[list[jax.Array], list[int | None]]:
    """A batch exchanges as one: its plan is that of all sizes, laid out as the exchange does."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    (counts,), (dim,) = values, dims
    plans, gathers = params["plans"], params["gathers"]
    if dim is None:
        made = plan_ragged_all_to_all_p.bind(counts, **params)
        return made, [None] * len(made)
    params["spec"] = params["spec"].of_batch(axis_data.size)
    if not plans:
        params["experts"] *= axis_data.size
        params["servers"] *= axis_data.size
    made = plan_ragged_all_to_all_p.bind(fold_metadata(counts, dim), **params)
    if gathers:  # unfolded again, with the batch in the second dimension
        made[-1] = made[-1].reshape(-1, axis_data.size)
    return made, [None] * plans + [1] * gathers


jax_compat.refuse_outside(plan_ragged_all_to_all_p)
jax_compat.set_lowering(plan_ragged_all_to_all_p, _lowering)
jax_compat.set_batcher(plan_ragged_all_to_all_p, _batcher)
jax_compat.set_no_derivative(plan_ragged_all_to_all_p)
