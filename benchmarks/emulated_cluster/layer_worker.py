"""The process of one server: a layer's dispatch and combine, deduplicated and not.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastjax
from emulated_cluster import layer_work
from emulated_cluster.fabric import Fabric
from emulated_cluster.worker import AXIS, Barrier, mesh_of_all, timed
from fastjax import moe
from fastjax.traced.after import after

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
      topology: what fastjax.Topology is told.
    """
    network = Fabric(**fabric)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    shape = fastjax.Topology(network.servers, network.rails, **topology)
    return {
        name: _measure(
            layer_work.Layer(**layer), schemes, rounds, backward, shape, mesh, network, barrier
        )
        for name, layer in layers.items()
    }


def _measure(
    layer: layer_work.Layer,
    schemes: list[str],
    rounds: int,
    backward: bool,
    topology: fastjax.Topology,
    mesh: jax.sharding.Mesh,
    network: Fabric,
    barrier: Barrier,
) -> dict[str, Any]:
    choices = layer.choices()
    operands = operands_of(layer, choices, mesh)
    factor = layer_work.room_factor(layer, choices)
    found: dict[str, Any] = {}
    programs: dict[str, Callable[[], Any]] = {}
    for name in schemes:
        options = {"topology": topology, "buffer_factor": factor, **SCHEMES[name]}
        program = _program(layer, mesh, options, backward=backward)
        compiled = program.lower(*operands).compile()
        barrier()
        wrong = _wrong(compiled(*operands), operands)
        # Experts that do nothing are the same wherever rows go.
        checked = _program(layer, mesh, options, backward=backward, experts=_by_number)
        wrong += _wrong(checked(*operands), operands, layer.experts)
        found[name] = {"wrong": wrong, "runs": []}
        programs[name] = lambda compiled=compiled: jax.block_until_ready(compiled(*operands))
    rng = np.random.default_rng(layer.seed)
    for _ in range(rounds):
        for name in rng.permutation(list(programs)).tolist():
            found[name]["runs"].append(timed(network, barrier, programs[name]))
    return found


def operands_of(
    layer: layer_work.Layer, choices: np.ndarray, mesh: jax.sharding.Mesh
) -> tuple[jax.Array, ...]:
    """Tokens, experts and weights of all devices, each process holding its own part."""
    sharding = jax.NamedSharding(mesh, jax.P(AXIS))
    shape = (layer.devices * layer.tokens, layer.row_bytes // 4)

    def tokens(index: Any) -> np.ndarray:
        rows = slice(*index[0].indices(shape[0]))
        drawn = np.random.default_rng([layer.seed, rows.start])
        return drawn.standard_normal((rows.stop - rows.start, shape[1]), np.float32)

    weights = np.random.default_rng(layer.seed).uniform(0.5, 1, choices.shape).astype(np.float32)
    flat = [array.reshape(-1, layer.top_k) for array in (choices, weights)]
    put = lambda array: jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])  # noqa: E731
    return (jax.make_array_from_callback(shape, sharding, tokens), *map(put, flat))


def _nothing(rows: jax.Array, sizes: jax.Array) -> jax.Array:
    del sizes
    return rows


def _program(
    layer: layer_work.Layer,
    mesh: jax.sharding.Mesh,
    options: dict[str, Any],
    *,
    backward: bool,
    experts: Callable[[jax.Array, jax.Array], jax.Array] = _nothing,
) -> Any:
    def there_and_back(x: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
        rows, sizes, handle = moe.dispatch(
            x, ids, weights=weights, num_experts=layer.experts, axis_name=AXIS, **options
        )
        return moe.combine(experts(rows, sizes), handle)

    def with_gradients(x: jax.Array, ids: jax.Array, weights: jax.Array) -> Any:
        result, back = jax.vjp(lambda x, w: there_and_back(x, ids, w), x, weights)
        # There is no cotangent before there is a result, as with a loss.
        return result, *back(after(jnp.ones_like(result), result))

    spec = jax.P(AXIS)
    function = with_gradients if backward else there_and_back
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))


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
