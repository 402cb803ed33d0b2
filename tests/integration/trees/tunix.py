"""tunix's layer of Qwen3: rows travel by two ragged exchanges.

The exchange is in a path for TPUs. Two things keep CPU devices from it, and are replaced as the
layer's module sees them:

- `jax.devices`: where the first device is a CPU the layer takes the path without an exchange;
- `megablox.gmm`, a kernel for TPUs: `jax.lax.ragged_dot` computes the same.
"""

import types
from types import ModuleType
from typing import Any

import jax
import tree
from edits import Edit

WITHIN = "MoELayer.__call__.sharded_megablox_moe"


class JaxOfTpus:
    """The module jax, but for the platform of its devices."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)

    def devices(self) -> list[Any]:
        return [types.SimpleNamespace(platform="tpu")]


def gmm(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Any, **options: Any
) -> jax.Array:
    return jax.lax.ragged_dot(lhs, rhs, group_sizes, **options)


def build(module: ModuleType) -> tree.Layer:
    from flax import nnx

    config = module.ModelConfig(
        num_experts=tree.EXPERTS,
        num_experts_per_tok=tree.TOP_K,
        embed_dim=tree.WIDTH,
        hidden_dim=tree.INNER,
        # These are of other layers.
        num_layers=1,
        vocab_size=1,
        num_heads=1,
        head_dim=1,
        num_kv_heads=1,
        rope_theta=1,
        norm_eps=1,
    )
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    given = []
    for preference in tree.PREFERENCES:
        definition, params = nnx.split(module.MoELayer(config, rngs=nnx.Rngs(0)))
        router: Any = params["router"]["kernel"]
        router[...] = tree.prefer_first(router[...], preference)
        given.append(params)
    return tree.Layer(lambda params, x: nnx.merge(definition, params)(x), given, lambda: mesh)


EDITS = [
    Edit(
        WITHIN,
        "B, T, D_global",
        "final_output = jnp.einsum",
        """
        expert = lambda rows, w: (jax.nn.silu(rows @ w[0]) * (rows @ w[1])) @ w[2]
        final_output = moe.layer(inputs, indices, weights, (gate_w, up_w, down_w),
                                 expert_fn=expert, num_experts=self.num_experts, axis_name=ep_axis)
        """,
    )
]
CASES = [
    tree.Case(
        module="tunix.models.qwen3.model",
        build=build,
        exchanges=4,
        bare=("tunix", "tunix.generate", "tunix.models.qwen3", "tunix.utils"),
        replaced={"jax": JaxOfTpus(), "megablox": types.SimpleNamespace(gmm=gmm)},
        edits=EDITS,
    )
]
