"""Integers that are not negative: divided, and as indices that are within bounds.

`jax.numpy` rounds quotients down and counts negative indices from the end, which takes up to ten
operations each time. These take fewer, so that programs are traced and compiled sooner.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def look_up(
    array: jax.Array,
    *indices: jax.Array | np.ndarray | slice,
    unique: bool = False,
) -> jax.Array:
    """array[indices].

    Args:
      array: any.
      indices: of its first dimensions.
      unique: whether no index stands twice, so that the transpose adds nothing up.
    """
    return array.at[indices].get(
        mode="promise_in_bounds", unique_indices=unique, wrap_negative_indices=False
    )


def is_identity(order: np.ndarray) -> bool:
    """Whether a permutation leaves everything where it is."""
    return bool((order == np.arange(len(order))).all())


def permuted(array: jax.Array, order: np.ndarray) -> jax.Array:
    """array[order], of a known permutation of its first dimension."""
    return array if is_identity(order) else look_up(array, order)


def quotient(values: jax.Array, divisor: jax.Array | np.ndarray | int) -> jax.Array:
    """The quotient, rounded down; the divisor has the shape of the values, or none."""
    return jax.lax.div(values, jnp.asarray(divisor, values.dtype))


def remainder(values: jax.Array, divisor: jax.Array | np.ndarray | int) -> jax.Array:
    """What is left of the values; the divisor has their shape, or none."""
    return jax.lax.rem(values, jnp.asarray(divisor, values.dtype))


def quotient_up(values: jax.Array, divisor: int) -> jax.Array:
    """The quotient, rounded up."""
    if divisor == 1:
        return values
    part = remainder(values, divisor) > 0
    return quotient(values, divisor) + part.astype(values.dtype)
