"""An exchange of rows that indices name: a row that goes to several places is not copied first.

In reverse, rows that have one index are summed where they are returned, each times its factor, in
the type of the result. CPU devices sum by rank of the device that they come from, and then in the
order of its slices; GPUs in the order of entries, or in that which `entries` says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import config, handlers, jax_compat
from fastjax.traced import automatic_axes, fallback, indexed_calls
from fastjax.traced.axes import Axes, fold_metadata, refuse_mapped_axis
from fastjax.traced.contract import Metadata
from fastjax.traced.exchange_batching import (
    Dims,
    Exchange,
    Results,
    Values,
    batch_at,
    batch_one_by_one,
    check_batch_rows,
    is_one_by_one,
    offsets_in_batch,
)
from fastjax.traced.exchange_primitive import fast_ragged_all_to_all_p
from fastjax.traced.indexed_calls import Params
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import TracedPlan
from fastjax.traced.slices import covered

indexed_exchange_p = Primitive("indexed_exchange")
"""The primitive. Platforms without a backend of ours exchange copies.

Operands: source, base, input_offsets, send_sizes, output_offsets, recv_sizes, table, indices,
factors, entries.
"""


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
    staged: bool = False,
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
      staged: see `ExchangeParams`.

    Returns:
      Of the shape and type of `base`. In reverse that is float32, float64 or complex, and `source`
      is of that type, or of one that `summable` takes in its place. No derivative is defined.
      On GPUs, slices of the operand must not overlap in reverse.
    """
    if factors is None:
        factors = jnp.zeros(0, jnp.float32)
    if entries is None:
        entries = jnp.zeros((0, 0), jnp.int32)
    operands = [source, base, *way, plan.table, indices, factors, entries]
    operands = jax_compat.vary_together(operands, plan.axis_name)
    return indexed_exchange_p.bind(
        *operands,
        axis_name=plan.axis_name,
        axis_index_groups=plan.axis_index_groups,
        spec=plan.spec,
        transposed_plan=plan.transposed,
        reverse=reverse,
        timeout_ms=config.current().timeout_ms,
        fallback=config.current().fallback,
        staged=staged,
        gpu_stream=config.current().gpu_stream,
    )


def summable(dtype: np.dtype, wide: np.dtype) -> bool:
    """Whether rows of a type are summed in that wide one as they are."""
    return dtype == wide or (wide == np.float32 and dtype in _HALVES)


@indexed_exchange_p.def_abstract_eval
def _abstract_eval(*operands: jax_compat.Aval, axis_name: Axes, **_: object) -> jax_compat.Aval:
    return indexed_calls.exchanged_type(*operands, axis_name=axis_name)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *operands: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[Params],
) -> list[jax_compat.MlirValue]:
    if fallback.needed(platform, params["fallback"]):
        return jax_compat.lower_function(ctx, functools.partial(_copied, params), *operands)
    bind = functools.partial(indexed_exchange_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, operands, rows=2)
    if inside is not None:
        return inside
    # Operands are staged for the devices of a CPU, also where these emulate GPUs.
    as_gpu = handlers.emulates_gpus() and not indexed_calls.is_staged(ctx, params)
    if platform == "cpu" and not as_gpu:
        return indexed_calls.lower_on_cpus(ctx, operands[:-1], params)
    on_gpus = functools.partial(indexed_calls.on_gpus, params)
    return jax_compat.lower_function(ctx, on_gpus, *operands)


def _copied(params: Params, *operands: jax.Array) -> jax.Array:
    """Does the same on other platforms, by an exchange of copies."""
    source, base, *way, table, indices, factors, entries = operands
    exchange = functools.partial(fast_ragged_all_to_all_p.bind, check_overlaps=False, **params)
    if not params["reverse"]:
        copies = source.at[indices].get(mode="fill", fill_value=0)
        return exchange(copies, base, *way, table)
    each = jnp.zeros_like(base, shape=(indices.shape[0], *base.shape[1:]))
    rows = source.astype(base.dtype)
    if factors.shape[0] > 0:
        rows = rows * factors.reshape(-1, *[1] * (rows.ndim - 1)).astype(base.dtype)
    rows, each = jax_compat.vary_together([rows, each], params["axis_name"])
    each = exchange(rows, each, *way, table)
    returned = covered(way[0], way[1], indices.shape[0])
    if entries.shape[0] > 0:
        sums = look_up(each, entries, unique=True).sum(1)
        found = look_up(returned, entries, unique=True).any(1)
        return jnp.where(found.reshape(-1, *[1] * (base.ndim - 1)), sums, base)
    at = jnp.where(returned, indices, base.shape[0])
    sums = jnp.zeros_like(base).at[at].add(each, mode="drop")
    found = jnp.zeros(base.shape[0], bool).at[at].set(True, mode="drop")
    return jnp.where(found.reshape(-1, *[1] * (base.ndim - 1)), sums, base)


