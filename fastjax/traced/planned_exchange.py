"""Exchanges of operands that are known to fit each other and their plan.

Indices may name the rows: one that goes to several places is not copied first. In reverse, rows
that have one index are summed where they are returned, each times its factor, in the type of the
result, in the order of entries, whichever devices they come from; on GPUs and other platforms in
that which `entries` says, if it is given. CPU devices order whole slices of the operand, by input
offset: where slices overlap, those of one offset are summed by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.traced.contract import Metadata
from fastjax.traced.exchange_primitive import (
    INDEXED,
    PLANNED,
    ExchangeParams,
    fast_ragged_all_to_all_p,
    params_now,
)
from fastjax.traced.narrow_types import byte_sized
from fastjax.traced.plan import TracedPlan

_HALVES = (np.dtype(np.float16), np.dtype(jnp.bfloat16))


def exchange_planned(
    operand: jax.Array,
    output: jax.Array,
    metadata: Metadata[jax.Array],
    plan: TracedPlan,
    **given: Any,
) -> jax.Array:
    """Exchanges rows; see `planned_operands`. By indices, or in reverse, it has no derivatives.

    Returns:
      Of the shape and type of `output`.
    """
    operands, params, restore = planned_operands(operand, output, metadata, plan, **given)
    values = jax_compat.vary_together(operands, plan.axis_name)
    return restore(fast_ragged_all_to_all_p.bind(*values, **params))


def planned_operands(
    operand: jax.Array,
    output: jax.Array,
    metadata: Metadata[jax.Array],
    plan: TracedPlan,
    *,
    reverse: bool = False,
    indices: jax.Array | None = None,
    factors: jax.Array | None = None,
    entries: jax.Array | None = None,
    started: bool = False,
) -> tuple[list[jax.Array], ExchangeParams, Callable[[jax.Array], jax.Array]]:
    """The operands and parameters of `fast_ragged_all_to_all_p`.

    Args:
      operand: rows to send.
      output: what the result holds where no row arrives; in reverse, where none is returned.
      metadata: offsets and sizes of the way there: input_offsets count indices, if there are any.
      plan: of the way there.
      reverse: whether rows travel from output space to operand space, and are summed there.
      indices: int32, shape (entries,): rows of the operand, in reverse of the result. CPU devices
        refuse one of no row. On GPUs, which nobody reads before the rows move, it stands for zeros,
        and in reverse for nothing. There, slices of the operand must not overlap in reverse. In
        reverse the result is float32, float64 or complex, and rows are of that type, or of one that
        `summable` takes in its place.
      factors: what each row is multiplied by before it is summed, shape (rows,), of the type of
        the result, or the real one of that; 1 if left out. With indices and in reverse only.
      entries: int32, shape (rows of the result, count), in reverse and where each row has as many:
        the entries that have it as their index, each entry of `indices` once. The same as `indices`
        by row, which GPUs sort if this is left out. They sum in this order.
      started: whether it is for a start.

    Returns:
      Both, and what gives a result the type of the output again.
    """
    carried, restore = byte_sized(operand, output)
    operands = [*carried, *metadata, plan.table]
    if indices is not None:  # what is left out is empty
        factors = jnp.zeros(0, jnp.float32) if factors is None else factors
        entries = jnp.zeros((0, 0), jnp.int32) if entries is None else entries
        operands += [indices, factors, entries]
    params = params_now(
        plan.axis_name,
        plan.axis_index_groups,
        plan.spec,
        operands=PLANNED if indices is None else INDEXED,
        transposed_plan=plan.transposed,
        reverse=reverse,
        started=started,
    )
    return operands, params, restore


def summable(dtype: np.dtype, wide: np.dtype) -> bool:
    """Whether rows of a type are summed in that wide one as they are."""
    return dtype == wide or (wide == np.float32 and dtype in _HALVES)
