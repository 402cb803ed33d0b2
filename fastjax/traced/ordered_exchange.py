"""An exchange that says when it has begun, so that others begin after it, on all devices alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

import jax
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced import fallback
from fastjax.traced.after import after
from fastjax.traced.axes import Axes
from fastjax.traced.exchange_batching import batch_exchange
from fastjax.traced.exchange_primitive import (
    ExchangeParams,
    fast_ragged_all_to_all_p,
    is_staged,
    lower_staged,
)

ordered_exchange_p = Primitive("ordered_exchange")
"""A staged exchange that was planned before. It has no derivatives.

Operands: those of `fast_ragged_all_to_all_p`, and an array. Results: the rows, and that array, for
what is to begin after this exchange. On CPU devices it exists once the operands are staged: the
order in which they are is that in which devices begin exchanges. On others it exists once the
operands do: they begin exchanges in the order in which XLA has put these.
"""
ordered_exchange_p.multiple_results = True


@ordered_exchange_p.def_impl
def _impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("an ordered exchange must be used within a mapped context, in shard_map.")


@ordered_exchange_p.def_abstract_eval
def _abstract_eval(
    *operands: jax_compat.Aval, axis_name: Axes, **_: object
) -> list[jax_compat.Aval]:
    axes = frozenset(axis_name).union(*map(jax_compat.vma, operands))
    results = (operands[1], operands[-1])
    return [jax_compat.with_vma(aval.update(weak_type=False), axes) for aval in results]


def _lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[ExchangeParams],
) -> list[jax_compat.MlirValue]:
    divided = jax_compat.automatic_axes(ctx)
    if divided or fallback.needed(platform, params["fallback"]) or not is_staged(ctx, platform):

        def in_line(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
            *exchanged, array = operands
            rows = fast_ragged_all_to_all_p.bind(*exchanged, **params)
            source, table = exchanged[0], exchanged[-1]
            return rows, after(after(array, source), table)

        return jax_compat.lower_function(ctx, in_line, *values)
    *operands, array = values
    return lower_staged(ctx, operands, params, array)


def _batch(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[ExchangeParams],
) -> tuple[tuple[jax.Array, ...], tuple[int | None, ...]]:
    *operands, array = values
    exchange = lambda *given, **of: tuple(ordered_exchange_p.bind(*given, array, **of))  # noqa: E731
    results, dim = batch_exchange(exchange, axis_data, operands, dims[:-1], params)
    return results, (dim, dims[-1])


jax_compat.set_lowering(ordered_exchange_p, _lowering)
jax_compat.set_batcher(ordered_exchange_p, _batch)

__all__ = ["ordered_exchange_p"]
