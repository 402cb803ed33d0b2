"""tpu-inference's sparse layer: all devices have all tokens, and results travel by an exchange.

The kernel for TPUs, `gmm_fn`, is replaced: `jax.lax.ragged_dot` computes the same. The layer's
other way, for tokens that are spread, does not fit the shapes of its own functions.
"""

import types
from types import ModuleType
from typing import Any

import jax
import tree
from edits import Edit


@jax.tree_util.register_static
class Settings(types.SimpleNamespace):
    """What the function reads of its layer."""

    __hash__ = object.__hash__


def gmm(rows: jax.Array, kernel: jax.Array, group_sizes: jax.Array, *_: Any) -> jax.Array:
    return jax.lax.ragged_dot(rows, kernel, group_sizes)


def build(module: ModuleType) -> tree.Layer:
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    router, kernels = tree.router_and_kernels()

    def function(params: Any, x: jax.Array) -> jax.Array:
        router, kernels = params
        rows = x.reshape(-1, tree.WIDTH)
        chosen = jax.lax.top_k(jax.nn.softmax(rows @ router), tree.TOP_K)
        names = "kernel_gating_EDF", "kernel_up_proj_EDF", "kernel_down_proj_EFD"
        held = [types.SimpleNamespace(value=kernel) for kernel in kernels]
        settings = Settings(
            **dict(zip(names, held, strict=True)),
            num_experts_per_tok=tree.TOP_K,
            num_local_experts=tree.EXPERTS,
            num_expert_parallelism=8,
            expert_axis_name="model",
            is_batch_sharded_by_expert=False,
            hidden_size=tree.WIDTH,
            hidden_act="silu",
            activation_ffw_td=(None, None),
            edf_sharding=("model", None, None),
            efd_sharding=("model", None, None),
            tile_size=(1, 1, 1),
            moe_backend=None,
            dtype=x.dtype,
            qwix_quantized_weight_dtype=None,
        )
        result = module.sparse_moe_func(module.UnfusedMoEWeights(), rows, chosen, settings, mesh)
        return result.reshape(x.shape)

    given = [(tree.prefer_first(router, preference), kernels) for preference in tree.PREFERENCES]
    return tree.Layer(function, given)


EDITS = [
    Edit(
        "sparse_moe_distributed_fwd",
        "sorted_inputs, ",
        "return",
        """
        act = modeling_flax_utils.ACT2FN[moe_instance.hidden_act]
        expert = lambda rows, w: (act(rows @ w[0]) * (rows @ w[1])) @ w[2]
        return moe.layer(x_TD, selected_experts_TX, router_weights_TX,
            (kernel_gating, kernel_up_proj, kernel_down_proj), expert_fn=expert, replicated=True,
            num_experts=moe_instance.num_local_experts, axis_name=moe_instance.expert_axis_name)
        """,
    )
]
CASES = [
    tree.Case(
        module="tpu_inference.layers.jax.moe.sparse_moe",
        build=build,
        exchanges=2,
        own_gradients=False,
        bare=("tpu_inference", "tpu_inference.layers", "tpu_inference.layers.jax"),
        absent=(
            "tpu_inference.envs",
            "tpu_inference.kernels",
            "tpu_inference.layers.common",
            "tpu_inference.logger",
            "tpu_inference.models",
            "vllm",
        ),
        replaced={"gmm_fn": gmm},
        edits=EDITS,
    )
]
