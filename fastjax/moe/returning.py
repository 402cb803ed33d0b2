"""Returns what servers made of tokens that crossed once: a row for each of a token's servers.

The transpose of that sends the cotangent of each token to the token's servers, once to each.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import ordering, payload
from fastjax.moe.crossing import added_up, exchange_back, exchange_there
from fastjax.moe.handle import Crossing
from fastjax.traced.nonnegative import look_up


@jax.named_scope("moe_return")
def return_sums(
    sums: jax.Array,
    crossing: Crossing,
    dtype: np.dtype,
    travels_in: np.dtype,
    dependency: ordering.Dependency = None,
) -> tuple[jax.Array, ordering.Dependency, ordering.Dependency]:
    """Adds up for each token what its servers made of it.

    Args:
      sums: of each row that `cross` landed, wide, shape (tokens + landing, width).
      crossing: the way that the rows came.
      dtype: what gradients travel in where `travels_in` is of one byte.
      travels_in: the type that sums travel in.
      dependency: what the exchange waits for.

    Returns:
      Shape (tokens, width), of the type of `sums`; added up in the order of servers. Two
      dependencies on the beginning of the exchange follow: one is for the next exchange; the other
      is for the sums of the next chunk, after whose backward pass the cotangents of this one land.
    """
    leaves, structure = jax.tree.flatten((sums, crossing, dependency))
    leaves = jax_compat.vary_together(leaves, crossing.plan.axis_name)
    returned: Any = _return_sums(dtype, travels_in, *jax.tree.unflatten(structure, leaves))
    return returned


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _return_sums(
    dtype: np.dtype,
    travels_in: np.dtype,
    sums: jax.Array,
    crossing: Crossing,
    dependency: ordering.Dependency,
) -> Any:
    del dtype
    tokens = crossing.goes.shape[0]
    words, how = payload.packed(sums[tokens:], travels_in)
    returned, dependency = exchange_back(words, crossing, dependency)
    back, _ = payload.unpacked(returned, how, sums.dtype)
    # The same dependency two times, since each has a cotangent of its own.
    return added_up(sums[:tokens], back, crossing), dependency, dependency


def _return_sums_forward(dtype: np.dtype, travels_in: np.dtype, *values: Any) -> Any:
    return _return_sums(dtype, travels_in, *values), values[1]


def _return_sums_backward(
    dtype: np.dtype, travels_in: np.dtype, crossing: Crossing, cts: Any
) -> Any:
    ct, dependency_ct, landing_ct = cts
    there_in = dtype if payload.has_scales(travels_in, ct.dtype) else travels_in
    fanned: Any = _fan_out(there_in, ct, crossing, dependency_ct, landing_ct)
    rows, dependency = fanned
    return rows, None, dependency


_return_sums.defvjp(_return_sums_forward, _return_sums_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fan_out(
    travels_in: np.dtype,
    ct: jax.Array,
    crossing: Crossing,
    dependency: ordering.Dependency,
    landing_dependency: ordering.Dependency,
) -> Any:
    """Sends the cotangent of each token to the token's servers, once to each.

    What arrives is unpacked after `landing_dependency`; see `crossing.land`.
    """
    listed = look_up(ct, crossing.token)
    words, how = payload.packed(listed, travels_in)
    words, dependency = exchange_there(words, crossing, dependency)
    words = ordering.wait(words, landing_dependency)
    rows, _ = payload.unpacked(words, how, ct.dtype)
    return jnp.concatenate([ct, rows]), dependency


def _fan_out_forward(travels_in: np.dtype, *values: Any) -> Any:
    return _fan_out(travels_in, *values), values[1]


def _fan_out_backward(travels_in: np.dtype, crossing: Crossing, cts: Any) -> Any:
    returned: Any = _return_sums(travels_in, travels_in, cts[0], crossing, cts[1])
    rows, dependency, landing_dependency = returned
    return rows, None, dependency, landing_dependency


_fan_out.defvjp(_fan_out_forward, _fan_out_backward)


__all__ = ["return_sums"]
