"""An exchange that says when it has begun, so that others begin after it, on all devices alike."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn, Unpack

import jax
from jax.extend.core import JaxprEqn, Primitive

from fastjax import jax_compat
from fastjax.traced import fallback
from fastjax.traced.after import after, after_p
from fastjax.traced.axes import Axes
from fastjax.traced.exchange_batching import batch_exchange
from fastjax.traced.exchange_primitive import (
    ExchangeParams,
    can_be_staged,
    fast_ragged_all_to_all_p,
    lower_staged,
)

ordered_exchange_p = Primitive("ordered_exchange")
"""A staged exchange that was planned before. It has no derivatives.

Operands: those of `fast_ragged_all_to_all_p`, and an array. Results: the rows, and that array, for
what is to begin after this exchange. On CPU devices the array exists once the operands are copied,
which takes much longer than beginning the exchange then does. On others it exists once the operands
do: they begin exchanges in the order in which XLA has put these.
"""
ordered_exchange_p.multiple_results = True


@ordered_exchange_p.def_impl
def _impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("ordered_exchange must be used within a mapped context, in shard_map.")


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
    if divided or fallback.needed(platform, params["fallback"]) or not can_be_staged(ctx, platform):

        def in_line(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
            *exchanged, array = operands
            rows = fast_ragged_all_to_all_p.bind(*exchanged, **params)
            wait = functools.partial(after, fallback=params["fallback"])
            source, table = exchanged[0], exchanged[-1]
            return rows, wait(wait(array, source), table)

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


def _without_rows(eqn: JaxprEqn) -> JaxprEqn:
    """The array, after the operands, of an exchange whose rows nobody needs: it is not made."""
    params = {"detached": False, "fallback": eqn.params["fallback"]}
    operands = [eqn.invars[-1], eqn.invars[0]]
    return eqn.replace(primitive=after_p, invars=operands, outvars=eqn.outvars[1:], params=params)


jax_compat.set_lowering(ordered_exchange_p, _lowering)
jax_compat.replace_if_unused(ordered_exchange_p, 0, _without_rows)
jax_compat.set_batcher(ordered_exchange_p, _batch)

__all__ = ["ordered_exchange_p"]
