"""An exchange of rows that indices name: a row that goes to several places is not copied first.

In reverse, rows that have one index are summed where they are returned, each times its factor, in
the type of the result, in the order of entries, whichever devices they come from; on GPUs and other
platforms in that which `entries` says, if it is given. CPU devices order whole slices of the
operand, by input offset: where slices overlap, those of one offset are summed by rank.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.traced.contract import Metadata
from fastjax.traced.exchange_primitive import INDEXED, fast_ragged_all_to_all_p, params_now
from fastjax.traced.plan import TracedPlan

_HALVES = (np.dtype(np.float16), np.dtype(jnp.bfloat16))


def indexed_exchange(
    source: jax.Array,
    base: jax.Array,
    way: Metadata[jax.Array],
    indices: jax.Array,
    plan: TracedPlan,
    *,
    reverse: bool = False,
    factors: jax.Array | None = None,
    entries: jax.Array | None = None,
) -> jax.Array:
    """Exchanges rows `source[indices]`; in reverse, rows of the result are sums of returned rows.

    Args:
      source: rows to send.
      base: what the result holds where no row arrives; in reverse, where none is returned.
      way: offsets and sizes of the way there: input_offsets count indices.
      indices: int32, shape (entries,): rows of the operand, in reverse of the result. CPU devices
        refuse one of no row. On GPUs, which nobody reads before the rows move, it stands for zeros,
        and in reverse for nothing.
      plan: of the way there.
      reverse: whether rows are returned to where `indices` took them.
      factors: what each row of `source` is multiplied by before it is summed, shape (rows,), of
        the type of `base`, or the real one of that; 1 if left out. In reverse only.
      entries: int32, shape (rows of the result, count), in reverse and where each row has as many:
        the entries that have it as their index, each entry of `indices` once. The same as `indices`
        by row, which GPUs sort if this is left out. They sum in this order.

    Returns:
      Of the shape and type of `base`. In reverse that is float32, float64 or complex, and `source`
      is of that type, or of one that `summable` takes in its place. No derivative is defined.
      On GPUs, slices of the operand must not overlap in reverse.
    """
    indexing = indexed_operands(indices, factors, entries)
    operands = [source, base, *way, plan.table, *indexing]
    operands = jax_compat.vary_together(operands, plan.axis_name)
    params = params_now(
        plan.axis_name,
        plan.axis_index_groups,
        plan.spec,
        operands=INDEXED,
        transposed_plan=plan.transposed,
        reverse=reverse,
    )
    return fast_ragged_all_to_all_p.bind(*operands, **params)


def indexed_operands(
    indices: jax.Array, factors: jax.Array | None, entries: jax.Array | None
) -> list[jax.Array]:
    """Operands of the primitive; those that are left out are empty."""
    factors = jnp.zeros(0, jnp.float32) if factors is None else factors
    entries = jnp.zeros((0, 0), jnp.int32) if entries is None else entries
    return [indices, factors, entries]


def summable(dtype: np.dtype, wide: np.dtype) -> bool:
    """Whether rows of a type are summed in that wide one as they are."""
    return dtype == wide or (wide == np.float32 and dtype in _HALVES)


__all__ = ["indexed_exchange", "indexed_operands", "summable"]
