"""The process of one server: a layer of experts that hardly work, deduplicated and not.

tests/support/multiprocess.py starts it in the server's namespace and calls `serve`.
"""

import dataclasses
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

FACTORED = 8
"""Columns that experts multiply by their factors."""
_SPARE = 1.25
"""Room of a device, as a multiple of its rows: those of its chunks vary."""
SCHEMES: dict[str, dict[str, Any]] = {
    "once": {"deduplicate": True},
    "each choice": {"deduplicate": False},
    "each choice, direct": {"deduplicate": False, "scheduler": "direct"},
    "chosen": {},
}


def serve(
    fabric: dict[str, Any],
    layers: dict[str, dict[str, Any]],
    rounds: int,
    backward: bool,
    topology: dict[str, Any],
) -> dict[str, Any]:
    """What this process saw: runs by layer and scheme, and what was wrong.

    Args:
      fabric: keyword arguments of Fabric.
      layers: keyword arguments of Layer, by name.
      rounds: times that each scheme runs, in turn with the others.
      backward: whether the gradients are taken too.
      topology: keyword arguments of fastjax.Topology.
    """
    network = Fabric(**fabric)
    mesh = mesh_of_all()
    barrier = Barrier(mesh)
    found: dict[str, Any] = {}
    for kind, arguments in layers.items():
        layer = layer_work.Layer(**arguments)
        whole = Whole(layer, mesh, fastjax.Topology(**topology), backward)
        programs = {name: whole.program(1, **options) for name, options in SCHEMES.items()}
        found[kind] = {}
        for name, program in programs.items():
            barrier()
            found[kind][name] = {"wrong": whole.wrong(program()), "runs": []}
        rng = np.random.default_rng(layer.seed)
        for _ in range(rounds):
            for name in rng.permutation(list(programs)).tolist():
                found[kind][name]["runs"].append(timed(network, barrier, programs[name]))
    return found


@dataclasses.dataclass(frozen=True)
class Whole:
    """A layer, its operands, and programs of it.

    Experts multiply the first columns of rows by their factors. That shows a row at a wrong expert,
    and takes little of this machine's processors.

    Attributes:
      layer: what it is.
      mesh: its devices.
      topology: see `moe.layer`.
      backward: whether programs take the gradients too.
      work: what experts do besides, with rows and how many of them there are.
    """

    layer: layer_work.Layer
    mesh: jax.sharding.Mesh
    topology: fastjax.Topology
    backward: bool
    work: Callable[[jax.Array, jax.Array], jax.Array] = lambda rows, _: rows

    @functools.cached_property
    def operands(self) -> tuple[jax.Array, ...]:
        """Tokens, choices, weights, and a factor for each expert, on their devices."""
        layer, choices = self.layer, self.layer.choices()
        shape = (layer.devices * layer.tokens, layer.row_bytes // 4)

        def tokens(index: Any) -> np.ndarray:
            rows = slice(*index[0].indices(shape[0]))
            drawn = np.random.default_rng([layer.seed, rows.start])
            return drawn.standard_normal((rows.stop - rows.start, shape[1]), np.float32)

        rng = np.random.default_rng(layer.seed)
        weights = rng.uniform(0.5, 1, choices.shape).astype(np.float32)
        flat = (array.reshape(-1, layer.top_k) for array in (choices, weights))
        x = jax.make_array_from_callback(shape, sharding(self.mesh), tokens)
        return (x, *(placed(array, self.mesh) for array in (*flat, self._factors)))

    @property
    def _factors(self) -> np.ndarray:
        """What each expert multiplies by."""
        return np.linspace(0.5, 1.5, self.layer.experts, dtype=np.float32)

    def program(self, chunks: int | None, **options: Any) -> Callable[[], Any]:
        """What runs the layer, compiled, with more options of `moe.layer`."""

        def experts(rows: jax.Array, group_sizes: jax.Array, factors: jax.Array) -> jax.Array:
            each = jnp.repeat(factors, group_sizes, total_repeat_length=len(rows))
            worked = self.work(rows, group_sizes.sum())
            return worked.at[:, :FACTORED].multiply(each[:, None])

        layer = functools.partial(
            moe.layer,
            grouped_fn=experts,
            num_experts=self.layer.experts,
            axis_name=AXIS,
            topology=self.topology,
            buffer_factor=_SPARE * layer_work.room_factor(self.layer, self.layer.choices()),
            chunks=chunks,
            **{"balance": False} | options,
        )
        mapped = on_all_devices(layer, self.mesh, backward=self.backward)
        return functools.partial(mapped.lower(*self.operands).compile(), *self.operands)

    def wrong(self, results: Any) -> int:
        """Tokens of this process whose value, or gradient, is not that of the factors chosen."""
        x, ids, weights, _ = self.operands
        values = results if isinstance(results, tuple) else (results,)
        count = 0
        for place, shard in enumerate(x.addressable_shards):
            at = lambda array, place=place: np.asarray(array.addressable_shards[place].data)  # noqa: E731
            share = np.repeat(at(weights).sum(1, keepdims=True), shard.data.shape[1], 1)
            factors = self._factors[at(ids)]
            share[:, :FACTORED] = (factors * at(weights)).sum(1, keepdims=True)
            wanted = [np.asarray(shard.data) * share, share]
            for value, want in zip(values[:2], wanted, strict=False):
                count += int((np.abs(at(value) - want) > 1e-3).any(axis=1).sum())
        return count
