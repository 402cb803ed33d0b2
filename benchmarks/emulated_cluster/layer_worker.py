"""The process of one server: a layer's dispatch and combine, deduplicated and not.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastjax
from emulated_cluster import layer_work
from emulated_cluster.fabric import Fabric
from emulated_cluster.worker import (
    AXIS,
    Barrier,
    mesh_of_all,
    on_all_devices,
    placed,
    sharding,
    timed,
)
from fastjax import moe

SCHEMES: dict[str, dict[str, Any]] = {
    "once": {"deduplicate": True},
    "each choice": {"deduplicate": False},
    "each choice, direct": {"deduplicate": False, "scheduler": "direct"},
    "chosen": {},
}


def serve(
    fabric: dict[str, Any],
    layers: dict[str, dict[str, Any]],
    schemes: list[str],
    rounds: int,
    backward: bool,
    topology: dict[str, Any],
) -> dict[str, Any]:
    """What this process saw: runs by layer and scheme, and what was wrong.

    Args:
      fabric: keyword arguments of Fabric.
      layers: keyword arguments of Layer, by name.
      schemes: names in SCHEMES.
      rounds: times that each runs, in turn with the others.
      backward: whether the gradients are taken too.
      topology: keyword arguments of fastjax.Topology.
    """
    network = Fabric(**fabric)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    found: dict[str, Any] = {}
    for kind, arguments in layers.items():
        layer = layer_work.Layer(**arguments)
        choices = layer.choices()
        operands = operands_of(layer, choices, mesh)
        options = {
            "num_experts": layer.experts,
            "topology": fastjax.Topology(**topology),
            "buffer_factor": layer_work.room_factor(layer, choices),
        }
        found[kind] = {name: {"wrong": 0, "runs": []} for name in schemes}
        programs = {}
        for name in schemes:
            there_and_back = functools.partial(_there_and_back, **options, **SCHEMES[name])
            compiled = on_all_devices(there_and_back, mesh, backward=backward)
            compiled = compiled.lower(*operands).compile()
            barrier()
            found[kind][name]["wrong"] += _wrong(compiled(*operands), operands)
            # Experts that do nothing are the same wherever rows go.
            checked = functools.partial(there_and_back, experts=_by_number)
            results = on_all_devices(checked, mesh, backward=backward)(*operands)
            found[kind][name]["wrong"] += _wrong(results, operands, layer.experts)
            programs[name] = functools.partial(compiled, *operands)
        rng = np.random.default_rng(layer.seed)
        for _ in range(rounds):
            for name in rng.permutation(list(programs)).tolist():
                found[kind][name]["runs"].append(timed(network, barrier, programs[name]))
    return found


def operands_of(
    layer: layer_work.Layer, choices: np.ndarray, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, ...]:
    """Tokens, experts and weights of all devices, each process holding its own part."""
    shape = (layer.devices * layer.tokens, layer.row_bytes // 4)

    def tokens(index: Any) -> np.ndarray:
        rows = slice(*index[0].indices(shape[0]))
        drawn = np.random.default_rng([layer.seed, rows.start])
        return drawn.standard_normal((rows.stop - rows.start, shape[1]), np.float32)

    weights = np.random.default_rng(layer.seed).uniform(0.5, 1, choices.shape).astype(np.float32)
    flat = (array.reshape(-1, layer.top_k) for array in (choices, weights))
    x = jax.make_array_from_callback(shape, sharding(mesh), tokens)
    return (x, *(placed(array, mesh) for array in flat))


def _there_and_back(
    x: jax.Array,
    ids: jax.Array,
    weights: jax.Array,
    experts: Callable[[jax.Array, jax.Array], jax.Array] = lambda rows, _: rows,
    **options: Any,
) -> jax.Array:
    rows, sizes, handle = moe.dispatch(x, ids, weights=weights, axis_name=AXIS, **options)
    return moe.combine(experts(rows, sizes), handle)


def _by_number(rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """Experts that differ, so that a wrong one shows: each multiplies by 1 and its share of E."""
    here = len(sizes)
    local = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(len(rows)), side="right")
    number = jax.lax.axis_index(AXIS) * here + jnp.minimum(local, here - 1)
    experts = here * jax.lax.axis_size(AXIS)
    return rows * (1 + number / experts)[:, None].astype(rows.dtype)


def _wrong(results: Any, operands: tuple[jax.Array, ...], experts: float = np.inf) -> int:
    """Tokens of this process that are not what their experts make of them.

    Args:
      results, operands: of a program.
      experts: how many, where they are those of `_by_number`.
    """
    x, ids, weights = operands
    result = results[0] if isinstance(results, tuple) else results
    wrong = 0
    for got, given, chosen, each in zip(
        *(array.addressable_shards for array in (result, x, ids, weights)), strict=True
    ):
        share = np.asarray(each.data) * (1 + np.asarray(chosen.data) / experts)
        want = np.asarray(given.data) * share.sum(1, keepdims=True)
        wrong += int((np.abs(np.asarray(got.data) - want) > 1e-4).any(axis=1).sum())
    return wrong
