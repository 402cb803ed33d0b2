"""Programs that are exported at each release, and must run with every later one.

    make exported

writes those of this version into tests/traced/data/exported/VERSION, by the oldest JAX that is
supported: later ones run what it exported.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import moe_layers
import numpy as np
import reference

import fastjax

FOLDER = Path(__file__).parent / "data/exported"
DEVICES, TOPOLOGY = moe_layers.DEVICES, moe_layers.TOPOLOGY
_SPREAD = jax.P("x")


@dataclasses.dataclass(frozen=True)
class Program:
    """What is exported.

    Attributes:
      function: of arrays whose first dimension is spread over the devices.
      arguments: which the program is exported for, and run with.
      expected: what it returns, computed without fastjax.
    """

    function: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    expected: Any


def mesh() -> jax.sharding.Mesh:
    kind = jax.sharding.AxisType.Auto
    return jax.make_mesh((DEVICES,), ("x",), axis_types=(kind,), devices=jax.devices("cpu"))


def _mapped(local: Callable[..., Any]) -> Callable[..., Any]:
    return jax.shard_map(local, mesh=mesh(), in_specs=_SPREAD, out_specs=_SPREAD)


def exchange() -> Program:
    """An exchange, the same with a plan made before, and the gradients of both."""
    rng = np.random.default_rng(0)
    meta = reference.packed(reference.random_sizes(rng, DEVICES, DEVICES))
    data = reference.data(rng, meta)

    def loss(exchanges: Any, operand: Any, output: Any) -> tuple[jax.Array, Any]:
        results = exchanges(operand, output)
        return sum(jnp.sum(jnp.sin((i + 1) * r)) for i, r in enumerate(results)), results

    def local(operand: Any, output: Any, *arrays: Any) -> Any:
        def exchanges(operand: Any, output: Any) -> tuple[jax.Array, jax.Array]:
            plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x", topology=TOPOLOGY)
            send = functools.partial(fastjax.fast_ragged_all_to_all, axis_name="x")
            planned = send(operand, output, *arrays, plan=plan)
            return planned, send(operand, output, *arrays, topology=TOPOLOGY)

        one = functools.partial(loss, exchanges)
        grads, results = jax.grad(one, (0, 1), has_aux=True)(operand, output)
        return *results, *grads

    def twice(operand: Any, output: Any) -> tuple[jax.Array, jax.Array]:
        return (reference.exchange_in_jax(operand, output, meta),) * 2

    grads, results = jax.grad(functools.partial(loss, twice), (0, 1), has_aux=True)(*data)
    flat = [a.reshape(-1, *a.shape[2:]) for a in (*data, *meta.arrays())]
    expected = [np.asarray(a).reshape(-1, *a.shape[2:]) for a in (*results, *grads)]
    return Program(_mapped(local), tuple(flat), tuple(expected))


def layer(chunks: int, **balance: Any) -> Program:
    """A layer of experts whose tokens cross once, and its gradients."""
    x, weights, params, ids = moe_layers.problem(np.random.default_rng(1), 6)
    options = {"chunks": chunks, "deduplicate": True, "buffer_factor": None, **balance}

    def gradients(layer: Any, x: Any, weights: Any, ids: Any, *params: Any) -> Any:
        (result, slopes) = moe_layers.with_gradients(layer)(x, weights, params, ids)
        return result, *slopes[:2], *slopes[2]

    arguments = x, weights, ids, *params
    expected = gradients(moe_layers.dense, *arguments)
    local = functools.partial(gradients, functools.partial(moe_layers.layer, **options))
    return Program(_mapped(local), arguments, tuple(map(np.asarray, expected)))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "exchange": exchange,
    "layer": functools.partial(layer, chunks=1),
    "layer_in_chunks": functools.partial(layer, chunks=2),
    # The two before were exported when counts were gathered by a collective of XLA's.
    "layer_that_gathers": functools.partial(layer, chunks=1),
    "balanced_layer": functools.partial(layer, chunks=1, balance=True),
}


def placed(arguments: tuple[np.ndarray, ...]) -> list[jax.Array]:
    return jax.device_put(list(arguments), jax.NamedSharding(mesh(), _SPREAD))


def main() -> None:
    """Writes those of this version that are missing."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    folder = FOLDER / fastjax.__version__
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PROGRAMS.items():
        path = folder / f"{name}.bin"
        if path.exists():
            continue
        program = make()
        export = jax.export.export(
            jax.jit(program.function), disabled_checks=fastjax.export_checks()
        )
        exported = export(*placed(program.arguments))
        path.write_bytes(exported.serialize())


if __name__ == "__main__":
    main()