def _batch(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[Params],
) -> tuple[jax.Array, int | None]:
    exchange = lambda *operands, **given: (indexed_exchange_p.bind(*operands, **given),)  # noqa: E731
    (rows,), dim = batch_indexed(exchange, axis_data, values, dims, params)
    return rows, dim


def batch_indexed(
    exchange: Exchange, axis_data: Any, values: Values, dims: Dims, params: Any
) -> tuple[Results, int | None]:
    """Does for operands of `indexed_exchange_p` what `batch_exchange` does for others."""
    refuse_mapped_axis(axis_data, params["axis_name"])
    size = axis_data.size
    if all(dim is None for dim in dims):
        return exchange(*values, **params), None
    if all(dim is None for dim in (*dims[2:8], dims[9])):
        data = [batch_at(v, d, size, 1) for v, d in zip(values[:2], dims[:2], strict=True)]
        factors = values[8]
        if dims[8] is not None:
            # Elements of the batch lie in one row, which has one factor.
            factors = batch_at(factors, dims[8], size, 1)
            data[0] = _multiplied(data[0], factors, data[1].dtype)
            factors = jnp.zeros_like(factors, shape=0)
        return exchange(*data, *values[2:8], factors, values[9], **params), 1
    if is_one_by_one(dims, params):
        return batch_one_by_one(exchange, values, dims, params)
    return _folded(exchange, size, values, dims, params)


def _multiplied(rows: jax.Array, factors: jax.Array, wide: np.dtype) -> jax.Array:
    """Rows times their factors, as the exchange does it; shape (rows, elements, ...)."""
    if factors.shape[0] == 0:
        return rows
    return rows.astype(wide) * factors.reshape(*factors.shape, *[1] * (rows.ndim - 2)).astype(wide)


def _folded(
    exchange: Exchange, size: int, values: Values, dims: Dims, params: Any
) -> tuple[Results, int]:
    """One exchange of stacked rows; the indices of each element are those of its own."""
    source, base, indices, factors, entries = (
        batch_at(values[i], dims[i], size, 0) for i in (0, 1, 7, 8, 9)
    )
    indexed, plain = (base, source) if params["reverse"] else (source, base)
    metadata = [batch_at(v, d, size, 1) for v, d in zip(values[2:6], dims[2:6], strict=True)]
    input_offsets, send_sizes, output_offsets, recv_sizes = metadata
    input_offsets = offsets_in_batch(input_offsets, send_sizes, indices.shape[1])
    output_offsets = offsets_in_batch(output_offsets, send_sizes, plain.shape[1])
    folded = [fold_metadata(m, 1) for m in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    check_batch_rows(size, max(indices.shape[1], indexed.shape[1], plain.shape[1]))
    # An index of no row must not become one of a row of another element.
    exists = (indices >= 0) & (indices < indexed.shape[1])
    first = jnp.arange(size, dtype=indices.dtype)[:, None] * indexed.shape[1]
    number = jnp.arange(size, dtype=entries.dtype)[:, None, None]
    entries = entries + number * indices.shape[1]
    entries = entries.reshape(size * entries.shape[1], entries.shape[2])
    indices = jnp.where(exists, indices + first, -1)
    merged = [x.reshape(-1, *x.shape[2:]) for x in (source, base)]
    operands = [*merged, *folded, values[6], indices.reshape(-1), factors.reshape(-1), entries]
    operands = jax_compat.vary_together(operands, params["axis_name"])
    rows, *others = exchange(*operands, **params)
    return (rows.reshape(size, base.shape[1], *rows.shape[1:]), *others), 0


indexed_exchange_p.def_impl(indexed_calls.unmapped)
jax_compat.set_lowering(indexed_exchange_p, _lowering)
jax_compat.set_batcher(indexed_exchange_p, _batch)

__all__ = ["batch_indexed", "indexed_exchange", "indexed_exchange_p", "summable"]
