"""Types that are exchanged as other types."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def byte_sized(
    operand: jax.Array, output: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], Callable[[jax.Array], jax.Array]]:
    """Types narrower than a byte (int4, ...) travel in one byte an element, exactly."""
    dtype = operand.dtype
    name = dtype.name
    if "int" in name and name.removeprefix("u") in ("int1", "int2", "int4"):
        wide = jnp.uint8 if name.startswith("u") else jnp.int8
    elif name.startswith("float4"):
        wide = jnp.float16
    else:
        return (operand, output), lambda result: result
    return (operand.astype(wide), output.astype(wide)), lambda result: result.astype(dtype)
