"""`jax.lax.ragged_all_to_all` on CPU devices, which JAX does not have: gathers everything.

Follows the operation's documentation, and shares no code with fastjax. Where receive sizes are not
what the others send, results are NaN.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
from jax.extend.core import primitives
from jax.interpreters import mlir

from fastjax import handlers
from fastjax.errors import FallbackWarning


def _emulated(
    operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name, **params
):
    groups = params["axis_index_groups"]
    # XLA's verifier refuses others.
    assert len({a.dtype for a in (input_offsets, send_sizes, output_offsets, recv_sizes)}) == 1

    def gather(value):
        return jax.lax.all_gather(value, axis_name, axis_index_groups=groups)

    me = jax.lax.axis_index(axis_name)
    if groups is not None:
        place = {d: i for group in groups for i, d in enumerate(group)}
        me = jnp.array([place[i] for i in range(len(place))])[me]
    rows = gather(operand)
    size = rows.shape[0]
    each = send_sizes.shape[0] // size
    starts, counts, landings = (
        gather(a).reshape(size, size, each)[:, me].reshape(-1)
        for a in (input_offsets, send_sizes, output_offsets)
    )
    agreed = jnp.all(counts == recv_sizes)
    at = jnp.arange(output.shape[0])[:, None]
    inside = (at >= landings) & (at < landings + counts)
    sender = jnp.arange(size * each) // each
    taken = jnp.where(inside, sender * operand.shape[0] + at - landings + starts, -1).max(1)
    arrived = rows.reshape(-1, *operand.shape[1:]).at[taken].get(mode="clip")
    result = jnp.where((taken >= 0).reshape(-1, *[1] * (output.ndim - 1)), arrived, output)
    if jnp.issubdtype(result.dtype, jnp.inexact):
        result = jnp.where(agreed, result, jnp.nan)
    return result


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Lets JAX lower its operation for CPU devices, in this process."""
    rule = mlir.lower_fun(_emulated, multiple_results=False)
    mlir.register_lowering(primitives.ragged_all_to_all_p, rule, platform="cpu")
    jax.clear_caches()
    try:
        yield
    finally:
        del mlir._platform_specific_lowerings["cpu"][primitives.ragged_all_to_all_p]
        jax.clear_caches()


@contextlib.contextmanager
def in_place_of_ours() -> Iterator[None]:
    """The same; and CPU devices get what platforms get that fastjax has no backend for."""
    unusable = mock.patch.object(handlers, "unusable", return_value="there is none, for a test")
    with installed(), unusable, warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
