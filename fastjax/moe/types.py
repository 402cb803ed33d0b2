"""Types of results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike


def promoted(one: DTypeLike, other: DTypeLike) -> np.dtype:
    """The type that JAX has for both together, also where `jax_numpy_dtype_promotion` is strict."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(one, other)
