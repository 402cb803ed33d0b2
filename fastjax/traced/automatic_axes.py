"""Exchanges inside a shard_map that leaves mesh axes to XLA.

An exchange must know which devices take part, so it enters a shard_map over those axes while it is
lowered. Each line of devices along the exchanged axes exchanges a part of every row: what XLA has
divided by its rows' width stays where it is. Sizes and offsets are the same on all lines.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from fastjax import jax_compat
from fastjax.jax_compat import LoweringContext, MlirValue

P = jax.sharding.PartitionSpec


def spec_of(
    shape: Sequence[int],
    automatic: Mapping[Hashable, int],
    explicit: Mapping[Hashable, int | None] | None = None,
) -> jax.sharding.PartitionSpec:
    """How rows lie over axes: divided by their width, from the last dimension, where that divides.

    Over an axis whose size divides no dimension behind the rows, rows are the same everywhere.

    Args:
      shape: of the array of rows.
      automatic: sizes of the axes.
      explicit: of those whose part in an array its type says, the dimension that they divide.
        Rows that are divided themselves are brought together.
    """
    left, taken = list(shape), [[] for _ in shape]
    said = explicit or {}
    for name, size in automatic.items():
        fits = (d for d in range(len(shape) - 1, 0, -1) if left[d] and left[d] % size == 0)
        dim = said[name] if name in said else next(fits, None)
        if dim:  # 0: rows themselves are divided, of which an exchange needs all
            left[dim] //= size
            taken[dim].append(name)
    return P(*(tuple(names) or None for names in taken))


def lower(
    ctx: LoweringContext,
    bind: Callable[..., jax.Array],
    values: Sequence[MlirValue],
    rows: int,
) -> list[MlirValue] | None:
    """Lowers an equation in all axes of its mesh; None where no axis is left to XLA.

    Args:
      ctx: of the equation.
      bind: binds its primitive.
      values: its operands.
      rows: how many of its operands, from the first, are rows of one width, as the result is; the
        others, and a result where this is 0, are the same on all lines.
    """
    automatic = jax_compat.automatic_axes(ctx)
    if not automatic:
        return None
    operands: Sequence[Any] = ctx.avals_in
    explicit = jax_compat.explicit_axes(ctx, operands[0])
    spread = spec_of(operands[0].shape, automatic, explicit) if rows else P()
    specs = [spread] * rows + [P()] * (len(values) - rows)
    return jax_compat.lower_in_all_axes(ctx, bind, specs, spread, *values)
