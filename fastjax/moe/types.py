"""Types of results and sums, and which arrays have derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def promoted(one: DTypeLike, other: DTypeLike) -> np.dtype:
    """The type that JAX has for both together, also where `jax_numpy_dtype_promotion` is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)


def summed_in(*dtypes: np.dtype) -> np.dtype:
    """A type that holds all values of these, of 32 bits or more."""
    wide = [_at_least_32_bits(dtype) for dtype in dtypes]
    return functools.reduce(promoted, wide)


def real(dtype: np.dtype) -> np.dtype:
    """The type of the real parts of this one's values."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return dtype
    return np.dtype(np.float32 if dtype == np.complex64 else np.float64)


def narrowed(ct: jax.Array, dtype: np.dtype) -> jax.Array:
    """The cotangent of a value of this type, from that of the value in a wider type."""
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    if jnp.issubdtype(ct.dtype, jnp.complexfloating) and not is_complex:
        ct = ct.real
    return ct.astype(dtype)


def _at_least_32_bits(dtype: np.dtype) -> np.dtype:
    if dtype.itemsize >= 4:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)


def split(arrays: Any) -> tuple[list[jax.Array], list[jax.Array], Callable[..., Any]]:
    """The arrays of a pytree that have derivatives, the others, and how such make a pytree again.

    The latter is a function of both, which keeps no arrays.
    """
    leaves, structure = jax.tree.flatten(arrays)
    inexact = [bool(jnp.issubdtype(leaf.dtype, jnp.inexact)) for leaf in leaves]

    def joined(floats: Iterable[Any], others: Iterable[Any]) -> Any:
        floats, others = iter(floats), iter(others)
        return jax.tree.unflatten(structure, [next(floats if i else others) for i in inexact])

    both = [*zip(leaves, inexact, strict=True)]
    return [leaf for leaf, i in both if i], [leaf for leaf, i in both if not i], joined
