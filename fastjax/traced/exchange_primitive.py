"""The primitive that exchanges, its type and how it is lowered."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced.custom_calls import call_site_attributes, planning_attributes

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
    attributes = call_site_attributes(
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
    planned = planning_attributes(params["spec"])
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


jax_compat.set_lowering(fast_ragged_all_to_all_p, _lowering)


__all__ = ["fast_ragged_all_to_all_p"]
