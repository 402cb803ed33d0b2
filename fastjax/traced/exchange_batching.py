"""`jax.vmap` of exchanges.

What binds an exchange returns the rows, and what else the exchange results in, which has no batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.traced.axes import fold_metadata, refuse_mapped_axis
from fastjax.traced.exchange_primitive import ExchangeParams, fast_ragged_all_to_all_p

Values = Sequence[jax.Array]
Dims = Sequence[int | None]
Results = tuple[jax.Array, ...]
Exchange = Callable[..., Results]


def batch(
    axis_data: Any, values: Values, dims: Dims, **params: Unpack[ExchangeParams]
) -> tuple[jax.Array, int | None]:
    """The batching rule of `fast_ragged_all_to_all_p`."""
    exchange = lambda *operands, **given: (fast_ragged_all_to_all_p.bind(*operands, **given),)  # noqa: E731
    (rows,), dim = batch_exchange(exchange, axis_data, values, dims, params)
    return rows, dim


def batch_exchange(
    exchange: Exchange, axis_data: Any, values: Values, dims: Dims, params: ExchangeParams
) -> tuple[Results, int | None]:
    """One exchange of the whole batch, unless each element has its own plan.

    Args:
      exchange: binds an exchange of such operands and parameters.
      axis_data: of the batch.
      values: operands of `fast_ragged_all_to_all_p`.
      dims: where each has its batch.
      params: its parameters.

    Returns:
      The results, and where the rows have their batch.
    """
    refuse_mapped_axis(axis_data, params["axis_name"])
    if all(dim is None for dim in dims):
        return exchange(*values, **params), None
    if all(dim is None for dim in dims[2:]):
        return _batch_data_only(exchange, axis_data.size, values, dims, params)
    if is_one_by_one(dims, params):
        return batch_one_by_one(exchange, values, dims, params)
    return _batch_folded(exchange, axis_data.size, values, dims, params)


def is_one_by_one(dims: Dims, params: Any) -> bool:
    """Whether each element of a batch has the traffic that its plan is for, and its own offsets."""
    if all(dim is None for dim in dims[2:]) or len(dims) == 6:
        return False
    # A transposed table was made from what are receive sizes here.
    planned_from = dims[5] if params["transposed_plan"] else dims[3]
    return dims[6] is not None or planned_from is None


def _batch_data_only(
    exchange: Exchange, size: int, values: Values, dims: Dims, params: ExchangeParams
) -> tuple[Results, int]:
    """The same rows of every element travel together: the batch becomes part of the row."""
    data = [batch_at(v, d, size, 1) for v, d in zip(values[:2], dims[:2], strict=True)]
    return exchange(*data, *values[2:], **params), 1


def batch_one_by_one(
    exchange: Exchange, values: Values, dims: Dims, params: Any
) -> tuple[Results, int]:
    """An exchange for each element of the batch, one after the other."""
    batched = [jnp.moveaxis(v, d, 0) for v, d in zip(values, dims, strict=True) if d is not None]

    def element(parts: list[jax.Array]) -> Results:
        part = iter(parts)
        operands = [v if d is None else next(part) for v, d in zip(values, dims, strict=True)]
        return exchange(*operands, **params)

    rows, *others = jax.lax.map(element, batched)
    return (rows, *(other[-1] for other in others)), 0


def _batch_folded(
    exchange: Exchange, size: int, values: Values, dims: Dims, params: ExchangeParams
) -> tuple[Results, int]:
    """The batch becomes one exchange of stacked rows, with `size` times the updates."""
    source, base = (batch_at(v, d, size, 0) for v, d in zip(values[:2], dims[:2], strict=True))
    source_rows, base_rows = source.shape[1], base.shape[1]
    operand_rows, output_rows = (
        (base_rows, source_rows) if params["reverse"] else (source_rows, base_rows)
    )
    check_batch_rows(size, max(operand_rows, output_rows))
    metadata = [batch_at(v, d, size, 1) for v, d in zip(values[2:6], dims[2:6], strict=True)]
    input_offsets, send_sizes, output_offsets, recv_sizes = metadata
    input_offsets = offsets_in_batch(input_offsets, send_sizes, operand_rows)
    output_offsets = offsets_in_batch(output_offsets, send_sizes, output_rows)
    folded = [fold_metadata(m, 1) for m in (input_offsets, send_sizes, output_offsets, recv_sizes)]
    merged = [x.reshape(size * x.shape[1], *x.shape[2:]) for x in (source, base)]
    operands = jax_compat.vary_together([*merged, *folded, *values[6:]], params["axis_name"])
    params["spec"] = params["spec"].of_batch(size)
    rows, *others = exchange(*operands, **params)
    return (rows.reshape(size, base_rows, *rows.shape[1:]), *others), 0


def check_batch_rows(size: int, rows: int) -> None:
    """Refuses batches whose rows int32 does not count when they are stacked."""
    if size * rows >= 2**31:
        raise ArgumentError(
            f"vmap of {size} elements makes one exchange of {size} x {rows} rows, more than int32 "
            "counts; map over fewer."
        )


def offsets_in_batch(offsets: jax.Array, sizes: jax.Array, rows: int) -> jax.Array:
    """Offsets, shape (entries, batch), as rows of the stacked batch, int32.

    A slice that leaves its element would land in another one's rows, where nobody could tell: its
    offset becomes -1, which is refused when the program runs.
    """
    offsets, sizes = _clipped(offsets), _clipped(sizes)
    leaves = (sizes > 0) & ((offsets < 0) | (offsets > rows - sizes))
    first = jnp.arange(offsets.shape[1], dtype=jnp.int32)[None] * rows
    return jnp.where(leaves, -1, jnp.where(sizes > 0, offsets + first, 0))


def _clipped(array: jax.Array) -> jax.Array:
    """As int32; what that cannot hold stays out of every range."""
    limits = jnp.iinfo(array.dtype)
    return jnp.clip(array, max(limits.min, -1), min(limits.max, 2**31 - 1)).astype(jnp.int32)


def batch_at(value: jax.Array, dim: int | None, size: int, at: int) -> jax.Array:
    """Returns the value with its batch dimension, made if need be, at `at`."""
    if dim is None:
        shape = (*value.shape[:at], size, *value.shape[at:])
        return jnp.broadcast_to(jnp.expand_dims(value, at), shape)
    return jnp.moveaxis(value, dim, at)


__all__ = [
    "Dims",
    "Exchange",
    "Results",
    "Values",
    "batch",
    "batch_at",
    "batch_exchange",
    "batch_one_by_one",
    "check_batch_rows",
    "is_one_by_one",
    "offsets_in_batch",
]
