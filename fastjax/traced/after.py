"""`after` makes a value depend on another one, which XLA cannot remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from fastjax import config, jax_compat
from fastjax.traced import custom_calls
from fastjax.traced import fallback as fallbacks
from fastjax.traced.contract import AFTER

after_p = Primitive("after")
"""Operands: value, and any number of earlier arrays. Parameters: detached; fallback, the option."""


def after(
    value: jax.Array, *earlier: jax.Array, detached: bool = False, fallback: str | None = None
) -> jax.Array:
    """The value, for what must not begin before `earlier` have been computed.

    XLA drops `jax.lax.optimization_barrier` before it decides on an order, for CPUs and for GPUs;
    it does not drop this. Platforms without a backend of ours get that barrier, and so does a
    shard_map that leaves axes to XLA: no order holds there. Derivatives are those of the value, and
    wait for nothing.

    Args:
      value: any array.
      *earlier: any arrays.
      detached: on CPU devices, whether what needs the value runs on another thread than what has
        made it, unless the host is very busy. XLA lets a thread begin one operation after another,
        so that what runs long keeps all others waiting that the thread could begin.
      fallback: the option; by default as it is now.
    """
    operands = jax_compat.vary_together([value, *earlier], ())
    fallback = fallback or config.current().fallback
    return after_p.bind(*operands, detached=detached, fallback=fallback)


@after_p.def_abstract_eval
def _abstract_eval(
    value: jax_compat.Aval, *earlier: jax_compat.Aval, **_: object
) -> jax_compat.Aval:
    axes = jax_compat.vma(value).union(*map(jax_compat.vma, earlier))
    return jax_compat.with_vma(value.update(weak_type=False), axes)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    detached: bool,
    fallback: str,
) -> list[jax_compat.MlirValue]:
    # XLA would bring together what it has divided over its axes for a call that it does not know.
    divided = jax_compat.automatic_axes(ctx)
    if fallbacks.may_use_handlers(platform, fallback) and not divided:
        operands = custom_calls.operands_of(ctx, values)
        attributes = {"detached": detached and platform == "cpu"}
        return [custom_calls.emit_unnamed(ctx, AFTER, operands, ctx.avals_out[0], attributes)]
    return jax_compat.lower_function(ctx, _barrier, *values)


def _barrier(value: jax.Array, *earlier: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier((value, *earlier))[0]


def _batch(
    axis_data: Any, values: Sequence[jax.Array], dims: Sequence[int | None], **params: Any
) -> tuple[jax.Array, int | None]:
    value, *earlier = values
    if dims[0] is None and any(dim is not None for dim in dims):
        value = jnp.broadcast_to(value, (axis_data.size, *value.shape))
        return after_p.bind(value, *earlier, **params), 0
    return after_p.bind(value, *earlier, **params), dims[0]


def _jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any
) -> tuple[jax.Array, Any]:
    return after_p.bind(*primals, **params), tangents[0]


jax_compat.set_impl(after_p)
jax_compat.set_lowering(after_p, _lowering)
jax_compat.set_batcher(after_p, _batch)
jax_compat.set_jvp(after_p, _jvp)
