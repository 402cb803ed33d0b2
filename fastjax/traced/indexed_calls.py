"""The custom calls of an indexed exchange: those of CPU devices, and that of GPUs.

On GPUs indices stay on the device. There, sums are made row by row of the result, so in reverse
the call takes the entries of each row in place of the row of each entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced import custom_calls
from fastjax.traced.axes import Axes, Groups
from fastjax.traced.contract import (
    GPU_INDEXED_EXCHANGE,
    INDEXED_EXCHANGE,
    INDEXED_STAGE,
    INDEXED_STAGED_EXCHANGE,
)
from fastjax.traced.plan_spec import PlanSpec


class Params(TypedDict):
    """The parameters of an indexed exchange; `ExchangeParams` says what they are."""

    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    transposed_plan: bool
    reverse: bool
    timeout_ms: int
    fallback: str
    staged: bool
    gpu_stream: bool


def is_staged(ctx: jax_compat.LoweringContext, params: Params) -> bool:
    """Whether CPU devices copy the operands first."""
    return params["staged"] and custom_calls.can_stage(ctx)


def lower_on_cpus(
    ctx: jax_compat.LoweringContext, operands: Sequence[jax_compat.MlirValue], params: Params
) -> list[jax_compat.MlirValue]:
    """Emits the call of CPU devices.

    Args:
      ctx: of the equation.
      operands: its first: source, base, the metadata, table, indices, factors.
      params: its parameters.
    """
    attributes = _attributes(ctx, params, "cpu")
    if is_staged(ctx, params):
        calls = INDEXED_STAGE, INDEXED_STAGED_EXCHANGE
        return custom_calls.emit_staged(ctx, *calls, operands, attributes)
    return custom_calls.emit(ctx, INDEXED_EXCHANGE, operands, attributes)


def on_gpus(params: Params, *operands: jax.Array) -> jax.Array:
    """The exchange by the call of GPUs.

    Args:
      params: of `indexed_exchange_p`.
      *operands: of it.
    """
    source, base, *way, table, indices, factors, entries = operands
    starts = jnp.zeros(0, jnp.int32)
    if params["reverse"]:
        indices, starts = _by_row(indices, entries, base.shape[0])
    values = [source, base, *way, table, indices, factors, starts]
    values = jax_compat.vary_together(values, params["axis_name"])
    return _gpu_indexed_exchange_p.bind(*values, **params)


def _by_row(indices: jax.Array, entries: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The entries of each row, one row behind the other, and where those of each row begin."""
    if entries.shape[0] > 0:
        return entries.reshape(-1), entries.shape[1] * jnp.arange(rows + 1, dtype=jnp.int32)
    # What is the index of no row comes last, and belongs to none.
    row = jnp.where((indices >= 0) & (indices < rows), indices, rows)
    counts = jnp.zeros(rows + 2, jnp.int32).at[row + 1].add(1)
    return jnp.argsort(row, stable=True).astype(jnp.int32), jnp.cumsum(counts)[: rows + 1]


_gpu_indexed_exchange_p = Primitive("gpu_indexed_exchange")
"""Operands: source, base, the metadata, table, indices or entries, factors, starts."""


@_gpu_indexed_exchange_p.def_impl
def unmapped(*_: object, **__: object) -> NoReturn:
    """Refuses an exchange that no mesh is mapped over."""
    raise RuntimeError("an indexed exchange must be used within a mapped context, in shard_map.")


@_gpu_indexed_exchange_p.def_abstract_eval
def _abstract_eval(*operands: jax_compat.Aval, axis_name: Axes, **_: object) -> jax_compat.Aval:
    return exchanged_type(*operands, axis_name=axis_name)


def exchanged_type(*operands: jax_compat.Aval, axis_name: Axes) -> jax_compat.Aval:
    """The type of the result: that of the second operand, `base`."""
    axes = frozenset(axis_name).union(*(jax_compat.vma(a) for a in operands))
    return jax_compat.with_vma(operands[1].update(weak_type=False), axes)


def _gpu_lowering(
    ctx: jax_compat.LoweringContext,
    *operands: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[Params],
) -> list[jax_compat.MlirValue]:
    attributes = _attributes(ctx, params, platform)
    on_stream = params["gpu_stream"] and platform != "cpu"
    return custom_calls.emit(ctx, GPU_INDEXED_EXCHANGE, operands, attributes, gpu_stream=on_stream)


def _attributes(
    ctx: jax_compat.LoweringContext, params: Params, platform: str
) -> dict[str, object]:
    topology = custom_calls.planning(params["spec"])["topology"]
    site = custom_calls.exchange_site(ctx, params, platform)
    return site | {"check_overlaps": False, "topology": topology}


jax_compat.set_lowering(_gpu_indexed_exchange_p, _gpu_lowering)

__all__ = ["Params", "exchanged_type", "is_staged", "lower_on_cpus", "on_gpus", "unmapped"]
