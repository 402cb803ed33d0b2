"""Layers of experts on several devices, and the same layer on one, without exchanges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spmd import mesh_of

import fastjax
from fastjax import moe

P = jax.P
SPREAD = P("x")
DEVICES, EXPERTS, TOP_K, WIDTH, INNER = 8, 16, 3, 6, 10
TOPOLOGY = fastjax.Topology(4, 2)
USUAL = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY}
BALANCED = {"balance": True, "topology": fastjax.Topology(2, 4)}


def ids_of(
    rng: np.random.Generator,
    tokens: int,
    law: str = "zipf",
    experts: int = EXPERTS,
    top_k: int = TOP_K,
) -> np.ndarray:
    """Choices, by a law of popularity that has those of a token differ, or another law."""
    shape = tokens, top_k
    if law == "one device":
        return rng.integers(0, 2, shape).astype(np.int32)
    if law == "one expert":
        return np.full(shape, 5, np.int32)
    if law == "holes":
        return np.where(rng.random(shape) < 0.5, -1, rng.integers(0, 3, shape)).astype(np.int32)
    popular = -1.2 * np.log(rng.permutation(np.arange(1, experts + 1)))
    likely = popular + rng.gumbel(size=(tokens, experts))
    return np.argsort(-likely, 1)[:, :top_k].astype(np.int32)


def problem(
    rng: np.random.Generator,
    tokens: int,
    law: str = "zipf",
    *,
    devices: int = DEVICES,
    experts: int = EXPERTS,
    top_k: int = TOP_K,
) -> Any:
    """Tokens, the weights of their choices, params of all experts, and choices; tokens: of each."""
    some = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    params = some(experts, WIDTH, INNER), some(experts, INNER, WIDTH)
    x, weights = some(devices * tokens, WIDTH), rng.random((devices * tokens, top_k))
    ids = ids_of(rng, devices * tokens, law, experts, top_k)
    return x, weights.astype(np.float32), params, ids


def expert(rows: Any, params: Any) -> Any:
    return jnp.tanh(rows @ params[0]) @ params[1]


def all_experts(rows: Any, sizes: Any, params: Any, dot: Any = jax.lax.ragged_dot) -> Any:
    """The same of all groups of rows."""
    return dot(jnp.tanh(dot(rows, params[0], sizes)), params[1], sizes)


def dense(
    x: Any,
    weights: Any,
    params: Any,
    ids: Any,
    *,
    expert: Any = expert,
    rounding: Any = (None, None),
) -> Any:
    """Every expert on every token, of which those chosen count.

    Args:
      x, weights, params, ids: as `problem` returns them.
      expert: of some rows and the params of one.
      rounding: types that tokens and results travel in.
    """
    every = jax.vmap(expert, (None, 0), 1)(rounded(x, rounding[0]), params)
    chosen = jnp.take_along_axis(rounded(every, rounding[1]), jnp.maximum(ids, 0)[..., None], 1)
    return (chosen * jnp.where(ids < 0, 0, weights)[..., None]).sum(1)


def dense_groups(rows: Any, params: Any, sizes: Any, expert: Any = expert) -> Any:
    """What `moe.grouped_map` does, by every group on every row."""
    ends = jnp.cumsum(jnp.array(sizes))
    group = (ends <= jnp.arange(len(rows))[:, None]).sum(1)
    every = jax.vmap(expert, (None, 0))(rows, params)  # (groups, room, width)
    own = every[jnp.minimum(group, len(sizes) - 1), jnp.arange(len(rows))]
    return jnp.where((group < len(sizes))[:, None], own, 0)


def rounded(rows: Any, dtype: Any) -> Any:
    """Rows as they come out of a narrow type; gradients pass. One-byte types: scaled by row."""
    if dtype is None:
        return rows
    scale = 1.0
    if np.dtype(dtype).itemsize == 1:
        scale = jnp.abs(rows).max(-1, keepdims=True) / float(jnp.finfo(dtype).max)
    narrow = (rows / scale).astype(dtype).astype(rows.dtype) * scale
    return rows + jax.lax.stop_gradient(narrow - rows)


def steps(
    x: Any,
    weights: Any,
    params: Any,
    ids: Any,
    *,
    at: str = "combine",
    experts: Any = all_experts,
    combined: Any = None,
    **options: Any,
) -> Any:
    """A layer in three steps, on a device: its result, and what its handle says was dropped.

    Weights are given to `dispatch`, or to `combine`.
    """
    given = {"weights": weights} if at == "dispatch" else {}
    axis = options.get("axis_name", "x")
    usual = USUAL | {"num_experts": len(params[0]) * jax.lax.axis_size(axis)}
    rows, sizes, handle = moe.dispatch(x, ids, **usual | given | options)
    rows = experts(rows, sizes, handle.params(params))
    result = moe.combine(rows, handle, weights if at == "combine" else None, **(combined or {}))
    return result, handle.kept, handle.dropped[None]


def layer(
    x: Any, weights: Any, params: Any, ids: Any, expert_fn: Any = expert, **options: Any
) -> Any:
    """`moe.layer`, on a device, with little room."""
    usual = USUAL | {"buffer_factor": 1.25}
    return moe.layer(x, ids, weights, params, expert_fn=expert_fn, **usual | options)


def with_stats(*arrays: Any, **options: Any) -> Any:
    """The same, and its statistics on each device."""
    result, stats = layer(*arrays, return_stats=True, **options)
    return result, jax.tree.map(lambda a: a[None], stats)


def on_devices(local: Any, mesh: Any = None, specs: Any = SPREAD, **options: Any) -> Any:
    """A function of all devices, each of which has its part of all arrays, with these options."""
    spread = {"in_specs": specs, "out_specs": specs[0] if specs is not SPREAD else specs}
    mapped = {name: options.pop(name) for name in ("check_vma", "axis_names") if name in options}
    local = functools.partial(local, **options)
    return jax.shard_map(local, mesh=mesh or mesh_of(), **spread | mapped)


def with_gradients(function: Callable[..., Any]) -> Any:
    """All that a function of a problem returns, and the gradients of the first's squares."""

    def loss(*arrays: Any) -> Any:
        made = function(*arrays)
        return ((made[0] if isinstance(made, tuple) else made) ** 2).sum(), made

    def both(*arrays: Any) -> Any:
        (_, made), gradients = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)
        return made, gradients

    return jax.jit(both)


