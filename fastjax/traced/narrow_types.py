"""Types that are exchanged as other types."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np


def whole_bytes(dtype: np.dtype) -> np.dtype:
    """The type; or one of whole bytes that has its values, if it is narrower (int4, ...)."""
    name = dtype.name
    if "int" in name and name.removeprefix("u") in ("int1", "int2", "int4"):
        return np.dtype(np.uint8 if name.startswith("u") else np.int8)
    return np.dtype(np.float16) if name.startswith("float4") else dtype


def byte_sized(
    operand: jax.Array, output: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Callable[[jax.Array], jax.Array]]:
    """Rows in whole bytes, and what gives a result their type again."""
    dtype = operand.dtype
    wide = whole_bytes(dtype)
    if wide == dtype:
        return (operand, output), lambda result: result
    return (operand.astype(wide), output.astype(wide)), lambda result: result.astype(dtype)
