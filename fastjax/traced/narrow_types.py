"""Types that are exchanged as other types."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def whole_bytes(dtype: np.dtype) -> np.dtype:
    """The type; or one of whole bytes that has its values, if it is narrower (int4, ...)."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.uint8 if jnp.issubdtype(dtype, jnp.unsignedinteger) else np.int8)
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8
    return np.dtype(np.float16) if narrow else dtype


def byte_sized(
    operand: jax.Array, output: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Callable[[jax.Array], jax.Array]]:
    """Rows in whole bytes, and what gives a result their type again."""
    dtype = operand.dtype
    wide = whole_bytes(dtype)
    if wide == dtype:
        return (operand, output), lambda result: result
    return (operand.astype(wide), output.astype(wide)), lambda result: result.astype(dtype)
