"""`jax.vmap` of exchanges, of any operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.traced.axes import batch_at, fold_metadata, refuse_mapped_axis
from fastjax.traced.contract import Metadata
from fastjax.traced.exchange_primitive import (
    ExchangeParams,
    fast_ragged_all_to_all_p,
    operand_names,
)

Values = Sequence[jax.Array]
Dims = Sequence[int | None]
Results = tuple[jax.Array, ...]
Exchange = Callable[..., Results]
"""Binds an exchange: returns the rows, and what it results in besides, which has no batch."""


def batch(
    axis_data: Any, values: Values, dims: Dims, **params: Unpack[ExchangeParams]
) -> tuple[jax.Array, int | None]:
    """The batching rule of `fast_ragged_all_to_all_p`."""
    exchange = lambda *operands, **given: (fast_ragged_all_to_all_p.bind(*operands, **given),)  # noqa: E731
    (rows,), dim = batch_exchange(exchange, axis_data, values, dims, params)
    return rows, dim


def batch_exchange(
    exchange: Exchange,
    axis_data: Any,
    values: Values,
    dims: Dims,
    params: ExchangeParams,
    one: Exchange | None = None,
) -> tuple[Results, int | None]:
    """One exchange of the whole batch, unless each element has its own plan.

    Args:
      exchange: binds an exchange of such operands and parameters.
      axis_data: of the batch.
      values: operands of `fast_ragged_all_to_all_p`.
      dims: where each has its batch.
      params: its parameters.
      one: binds that of an element of the batch; by default the same.

    Returns:
      The results, and where the rows have their batch.
    """
    refuse_mapped_axis(axis_data, params["axis_name"])
    names = operand_names(params)
    dim_of = dict(zip(names, dims, strict=True))
    if all(dim is None for dim in dims):
        return exchange(*values, **params), None
    given = dict(zip(names, values, strict=True))
    if all(dim_of[name] is None for name in {*names} - {"source", "base", "factors"}):
        return _batch_data_only(exchange, axis_data.size, given, dim_of, params)
    if params["drop"]:  # folded, rows beyond an element's array would be within its neighbour's
        return _batch_one_by_one(one or exchange, values, dims, params)
    # A transposed table was made from what are receive sizes here.
    planned_from = "recv_sizes" if params["transposed_plan"] else "send_sizes"
    if "table" in given and (dim_of["table"] is not None or dim_of[planned_from] is None):
        # Each element of the batch has the traffic that its plan is for: one exchange for each.
        return _batch_one_by_one(one or exchange, values, dims, params)
    return _batch_folded(exchange, axis_data.size, given, dim_of, params)


def _batch_data_only(
    exchange: Exchange,
    size: int,
    given: dict[str, jax.Array],
    dims: dict[str, int | None],
    params: ExchangeParams,
) -> tuple[Results, int]:
    """The same rows of every element travel together: the batch becomes part of the row."""
    given |= {name: batch_at(given[name], dims[name], size, 1) for name in ("source", "base")}
    if dims.get("factors") is not None:
        # Elements of the batch lie in one row, which has one factor.
        factors = batch_at(given["factors"], dims["factors"], size, 1)
        given["source"] = _multiplied(given["source"], factors, given["base"].dtype)
        given["factors"] = jnp.zeros_like(factors, shape=0)
    return exchange(*given.values(), **params), 1


def _multiplied(rows: jax.Array, factors: jax.Array, wide: np.dtype) -> jax.Array:
    """Rows times their factors, as the exchange does it; shape (rows, elements, ...)."""
    if factors.shape[0] == 0:
        return rows
    return rows.astype(wide) * factors.reshape(*factors.shape, *[1] * (rows.ndim - 2)).astype(wide)


def _batch_one_by_one(
    exchange: Exchange, values: Values, dims: Dims, params: ExchangeParams
) -> tuple[Results, int]:
    batched = [jnp.moveaxis(v, d, 0) for v, d in zip(values, dims, strict=True) if d is not None]

    def element(parts: list[jax.Array]) -> Results:
        part = iter(parts)
        operands = [v if d is None else next(part) for v, d in zip(values, dims, strict=True)]
        return exchange(*operands, **params)

    rows, *others = jax.lax.map(element, batched)
    return (rows, *(other[-1] for other in others)), 0


def _batch_folded(
    exchange: Exchange,
    size: int,
    given: dict[str, jax.Array],
    dims: dict[str, int | None],
    params: ExchangeParams,
) -> tuple[Results, int]:
    """The batch becomes one exchange of stacked rows, with `size` times the updates."""
    for name in {*given} - {"table"}:
        given[name] = batch_at(given[name], dims[name], size, name in Metadata._fields)
    source_rows, base_rows = given["source"].shape[1], given["base"].shape[1]
    operand_rows, output_rows = (
        (base_rows, source_rows) if params["reverse"] else (source_rows, base_rows)
    )
    largest = max(operand_rows, output_rows)
    if "indices" in given:
        largest = max(largest, given["indices"].shape[1])
        operand_rows = _fold_indices(size, given, operand_rows)
    check_batch_rows(size, largest)
    sizes = given["send_sizes"]
    for name, rows in (("input_offsets", operand_rows), ("output_offsets", output_rows)):
        given[name] = _offsets_in_batch(given[name], sizes, rows)
    for name in Metadata._fields:
        given[name] = fold_metadata(given[name], 1)
    for name in ("source", "base"):
        given[name] = given[name].reshape(size * given[name].shape[1], *given[name].shape[2:])
    operands = jax_compat.vary_together([*given.values()], params["axis_name"])
    params["spec"] = params["spec"].of_batch(size)
    rows, *others = exchange(*operands, **params)
    return (rows.reshape(size, base_rows, *rows.shape[1:]), *others), 0


def _fold_indices(size: int, given: dict[str, jax.Array], rows: int) -> int:
    """The indices of each element become those of its own rows.

    Args:
      size: of the batch.
      given: the operands by name, with the batch in front.
      rows: of operand space, in each element.

    Returns:
      How many indices each element has: slices are ranges of these.
    """
    indices, entries = given["indices"], given["entries"]
    count = indices.shape[1]
    # An index of no row must not become one of a row of another element.
    exists = (indices >= 0) & (indices < rows)
    first = jnp.arange(size, dtype=indices.dtype)[:, None] * rows
    given["indices"] = jnp.where(exists, indices + first, -1).reshape(-1)
    entries = entries + jnp.arange(size, dtype=entries.dtype)[:, None, None] * count
    given["entries"] = entries.reshape(size * entries.shape[1], entries.shape[2])
    given["factors"] = given["factors"].reshape(-1)
    return count


def check_batch_rows(size: int, rows: int) -> None:
    """Refuses batches whose rows int32 does not count when they are stacked."""
    if size * rows >= 2**31:
        raise ArgumentError(
            f"vmap of {size} elements makes one exchange of {size} x {rows} rows, more than int32 "
            "counts; map over fewer."
        )


def _offsets_in_batch(offsets: jax.Array, sizes: jax.Array, rows: int) -> jax.Array:
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
