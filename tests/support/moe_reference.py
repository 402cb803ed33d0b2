"""A Mixture-of-Experts layer on one device, in float32, without exchanges; and what it drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def route(x: Any, router: Any, top_k: int) -> tuple[Any, Any]:
    """Weights and experts of each token, shape (tokens, k) each."""
    return jax.lax.top_k(jax.nn.softmax(x @ router), top_k)


def dense(
    x: Any, router: Any, experts: Any, top_k: int, kept: Any = None, rounding: Any = (None, None)
) -> Any:
    """Every expert on every token, of which those chosen count.

    Args:
      x, router, experts: see `problem`, with devices and tokens in one dimension.
      top_k: experts of a token.
      kept: those that count.
      rounding: types that tokens and results travel in.
    """
    weights, ids = route(x, router, top_k)
    if kept is not None:
        weights = weights * kept
    every = jnp.tanh(jnp.einsum("td,edf->tef", rounded(x, rounding[0]), experts[0]))
    every = rounded(jnp.einsum("tef,efd->ted", every, experts[1]), rounding[1])
    return (jnp.take_along_axis(every, ids[..., None], 1) * weights[..., None]).sum(1)


def rounded(rows: Any, dtype: Any) -> Any:
    """Rows as they come out of a narrow type; gradients pass. One-byte types: scaled by row."""
    if dtype is None:
        return rows
    scale = 1.0
    if np.dtype(dtype).itemsize == 1:
        scale = jnp.abs(rows).max(-1, keepdims=True) / float(jnp.finfo(dtype).max)
    narrow = (rows / scale).astype(dtype).astype(rows.dtype) * scale
    return rows + jax.lax.stop_gradient(narrow - rows)


def layer(x: Any, router: Any, experts: Any, top_k: int, dispatch: Any, combine: Any, dot: Any):
    """The same, on one of several devices."""
    weights, ids = route(x, router, top_k)
    rows, sizes, handle = dispatch(x, ids)
    rows = dot(jnp.tanh(dot(rows, experts[0], sizes)), experts[1], sizes)
    return combine(rows, handle, weights), handle


def by_collectives(x: Any, ids: Any, weights: Any, kept: Any, *, num_experts: int, axis: str):
    """Dispatch to the experts of `by_number`, and combine: by all_gather and masks."""
    devices = jax.lax.axis_size(axis)
    here = num_experts // devices
    mine = jax.lax.axis_index(axis) * here + jnp.arange(here)
    every = jax.lax.all_gather((x, ids, weights, kept), axis, tiled=True)
    chosen = (every[1][:, :, None] == mine) & every[3][:, :, None]
    share = (every[2][:, :, None] * chosen).sum(1) * (1 + mine)
    parts = jnp.einsum("te,td->td", share, every[0])
    return jax.lax.psum_scatter(parts, axis, tiled=True)


def by_number(rows: Any, sizes: Any, position: Any) -> Any:
    """Experts that differ: each multiplies its rows by its number and 1.

    Args:
      rows, sizes: from `dispatch`, on a device.
      position: of the device among those that share the experts.
    """
    here = len(sizes)
    local = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(len(rows)), side="right")
    number = position * here + jnp.minimum(local, here - 1)  # behind all groups, rows are zero
    return rows * (1 + number)[:, None].astype(rows.dtype)


def problem(rng: np.random.Generator, devices: int, tokens: int, num_experts: int) -> Any:
    """Tokens, router and experts, with some experts more popular than others."""
    width, inner = 6, 10
    x = rng.normal(size=(devices, tokens, width))
    x[..., 0] = 1  # what the router's first row makes popularity of
    router = rng.normal(size=(width, num_experts))
    router[0] = 2 * rng.normal(size=num_experts)
    experts = (
        rng.normal(size=(num_experts, width, inner)),
        rng.normal(size=(num_experts, inner, width)),
    )
    return jax.tree.map(lambda a: a.astype(np.float32), (x, router, experts))


def kept_by_hand(ids: np.ndarray, num_experts: int, rows: int, alignment: int) -> np.ndarray:
    """Which choices stay, row by row: each device in turn takes one from whoever has most.

    Args:
      ids: shape (devices, tokens, k).
      num_experts: of all devices.
      rows: room of each device.
      alignment: what experts' rows are padded to.
    """
    devices = len(ids)
    local = num_experts // devices
    counts = np.stack([np.bincount(d[d >= 0], minlength=num_experts) for d in ids])
    for first in range(0, num_experts, local):
        mine = range(first, first + local)
        tiles = {e: -(-counts[:, e].sum() // alignment) for e in mine}
        while sum(tiles.values()) > rows // alignment:
            # The last of the most popular, so that what is left over goes to the first of them.
            tiles[max(mine, key=lambda e: (tiles[e], e))] -= 1
        for e in mine:
            while counts[:, e].sum() > tiles[e] * alignment:
                counts[max(range(devices), key=lambda d: (counts[d, e], d)), e] -= 1
    kept = np.zeros(ids.shape, bool)
    for device, token, choice in np.ndindex(ids.shape):
        expert = ids[device, token, choice]
        if expert >= 0:
            kept[device, token, choice] = counts[device, expert] > 0
            counts[device, expert] -= 1
    return kept


def same(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compares trees, each array by its largest element."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        scale = np.abs(other).max(initial=1e-30)
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance)


def with_gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Of a function of tokens, router and experts: ((loss, result), gradients of a loss of it)."""

    def loss(*args: Any) -> tuple[jax.Array, jax.Array]:
        result = function(*args)
        return (result**2).sum(), result

    return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Of a program, and of all programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")
        ):
            program = getattr(inner, "jaxpr", inner)
            if hasattr(program, "eqns"):
                yield from equations(program)
