"""Exchanges by indices on platforms without a backend: the rows are copied first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from fastjax import jax_compat
from fastjax.traced.axes import Axes
from fastjax.traced.contract import Metadata
from fastjax.traced.nonnegative import look_up
from fastjax.traced.slices import covered


def exchange(
    plain: Callable[..., jax.Array], axes: Axes, reverse: bool, given: Mapping[str, jax.Array]
) -> jax.Array:
    """What the primitive `fast_ragged_all_to_all_p` does with indices.

    Args:
      plain: the exchange without indices, of its first operands.
      axes: mesh axes.
      reverse: whether rows travel from output space to operand space, and are summed there.
      given: the operands by name.
    """
    source, base, indices = given["source"], given["base"], given["indices"]
    factors, entries = given["factors"], given["entries"]
    way = Metadata(*(given[name] for name in Metadata._fields))
    if not reverse:
        copies = source.at[indices].get(mode="fill", fill_value=0)
        return plain(copies, base, *way)
    each = jnp.zeros_like(base, shape=(indices.shape[0], *base.shape[1:]))
    rows = source.astype(base.dtype)
    if factors.shape[0] > 0:
        rows = rows * factors.reshape(-1, *[1] * (rows.ndim - 1)).astype(base.dtype)
    rows, each = jax_compat.vary_together([rows, each], axes)
    each = plain(rows, each, *way)
    returned = covered(way.input_offsets, way.send_sizes, indices.shape[0])
    if entries.shape[0] > 0:
        sums = look_up(each, entries, unique=True).sum(1)
        found = look_up(returned, entries, unique=True).any(1)
        return jnp.where(found.reshape(-1, *[1] * (base.ndim - 1)), sums, base)
    at = jnp.where(returned, indices, base.shape[0])
    sums = jnp.zeros_like(base).at[at].add(each, mode="drop")
    found = jnp.zeros(base.shape[0], bool).at[at].set(True, mode="drop")
    return jnp.where(found.reshape(-1, *[1] * (base.ndim - 1)), sums, base)


__all__ = ["exchange"]
