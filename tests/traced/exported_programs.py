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
import moe_reference
import numpy as np
import reference

import fastjax
from fastjax import moe

FOLDER = Path(__file__).parent / "data/exported"
DEVICES, EXPERTS, TOP_K = 8, 16, 3
TOPOLOGY = fastjax.Topology(4, 2)
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
    rng = np.random.default_rng(1)
    x, router, experts = moe_reference.problem(rng, DEVICES, 6, EXPERTS)
    x = x.reshape(-1, x.shape[-1])
    weights, ids = moe_reference.route(x, router, TOP_K)
    arguments = tuple(map(np.asarray, (x, weights, ids, *experts)))

    def loss(local: Any, x: Any, weights: Any, *experts: Any) -> tuple[jax.Array, jax.Array]:
        result = local(x, weights, experts)
        return jnp.sum(result**2), result

    def one_expert(rows: Any, matrices: Any) -> jax.Array:
        return jnp.tanh(rows @ matrices[0]) @ matrices[1]

    def local(x: Any, weights: Any, ids: Any, *experts: Any) -> Any:
        options = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY}
        options |= {"chunks": chunks, "deduplicate": True, **balance}
        once = lambda x, w, e: moe.layer(x, ids, w, e, expert_fn=one_expert, **options)  # noqa: E731
        one = functools.partial(loss, once)
        grads, result = jax.grad(one, (0, 1, 2, 3), has_aux=True)(x, weights, *experts)
        return result, *grads

    def dense(x: Any, weights: Any, experts: Any) -> jax.Array:
        every = jnp.einsum("td,edf->tef", x, experts[0])
        every = jnp.einsum("tef,efd->ted", jnp.tanh(every), experts[1])
        return (jnp.take_along_axis(every, ids[..., None], 1) * weights[..., None]).sum(1)

    one = functools.partial(loss, dense)
    grads, result = jax.grad(one, (0, 1, 2, 3), has_aux=True)(x, weights, *experts)
    return Program(_mapped(local), arguments, tuple(map(np.asarray, (result, *grads))))


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
