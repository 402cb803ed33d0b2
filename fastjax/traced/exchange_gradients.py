"""Derivatives of exchanges: rows' gradients travel back along the same plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from fastjax import jax_compat
from fastjax.errors import UnsupportedError
from fastjax.jax_compat import Tangent
from fastjax.traced.exchange_primitive import (
    PLANNED,
    ExchangeParams,
    fast_ragged_all_to_all_p,
    group_of,
)
from fastjax.traced.slices import covered, landings_of

# Gradients of rows that were sent to several devices are added up, in these types.
_SUMMABLE = tuple(
    np.dtype(t)
    for t in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64, jnp.complex64, jnp.complex128)
)


def jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Tangent], **params: Unpack[ExchangeParams]
) -> tuple[jax.Array, Tangent]:
    """The forward rule: tangents travel as the rows do, along one plan with them."""
    source, base, *rest = primals
    source_dot, base_dot, *_ = tangents
    if "indices" in params["operands"]:
        raise UnsupportedError("an exchange by indices has no derivatives of its own.")
    if not params["operands"] and not params["drop"]:  # whose plan is of the rows that are left
        # For the value and its gradient together: the way back is the same plan, backwards.
        limits = {"timeout_ms": params["timeout_ms"], "fallback": params["fallback"]}
        rest.append(group_of(params).plan(rest[1], **limits).table)
        params["operands"] = PLANNED
    result = fast_ragged_all_to_all_p.bind(source, base, *rest, **params)
    result_dot = fast_ragged_all_to_all_p.bind(
        ad.instantiate_zeros(source_dot), ad.instantiate_zeros(base_dot), *rest, **params
    )
    return result, result_dot


def transpose(
    ct: Tangent,
    source: jax.Array | ad.UndefinedPrimal,
    base: jax.Array | ad.UndefinedPrimal,
    *rest: jax.Array,
    **params: Unpack[ExchangeParams],
) -> list[Tangent | None]:
    """The backward rule: the cotangent of the rows travels back and is summed where it lands."""
    nones = [None] * len(rest)
    if isinstance(ct, ad.Zero):
        zeros = (
            ad.Zero(value.aval) if isinstance(value, ad.UndefinedPrimal) else None
            for value in (source, base)
        )
        return [*zeros, *nones]
    source_ct = base_ct = None
    with jax.named_scope("fast_ragged_all_to_all_gradient"):
        if isinstance(source, ad.UndefinedPrimal):
            source_ct = _source_cotangent(ct, source.aval, rest, params)
        if isinstance(base, ad.UndefinedPrimal):
            given = source.aval if isinstance(source, ad.UndefinedPrimal) else source
            base_ct = _base_cotangent(ct, given.shape[0], rest, params)
    return [source_ct, base_ct, *nones]


def _source_cotangent(
    ct: jax.Array, aval: jax_compat.Aval, rest: Sequence[jax.Array], params: ExchangeParams
) -> jax.Array:
    dtype = ct.dtype
    # Other types (fp8) have no sum of their own; their values are exact in float32.
    wide = ct if dtype in _SUMMABLE else ct.astype(jnp.float32)
    zeros = jnp.zeros(aval.shape, wide.dtype)
    operands = jax_compat.vary_together([wide, zeros, *rest], params["axis_name"])
    back = fast_ragged_all_to_all_p.bind(*operands, **{**params, "reverse": not params["reverse"]})
    return back.astype(dtype)


def _base_cotangent(
    ct: jax.Array, source_rows: int, rest: Sequence[jax.Array], params: ExchangeParams
) -> jax.Array:
    """The result takes nothing from base where a row landed."""
    input_offsets, send_sizes, output_offsets, recv_sizes, *_ = rest
    if params["drop"]:  # zeros travel, since senders alone know what they leave out
        source, base = jnp.zeros(source_rows, jnp.float32), jnp.ones(ct.shape[0], jnp.float32)
        operands = jax_compat.vary_together([source, base, *rest], params["axis_name"])
        landed = fast_ragged_all_to_all_p.bind(*operands, **params) == 0
    elif params["reverse"]:
        landed = covered(input_offsets, send_sizes, ct.shape[0])
    else:
        group = group_of(params)
        offsets = output_offsets.astype(jnp.int32)  # of as many rows as `covered` takes
        (everyone,) = group.gather([offsets], timeout_ms=params["timeout_ms"])
        landed = covered(landings_of(everyone, group), recv_sizes, ct.shape[0])
    landed = landed.reshape((-1,) + (1,) * (ct.ndim - 1))
    return jnp.where(landed, jnp.zeros((), ct.dtype), ct)
