"""Primitives of int32 arrays: a custom call on CPU devices, operations of JAX elsewhere.

The call waits for no other device, and has the same results as the operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced import automatic_axes, custom_calls
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
    given = (primitive, call, in_jax, shapes)
    primitive.def_abstract_eval(functools.partial(_abstract_eval, shapes))
    jax_compat.set_impl(primitive)
    jax_compat.set_lowering(primitive, functools.partial(_lowering, given))
    jax_compat.set_batcher(primitive, functools.partial(_batch, primitive))
    jax_compat.set_jvp(primitive, functools.partial(_jvp, primitive))
    return primitive


def _abstract_eval(
    shapes: Callable[..., Any], *operands: jax_compat.Aval, **params: object
) -> list[jax_compat.Aval]:
    first = operands[0]
    batch, results = shapes(first.shape, **params)
    axes = jax_compat.vma(first)
    made = [first.update(shape=(*batch, *shape)) for shape in results]
    return [jax_compat.with_vma(result, axes) for result in made]


def _lowering(
    given: tuple[Primitive, CustomCall, Callable[..., Any], Callable[..., Any]],
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    **params: Any,
) -> list[jax_compat.MlirValue]:
    primitive, call, in_jax, shapes = given
    bind = functools.partial(primitive.bind, **params)
    inside = automatic_axes.lower(ctx, bind, values, rows=0)
    if inside is not None:
        return inside
    if platform != "cpu":
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return jax_compat.lower_function(ctx, functools.partial(in_jax, **params), *values)
    return _emit(ctx, call, values, shapes, params)


def _emit(
    ctx: jax_compat.LoweringContext,
    call: CustomCall,
    values: Sequence[jax_compat.MlirValue],
    shapes: Callable[..., tuple[Shape, list[Shape]]],
    params: Mapping[str, Any],
) -> list[jax_compat.MlirValue]:
    operands = custom_calls.operands_of(ctx, values)
    batch, results = shapes(operands[0].aval.shape, **params)
    lengths = [math.prod(shape) for shape in results]
    joined = ctx.avals_out[0].update(shape=(*batch, sum(lengths)))
    named = dict(zip(call.operands, operands, strict=True))
    made = custom_calls.emit(ctx.replace(avals_out=[joined]), call, named, params)

    def split(made: jax.Array) -> list[jax.Array]:
        parts = jnp.split(made, np.cumsum(lengths[:-1]), axis=-1)
        return [p.reshape(*batch, *shape) for p, shape in zip(parts, results, strict=True)]

    return jax_compat.lower_function(ctx.replace(avals_in=[joined]), split, made)


def _jvp(
    primitive: Primitive, primals: Sequence[jax.Array], tangents: object, **params: Any
) -> Any:
    """Integers have no derivative; for those of a custom_vjp, JAX hands on one in name only."""
    del tangents
    made = primitive.bind(*primals, **params)
    return made, [jax_compat.zero_tangent(result) for result in made]


def _batch(
    primitive: Primitive,
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[list[jax.Array], list[int]]:
    moved = [
        jnp.broadcast_to(value, (axis_data.size, *value.shape))
        if dim is None
        else jnp.moveaxis(value, dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]
    made = primitive.bind(*moved, **params)
    return made, [0] * len(made)
