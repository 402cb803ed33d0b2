"""What the programs share that run a layer which a framework has.

The layer runs where it exchanges rows, under the swap, and where it has no exchange. Values and
gradients are to be the same.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastjax

Layer = Callable[[Any, jax.Array], jax.Array]  # of parameters and tokens

# How much a router prefers the first two experts. With 20 all tokens go there, and devices that
# have only other experts receive nothing.
PREFERENCES = [0.0, 20.0]


def tokens(*shape: int) -> jax.Array:
    """Random ones, which all begin with 1: by that a router can prefer an expert."""
    return jax.random.normal(jax.random.key(1), shape).at[..., 0].set(1.0)


def prefer_first(router: jax.Array, preference: float) -> jax.Array:
    return router.at[0, :2].add(preference)


def results(layer: Layer, params: Any, x: jax.Array) -> Any:
    """The layer's value, and the gradients of a sum of it with random factors."""
    value, pullback = jax.vjp(layer, params, x)
    return value, pullback(jax.random.normal(jax.random.key(2), value.shape))


def without_exchange(layer: Layer, params: Any, x: jax.Array) -> Any:
    program = jax.jit(lambda params, x: results(layer, params, x))
    assert "ragged_all_to_all" not in str(jax.make_jaxpr(program)(params, x))
    return program(params, x)


def under_the_swap(layer: Layer, params: Any, x: jax.Array, *, exchanges: int) -> Any:
    program = jax.jit(lambda params, x: results(layer, params, x))
    with fastjax.swap_ragged_all_to_all():
        operations = str(jax.make_jaxpr(program)(params, x))
        assert operations.count(" fast_ragged_all_to_all[") == exchanges
        assert operations.count(" ragged_all_to_all[") == 0
        return program(params, x)


def assert_same(got: Any, wanted: Any) -> None:
    """But for rounding, which is measured by the largest number of each array."""
    leaves = jax.tree_util.tree_leaves_with_path(wanted)
    for (path, expected), found in zip(leaves, jax.tree.leaves(got), strict=True):
        largest = float(jnp.abs(expected).max())
        assert largest > 0, path
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=1e-5 * largest, err_msg=jax.tree_util.keystr(path)
        )
