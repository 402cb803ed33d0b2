"""sglang-jax's layer for inference: all devices have all tokens, and results are summed.

The kernel for TPUs, `gmm`, is replaced: `jax.lax.ragged_dot` computes the same.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import tree
from edits import Edit


def build(module: ModuleType) -> tree.Layer:
    from flax import nnx

    explicit = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=explicit)
    with jax.set_mesh(mesh):
        layer = module.EPMoE(
            hidden_size=tree.WIDTH,
            num_experts=tree.EXPERTS,
            num_experts_per_tok=tree.TOP_K,
            ep_size=4,
            mesh=mesh,
            intermediate_dim=tree.INNER,
            weight_dtype=jnp.float32,
            dtype=jnp.float32,
        )
        definition, experts = nnx.split(layer)
        router = jax.random.normal(jax.random.key(4), (tree.WIDTH, tree.EXPERTS)) / tree.WIDTH**0.5
        given = [
            (tree.prefer_first(router, preference), experts) for preference in tree.PREFERENCES
        ]

    def function(params: Any, x: jax.Array) -> jax.Array:
        router, experts = params
        rows = x.reshape(-1, tree.WIDTH)
        weights, ids = jax.lax.top_k(jax.nn.softmax(rows @ router), tree.TOP_K)
        return nnx.merge(definition, experts)(rows, weights, ids).reshape(x.shape)

    return tree.Layer(function, given, lambda: jax.set_mesh(mesh))


EDITS = [
    Edit(
        "EPMoE.__init__",
        "self.activation",
        None,
        """
        act = getattr(jax.nn, activation)
        self.expert = lambda rows, w: (act(rows @ w[0]) * (rows @ w[1])) @ w[2]
        """,
    ),
    Edit(
        "EPMoE._forward",
        "expert_shard_id",
        "output = self._unpermute",
        """
        weights = w0_weights, w1_weights, wo_weights
        output = moe.layer(hidden_states, topk_ids, topk_weights, weights, expert_fn=self.expert,
                           num_experts=self.num_experts, axis_name="expert", replicated=True)
        """,
    ),
    Edit("EPMoE._forward", "if self.ep_size > 1", "if self.ep_size > 1", ""),
]
CASES = [
    tree.Case(
        module="sgl_jax.srt.layers.moe",
        folder="python",
        build=build,
        exchanges=0,
        absent=(
            "sgl_jax.srt.eplb",
            "sgl_jax.srt.kernels",
            "sgl_jax.srt.layers.fused_moe",
            "sgl_jax.srt.layers.gate",
            "sgl_jax.srt.utils.quantization",
            "sgl_jax.srt.utils.weight_utils",
        ),
        replaced={"get_global_expert_location_metadata": lambda: None, "gmm": tree.some_groups},
        edits=EDITS,
    )
]
