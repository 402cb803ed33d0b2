"""Deals rows of popular experts to devices of the same server that have less to compute.

CPU devices have a call for it (`ffi/planner/levelling.cc`). Other platforms get
`levelling_in_jax.py`, which has the same results.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.traced import automatic_axes, custom_calls
from fastjax.traced.contract import LEVEL
from fastjax.traced.levelling_in_jax import level_in_jax

_MOST = 2**31 - 1


class Levelled(NamedTuple):
    """Which device computes which rows; all int32.

    The groups of a device are those of the experts that it has, its home experts, then its slots.

    Attributes:
      slots: the expert of each slot, shape (ranks, copies); unused slots are last, and -1.
      sizes: rows of each sender for each group of each device, shape (ranks, ranks, groups).
      starts: where they begin among the sender's rows, sorted by expert, of the same shape; 0 in
        unused slots. Rows of an expert follow each other in the order of devices.
    """

    slots: jax.Array
    sizes: jax.Array
    starts: jax.Array


class LevelParams(TypedDict):
    """The parameters of `level_p`; see `level`."""

    servers: int
    devices: int
    copies: int
    cost_rows: int


level_p = Primitive("level_experts")
"""Takes counts, shape (..., ranks, experts); returns the arrays of `Levelled`, each (..., *)."""
level_p.multiple_results = True


def level(
    counts: jax.Array, *, servers: int, devices: int, copies: int, cost_rows: int = 0
) -> Levelled:
    """Deals the rows of each server's experts to its devices, so that the slowest has few.

    Args:
      counts: int32, shape (ranks, experts): rows of each sender for each expert. Ranks are
        server-major, and each has the next experts / ranks experts. CPU devices refuse negative
        counts, and more than 2**31 - 1 rows in all; elsewhere both must not be.
      servers: of the group.
      devices: of each server.
      copies: the most experts of other devices that a device computes for, at least 1.
      cost_rows: the rows that a copy takes as long as. A server uses as many slots as make the rows
        of its slowest device and its copies take least together.

    Raises:
      ArgumentError: an argument is impossible.
    """
    named = {"servers": servers, "devices": devices, "copies": copies}
    for name, value in named.items():
        if value < 1:
            raise ArgumentError(f"{name} must be 1 or more, got {value!r}.")
    if cost_rows < 0:
        raise ArgumentError(f"cost_rows must be 0 or more, got {cost_rows!r}.")
    if copies * cost_rows > _MOST:
        raise ArgumentError(
            f"copies * cost_rows must be less than 2**31, got copies={copies} and "
            f"cost_rows={cost_rows}."
        )
    ranks = servers * devices
    if counts.ndim != 2 or counts.shape[0] != ranks or counts.dtype != np.int32:
        raise ArgumentError(
            f"counts must be int32 of shape ({ranks}, experts) for servers={servers} and "
            f"devices={devices}, got {counts.dtype}{list(counts.shape)}."
        )
    experts = counts.shape[1]
    if experts == 0 or experts % ranks:
        raise ArgumentError(f"counts must have a multiple of {ranks} experts, got {experts}.")
    return Levelled(*level_p.bind(counts, **named, cost_rows=cost_rows))


def _shapes(ranks: int, experts: int, copies: int) -> list[tuple[int, ...]]:
    sizes = (ranks, ranks, experts // ranks + copies)
    return [(ranks, copies), sizes, sizes]


@level_p.def_abstract_eval
def _abstract_eval(counts: jax_compat.Aval, *, copies: int, **_: object) -> list[jax_compat.Aval]:
    *batch, ranks, experts = counts.shape
    axes = jax_compat.vma(counts)
    results = [counts.update(shape=(*batch, *s)) for s in _shapes(ranks, experts, copies)]
    return [jax_compat.with_vma(result, axes) for result in results]


def _lowering(
    ctx: jax_compat.LoweringContext,
    counts: jax_compat.MlirValue,
    *,
    platform: str,
    **params: Unpack[LevelParams],
) -> list[jax_compat.MlirValue]:
    inside = automatic_axes.lower(ctx, functools.partial(level_p.bind, **params), [counts], rows=0)
    if inside is not None:
        return inside
    if platform != "cpu":
        return jax_compat.lower_function(ctx, functools.partial(level_in_jax, **params), counts)
    return _emit(ctx, counts, params)


def _emit(
    ctx: jax_compat.LoweringContext, counts: jax_compat.MlirValue, params: LevelParams
) -> list[jax_compat.MlirValue]:
    """Emits the call. It has one result, in which the equation's follow each other."""
    (operand,) = custom_calls.operands_of(ctx, [counts])
    *batch, ranks, experts = operand.aval.shape
    shapes = _shapes(ranks, experts, params["copies"])
    lengths = [math.prod(shape) for shape in shapes]
    joined = ctx.avals_out[0].update(shape=(*batch, sum(lengths)))
    attributes: dict[str, object] = {**params}
    made = custom_calls.emit(
        ctx.replace(avals_out=[joined]), LEVEL, {"counts": operand}, attributes
    )

    def split(made: jax.Array) -> list[jax.Array]:
        parts = jnp.split(made, np.cumsum(lengths[:-1]), axis=-1)
        return [p.reshape(*batch, *shape) for p, shape in zip(parts, shapes, strict=True)]

    return jax_compat.lower_function(ctx.replace(avals_in=[joined]), split, made)


def _jvp(primals: Sequence[jax.Array], tangents: object, **params: Any) -> Any:
    """Integers have no derivative; for those of a custom_vjp, JAX hands on one in name only."""
    del tangents
    made = level_p.bind(*primals, **params)
    return made, [jax_compat.zero_tangent(result) for result in made]


def _batch(
    _: Any, values: Sequence[jax.Array], dims: Sequence[int], **params: Any
) -> tuple[list[jax.Array], list[int]]:
    counts = jnp.moveaxis(values[0], dims[0], 0)
    return level_p.bind(counts, **params), [0] * 3


jax_compat.set_impl(level_p)
jax_compat.set_lowering(level_p, _lowering)
jax_compat.set_batcher(level_p, _batch)
jax_compat.set_jvp(level_p, _jvp)

__all__ = ["Levelled", "level", "level_p"]
