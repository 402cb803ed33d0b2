"""Exchanges of rows, in the type that they travel in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import ordering
from fastjax.moe.handle import Way
from fastjax.moe.packing import Layout
from fastjax.traced.exchange import exchange_planned
from fastjax.traced.ordered_exchange import exchange_ordered
from fastjax.traced.plan import TracedPlan

_SCALE_BYTES = 4


def check(payload_dtype: DTypeLike | None, dtype: np.dtype) -> np.dtype:
    """The type that rows travel in, `dtype` unless another is asked for."""
    if payload_dtype is None:
        return dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError(f"payload_dtype is for floating-point rows; these are {dtype}.")
    try:
        payload = np.dtype(payload_dtype)
    except TypeError:
        raise ArgumentError(f"payload_dtype must be a type, got {payload_dtype!r}.") from None
    signed = jnp.issubdtype(payload, jnp.floating) and float(jnp.finfo(payload).min) < 0
    if not signed or jnp.finfo(payload).bits < 8:
        raise ArgumentError(
            "payload_dtype must be a floating-point type with a sign, of a byte or more, got "
            f"{payload}."
        )
    if has_scales(payload, dtype) and dtype.itemsize > 4:
        raise ArgumentError(
            f"payload_dtype {payload} has scales in float32, whose range is not that of {dtype}; "
            "make rows float32, or take a wider payload_dtype."
        )
    return payload


def row_bytes(width: int, payload: np.dtype, dtype: np.dtype) -> int:
    """Bytes of a row of `width` elements in the type that it travels in."""
    return width * payload.itemsize + (_SCALE_BYTES if has_scales(payload, dtype) else 0)


def send(
    rows: jax.Array,
    length: int,
    way: Way,
    way_back: Way,
    plan: TracedPlan,
    payload: np.dtype,
    dependency: ordering.Dependency = None,
    result_dependency: ordering.Dependency = None,
) -> tuple[jax.Array, ordering.Dependency, ordering.Dependency]:
    """Exchanges rows; where none arrives the result, of `length` rows, is zero.

    Gradients travel in the same type, but for one of a byte: that is too coarse for them, so they
    travel in that of rows, as if rows had not been rounded. The backward pass keeps the opposite
    order.

    Args:
      rows: to send.
      length: of the result.
      way: offsets and sizes.
      way_back: of the way back.
      plan: of the exchange.
      payload: the type that rows travel in.
      dependency: what the exchange waits for.
      result_dependency: what the result waits for.

    Returns:
      The result, and two dependencies on the beginning of the exchange. One is for the next
      exchange, which is the one before in the backward pass. The other is for work whose backward
      pass this exchange's backward pass waits for.
    """
    scaled = has_scales(payload, rows.dtype)
    if not scaled and dependency is None:
        return exchange(rows.astype(payload), length, way, plan).astype(rows.dtype), None, None
    leaves, structure = jax.tree.flatten((rows, way, way_back, plan, dependency, result_dependency))
    leaves = jax_compat.vary_together(leaves, plan.axis_name)
    sent: Any = _send(length, payload, *jax.tree.unflatten(structure, leaves))
    return sent


def has_scales(payload: np.dtype, dtype: np.dtype) -> bool:
    """Whether rows have to be made smaller or larger to fit."""
    is_float = jnp.issubdtype(payload, jnp.floating)
    return is_float and payload.itemsize == 1 and payload != dtype


def exchange(
    rows: jax.Array, length: int, way: Way, plan: TracedPlan, dependency: ordering.Dependency = None
) -> jax.Array:
    """Exchanges rows along a plan; where none arrives the result, of `length` rows, is zero.

    If there is a dependency the exchange is staged, and the zeros are written after the dependency.
    """
    base = ordering.zeros((length, *rows.shape[1:]), rows.dtype, dependency)
    return exchange_planned(rows, base, way, plan, staged=dependency is not None)


def exchange_in_order(
    rows: jax.Array, length: int, way: Way, plan: TracedPlan, dependency: ordering.Dependency
) -> tuple[jax.Array, ordering.Dependency]:
    """Does what `exchange` does, after `dependency`.

    Defines no order of the backward pass: rules that exchange define that themselves.

    Returns:
      The result, and a dependency on the beginning of the exchange.
    """
    if dependency is None:
        return exchange(rows, length, way, plan), None
    rows = ordering.wait(rows, dependency)
    base = ordering.zeros((length, *rows.shape[1:]), rows.dtype, dependency)
    return exchange_ordered(rows, base, way, plan, dependency)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _send(
    length: int,
    payload: np.dtype,
    rows: jax.Array,
    way: Way,
    way_back: Way,
    plan: TracedPlan,
    dependency: ordering.Dependency,
    result_dependency: ordering.Dependency,
) -> Any:
    del way_back
    if has_scales(payload, rows.dtype):  # every row has one of its own, which travels with it
        words, how = packed(rows, payload)
        words, dependency = exchange_in_order(words, length, way, plan, dependency)
        sent, _ = unpacked(words, how, rows.dtype)
    else:
        words = rows.astype(payload)
        words, dependency = exchange_in_order(words, length, way, plan, dependency)
        sent = words.astype(rows.dtype)
    # Backward, the result is what experts go on with.
    return ordering.for_experts(sent, result_dependency), dependency, dependency


def _send_forward(length: int, payload: np.dtype, *values: Any) -> Any:
    rows, way, way_back, plan, *_ = values
    return _send(length, payload, *values), (way, way_back, plan, rows[:, :0])


def _send_backward(length: int, payload: np.dtype, residuals: Any, cts: Any) -> Any:
    del length
    way, way_back, plan, sent = residuals
    ct, dependency_ct, result_ct = cts
    travels_in = sent.dtype if has_scales(payload, sent.dtype) else payload
    back, dependency, result_dependency = send(
        ct, sent.shape[0], way_back, way, plan.transpose(), travels_in, dependency_ct, result_ct
    )
    return back, None, None, None, dependency, result_dependency


_send.defvjp(_send_forward, _send_backward)


def layout(
    width: int, payload: np.dtype, dtype: np.dtype, beside: tuple[tuple[int, np.dtype], ...] = ()
) -> Layout:
    """How rows of `dtype` are packed that travel in `payload`, with what is beside them."""
    scale = ((1, np.dtype(np.float32)),) if has_scales(payload, dtype) else ()
    return Layout(width, payload, (*scale, *beside))


def packed(
    rows: jax.Array, payload: np.dtype, beside: Sequence[jax.Array] = ()
) -> tuple[jax.Array, Layout]:
    """Rows as they travel, in `payload`; in one of a byte, over a scale that makes the largest fit.

    Returns:
      Unsigned integers, shape (count, words), and how they are to be unpacked.
    """
    columns = tuple((array.shape[1], array.dtype) for array in beside)
    how = layout(rows.shape[1], payload, rows.dtype, columns)
    if not has_scales(payload, rows.dtype):
        return how.pack(rows.astype(payload), beside), how
    wide = rows.astype(jnp.float32)
    largest = jnp.abs(wide).max(axis=1, keepdims=True, initial=0)
    scale = largest / float(jnp.finfo(payload).max)
    # Processors may take anything smaller for zero.
    scale = jnp.maximum(scale, float(jnp.finfo(jnp.float32).tiny))
    scale = jnp.where(jnp.isfinite(largest), scale, 1)
    return how.pack((wide / scale).astype(payload), [scale, *beside]), how


def unpacked(words: jax.Array, how: Layout, dtype: np.dtype) -> tuple[jax.Array, list[jax.Array]]:
    """Rows of `dtype` that were packed, and what was beside them; zero where there was none."""
    rows, beside = how.unpack(words)
    if not has_scales(how.dtype, dtype):
        return rows.astype(dtype), beside
    scale, *beside = beside
    return (rows.astype(jnp.float32) * scale).astype(dtype), beside
