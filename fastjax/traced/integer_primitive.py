"""Primitives of int32 arrays: a custom call on CPU devices, operations of JAX elsewhere.

The call waits for no other device, and has the same results as the operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced import automatic_axes, custom_calls
from fastjax.traced.axes import batch_at
from fastjax.traced.contract import CustomCall

Shape = tuple[int, ...]


def integer_primitive(
    name: str,
    call: CustomCall,
    in_jax: Callable[..., list[jax.Array]],
    shapes: Callable[..., tuple[Shape, list[Shape]]],
) -> Primitive:
    """A primitive whose operands vary over the same axes, and have the same dimensions of a batch.

    Args:
      name: its name.
      call: the call, of the same operands and parameters. Its result is (..., words), in which the
        primitive's results follow each other.
      in_jax: in_jax(*operands, **params), in operations of JAX.
      shapes: shapes(the shape of the first operand, **params): the dimensions of the batch, and the
        shapes of the results behind them.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def type_of(first: jax_compat.Aval, *_: object, **params: object) -> list[jax_compat.Aval]:
        batch, results = shapes(first.shape, **params)
        made = [first.update(shape=(*batch, *shape)) for shape in results]
        return [jax_compat.with_vma(result, jax_compat.vma(first)) for result in made]

    def lower(
        ctx: jax_compat.LoweringContext,
        *values: jax_compat.MlirValue,
        platform: str,
        **params: Any,
    ) -> list[jax_compat.MlirValue]:
        bind = functools.partial(primitive.bind, **params)
        inside = automatic_axes.lower(ctx, bind, values, rows=0)
        if inside is not None:
            return inside
        if platform != "cpu":
            with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
                return jax_compat.lower_function(ctx, functools.partial(in_jax, **params), *values)
        operands = custom_calls.operands_of(ctx, values)
        named = dict(zip(call.operands, operands, strict=True))
        batch, _ = shapes(operands[0].aval.shape, **params)
        return custom_calls.emit_several(ctx, call, named, params, batch)

    def batched(
        axis_data: Any, values: Sequence[jax.Array], dims: Sequence[int | None], **params: Any
    ) -> tuple[list[jax.Array], list[int]]:
        moved = (batch_at(v, dim, axis_data.size, 0) for v, dim in zip(values, dims, strict=True))
        made = primitive.bind(*moved, **params)
        return made, [0] * len(made)

    jax_compat.set_impl(primitive)
    jax_compat.set_lowering(primitive, lower)
    jax_compat.set_batcher(primitive, batched)
    jax_compat.set_no_derivative(primitive)
    return primitive
