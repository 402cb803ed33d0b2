"""tunix's layer of experts of Qwen3: with its exchange, under the swap, and without.

The exchange is in a path for TPUs. Two things keep CPU devices from it, and are replaced as the
layer's module sees them:

- `jax.devices`: where the first device is a CPU the layer takes the path without an exchange;
- `megablox.gmm`, a kernel for TPUs: `jax.lax.ragged_dot` computes the same.
"""

import types
from typing import Any
from unittest import mock

import jax
import own_layers
from flax import nnx
from tunix.models.qwen3 import model as qwen3

jax.config.update("jax_num_cpu_devices", 8)
CONFIG = qwen3.ModelConfig(
    num_experts=8,
    num_experts_per_tok=2,
    embed_dim=16,
    hidden_dim=32,
    # These are of other layers.
    num_layers=1,
    vocab_size=1,
    num_heads=1,
    head_dim=1,
    num_kv_heads=1,
    rope_theta=1,
    norm_eps=1,
)


class JaxOfTpus:
    """The module jax, but for the platform of its devices."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self) -> list[Any]:
        return [types.SimpleNamespace(platform="tpu")]


def gmm(lhs: jax.Array, rhs: jax.Array, *, tiling: Any, **options: Any) -> jax.Array:
    return jax.lax.ragged_dot(lhs, rhs, **options)


def main() -> None:
    definition, params = nnx.split(qwen3.MoELayer(CONFIG, rngs=nnx.Rngs(0)))
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = own_layers.tokens(8, 12, CONFIG.embed_dim)

    def layer(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(definition, params)(x)

    router: Any = params["router"]["kernel"]
    for preference in own_layers.PREFERENCES:
        router[...] = own_layers.prefer_first(router[...], preference)
        wanted = own_layers.without_exchange(layer, params, x)
        for_tpus = {"jax": JaxOfTpus(), "megablox": types.SimpleNamespace(gmm=gmm)}
        with mesh, mock.patch.multiple(qwen3, **for_tpus):
            got = own_layers.under_the_swap(layer, params, x, exchanges=4)
        own_layers.assert_same(got, wanted)


if __name__ == "__main__":
    main()