def dense_with_gradients(arrays: Any, kept: Any = True, **options: Any) -> Any:
    """Of the choices that are kept."""
    return _dense_program(**options)(*arrays, kept)


@functools.cache
def _dense_program(**options: Any) -> Any:
    def only(x: Any, weights: Any, params: Any, ids: Any, kept: Any) -> Any:
        return dense(x, weights * kept, params, ids, **options)

    return with_gradients(only)


def same(got: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compares trees, each array by its largest element."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        scale = np.abs(other).max(initial=1e-30)
        np.testing.assert_allclose(one / scale, other / scale, atol=tolerance)


def dispatched(x: Any, ids: Any, **options: Any) -> Any:
    """What `moe.dispatch` returns; tokens cross once unless it is told otherwise."""
    return moe.dispatch(x, ids, **USUAL | {"deduplicate": True} | options)


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


def scaled(rows: Any, scale: Any) -> Any:
    """An expert without a product, whose bits may depend on the rows beside a row."""
    return rows * scale


def scales() -> np.ndarray:
    """Params of such experts: their numbers and 1."""
    return np.arange(1, EXPERTS + 1, dtype=np.float32)[:, None]


def name_of(value: Any) -> str:
    """Of a test's parameter, or of several."""
    if isinstance(value, dict):
        return ",".join(map(name_of, value.values()))
    if isinstance(value, fastjax.Topology):
        return f"{value.servers}x{value.devices_per_server}"
    value = value.func if isinstance(value, functools.partial) else value
    return getattr(value, "__name__", str(value))


def rows_of_experts(stats: Any, ids: np.ndarray) -> np.ndarray:
    """Rows of each expert, by numpy, which the statistics of all devices have; nothing dropped."""
    rows = np.bincount(ids[ids >= 0], minlength=EXPERTS)
    np.testing.assert_array_equal(stats.expert_rows, np.broadcast_to(rows, (DEVICES, EXPERTS)))
    assert not stats.dropped.any()
    return rows


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
