"""Types of results."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def promoted(one: Any, other: Any) -> Any:
    """The type that JAX has for both together, also where `jax_numpy_dtype_promotion` is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)
