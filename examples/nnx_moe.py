"""A mixture-of-experts layer as a module of flax.nnx, around `fastjax.moe.layer`.

    pip install 'fastjax[examples]'
    python examples/nnx_moe.py

trains one such layer on eight CPU devices to undo a fixed map, and prints its losses.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from fastjax import moe


class MoE(nnx.Module):
    """Sends each token to its experts, and adds up what they make of it.

    Args:
      width: of a token.
      inner: width inside an expert.
      num_experts: experts, a multiple of the devices of the axis.
      top_k: experts of a token.
      mesh: of the devices; tokens and experts are spread over one axis of it.
      axis_name: that axis.
      rngs: for the parameters.
      **options: further ones of `fastjax.moe.layer`.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        num_experts: int,
        top_k: int,
        mesh: jax.sharding.Mesh,
        axis_name: str,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        self.num_experts, self.top_k, self.options = num_experts, top_k, options
        self.mesh, self.axis_name = mesh, axis_name
        self.router = nnx.Linear(width, num_experts, use_bias=False, rngs=rngs)
        init = nnx.initializers.lecun_normal(batch_axis=0)
        spread = jax.NamedSharding(mesh, jax.P(axis_name))

        def experts(rows: int, columns: int) -> nnx.Param:
            matrices = init(rngs.params(), (num_experts, rows, columns))
            return nnx.Param(jax.device_put(matrices, spread))

        self.up, self.down = experts(width, inner), experts(inner, width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Of tokens, shape (tokens, width), as many on each device of the axis."""
        ids, weights = moe.route(self.router(x), self.top_k)
        spec = jax.P(self.axis_name)
        layer = jax.shard_map(self._on_device, mesh=self.mesh, in_specs=spec, out_specs=spec)
        return layer(x, ids, weights, self.up[...], self.down[...])

    def _on_device(self, x: Any, ids: Any, weights: Any, up: Any, down: Any) -> Any:
        return moe.layer(
            x,
            ids,
            weights,
            (up, down),
            expert_fn=_expert,
            num_experts=self.num_experts,
            axis_name=self.axis_name,
            **self.options,
        )


def _expert(rows: Any, matrices: tuple[Any, Any]) -> Any:
    """What one expert does with its rows; its two matrices."""
    up, down = matrices
    return jax.nn.relu(rows @ up) @ down


@nnx.jit
def train_step(layer: MoE, optimizer: nnx.Optimizer, x: Any, wanted: Any) -> Any:
    """One step; the mean squared error before it."""
    loss, grads = nnx.value_and_grad(lambda layer: jnp.mean((layer(x) - wanted) ** 2))(layer)
    optimizer.update(layer, grads)
    return loss


def train(steps: int, mesh: jax.sharding.Mesh) -> Sequence[float]:
    """Losses of a layer that learns to turn tokens round."""
    make = functools.partial(MoE, num_experts=2 * mesh.size, top_k=2, mesh=mesh, axis_name="expert")
    layer = make(16, 32, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(layer, optax.adam(1e-2), wrt=nnx.Param)
    sharding = jax.NamedSharding(mesh, jax.P("expert"))
    x = jax.device_put(jax.random.normal(jax.random.key(1), (32 * mesh.size, 16)), sharding)
    return [float(train_step(layer, optimizer, x, x[:, ::-1])) for _ in range(steps)]


def main() -> int:
    """Trains, and prints losses."""
    jax.config.update("jax_num_cpu_devices", 8)
    kind = jax.sharding.AxisType.Auto
    losses = train(100, jax.make_mesh((8,), ("expert",), axis_types=(kind,)))
    for step in (0, 10, 50, 99):
        sys.stdout.write(f"step {step}: loss {losses[step]:.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
