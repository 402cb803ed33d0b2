"""An exchange of rows that indices name: a row that goes to several places is not copied first.

In reverse, rows that have one index are summed where they are returned, each times its factor, in
the type of the result: by rank of the device that they come from, and then in the order of its
slices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import config, jax_compat
from fastjax.traced import automatic_axes, custom_calls, fallback
from fastjax.traced.axes import Axes, Groups, fold_metadata, refuse_mapped_axis
from fastjax.traced.contract import (
    INDEXED_EXCHANGE,
    INDEXED_STAGE,
    INDEXED_STAGED_EXCHANGE,
    Metadata,
)
from fastjax.traced.exchange_batching import batch_at, check_batch_rows, offsets_in_batch
from fastjax.traced.exchange_primitive import fast_ragged_all_to_all_p
from fastjax.traced.plan import TracedPlan
from fastjax.traced.plan_spec import PlanSpec
from fastjax.traced.slices import covered

indexed_exchange_p = Primitive("indexed_exchange")
"""The primitive. Other platforms than CPU exchange copies; they sum in the order of indices.

Operands: source, base, input_offsets, send_sizes, output_offsets, recv_sizes, table, indices,
factors.
"""


_HALVES = (np.dtype(np.float16), np.dtype(jnp.bfloat16))


class _Params(TypedDict):
    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    transposed_plan: bool
    reverse: bool
    timeout_ms: int
    fallback: str
    staged: bool
    gpu_stream: bool


def indexed_exchange(
    source: jax.Array,
    base: jax.Array,
    way: Metadata[jax.Array],
    indices: jax.Array,
    plan: TracedPlan,
    *,
    reverse: bool = False,
    factors: jax.Array | None = None,
    staged: bool = False,
) -> jax.Array:
    """Exchanges rows `source[indices]`; in reverse, rows of the result are sums of returned rows.

    Args:
      source: rows to send.
      base: what the result holds where no row arrives; in reverse, where none is returned.
      way: offsets and sizes of the way there: input_offsets count indices.
      indices: int32, shape (entries,): rows of the operand, in reverse of the result.
      plan: of the way there.
      reverse: whether rows are returned to where `indices` took them.
      factors: what each row of `source` is multiplied by before it is summed, shape (rows,), of
        the type of `base`, or the real one of that; 1 if left out. In reverse only.
      staged: see `ExchangeParams`.

    Returns:
      Of the shape and type of `base`. In reverse that is float32, float64 or complex, and `source`
      is of that type, or of one that `summable` takes in its place. No derivative is defined.
    """
    if factors is None:
        factors = jnp.zeros(0, jnp.float32)
    operands = [source, base, *way, plan.table, indices, factors]
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


@indexed_exchange_p.def_impl
def _impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("an indexed exchange must be used within a mapped context, in shard_map.")


@indexed_exchange_p.def_abstract_eval
def _abstract_eval(
    source: jax_compat.Aval,
    base: jax_compat.Aval,
    *rest: jax_compat.Aval,
    axis_name: Axes,
    **_: object,
) -> jax_compat.Aval:
    axes = frozenset(axis_name).union(*(jax_compat.vma(a) for a in (source, base, *rest)))
    return jax_compat.with_vma(base.update(weak_type=False), axes)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *operands: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[_Params],
) -> list[jax_compat.MlirValue]:
    if platform != "cpu" or fallback.needed(platform, params["fallback"]):
        return jax_compat.lower_function(ctx, functools.partial(_copied, params), *operands)
    bind = functools.partial(indexed_exchange_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, operands, rows=2)
    if inside is not None:
        return inside
    spec = params["spec"]
    attributes = custom_calls.mesh_call_site(
        ctx,
        "fast_ragged_all_to_all",
        params["axis_name"],
        params["axis_index_groups"],
        spec,
        params["timeout_ms"],
        platform,
    )
    attributes |= {
        "reverse": params["reverse"],
        "transposed_table": params["transposed_plan"],
        "check_overlaps": False,
        "topology": custom_calls.planning(spec)["topology"],
    }
    if params["staged"] and custom_calls.can_stage(ctx):
        calls = INDEXED_STAGE, INDEXED_STAGED_EXCHANGE
        return custom_calls.emit_staged(ctx, *calls, operands, attributes)
    return custom_calls.emit(ctx, INDEXED_EXCHANGE, operands, attributes)


def _copied(params: _Params, *operands: jax.Array) -> jax.Array:
    """Does the same on other platforms, by an exchange of copies."""
    source, base, *way, table, indices, factors = operands
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
    at = jnp.where(returned, indices, base.shape[0])
    sums = jnp.zeros_like(base).at[at].add(each, mode="drop")
    found = jnp.zeros(base.shape[0], bool).at[at].set(True, mode="drop")
    return jnp.where(found.reshape(-1, *[1] * (base.ndim - 1)), sums, base)


def _batch(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[_Params],
) -> tuple[jax.Array, int | None]:
    refuse_mapped_axis(axis_data, params["axis_name"])
    size = axis_data.size
    if all(dim is None for dim in dims):
        return indexed_exchange_p.bind(*values, **params), None
    if all(dim is None for dim in dims[2:8]):
        data = [batch_at(v, d, size, 1) for v, d in zip(values[:2], dims[:2], strict=True)]
        factors = values[8]
        if dims[8] is not None:
            # Elements of the batch lie in one row, which has one factor.
            factors = batch_at(factors, dims[8], size, 1)
            data[0] = _multiplied(data[0], factors, data[1].dtype)
            factors = jnp.zeros_like(factors, shape=0)
        return indexed_exchange_p.bind(*data, *values[2:8], factors, **params), 1
    if dims[6] is not None or dims[5 if params["transposed_plan"] else 3] is None:
        return _one_by_one(values, dims, params), 0
    return _folded(size, values, dims, params), 0


def _multiplied(rows: jax.Array, factors: jax.Array, wide: np.dtype) -> jax.Array:
    """Rows times their factors, as the exchange does it; shape (rows, elements, ...)."""
    if factors.shape[0] == 0:
        return rows
    return rows.astype(wide) * factors.reshape(*factors.shape, *[1] * (rows.ndim - 2)).astype(wide)


def _one_by_one(
    values: Sequence[jax.Array], dims: Sequence[int | None], params: _Params
) -> jax.Array:
    batched = [jnp.moveaxis(v, d, 0) for v, d in zip(values, dims, strict=True) if d is not None]

    def element(parts: list[jax.Array]) -> jax.Array:
        part = iter(parts)
        operands = [v if d is None else next(part) for v, d in zip(values, dims, strict=True)]
        return indexed_exchange_p.bind(*operands, **params)

    return jax.lax.map(element, batched)


def _folded(
    size: int, values: Sequence[jax.Array], dims: Sequence[int | None], params: _Params
) -> jax.Array:
    """One exchange of stacked rows; the indices of each element are those of its own."""
    source, base, indices, factors = (batch_at(values[i], dims[i], size, 0) for i in (0, 1, 7, 8))
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
    indices = jnp.where(exists, indices + first, -1)
    merged = [x.reshape(-1, *x.shape[2:]) for x in (source, base)]
    operands = [*merged, *folded, values[6], indices.reshape(-1), factors.reshape(-1)]
    operands = jax_compat.vary_together(operands, params["axis_name"])
    result = indexed_exchange_p.bind(*operands, **params)
    return result.reshape(size, base.shape[1], *result.shape[1:])


jax_compat.set_lowering(indexed_exchange_p, _lowering, platforms=("cpu",))
jax_compat.set_batcher(indexed_exchange_p, _batch)

__all__ = ["indexed_exchange", "indexed_exchange_p", "summable"]
