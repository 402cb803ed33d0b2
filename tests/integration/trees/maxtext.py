"""MaxText: rows travel by two ragged exchanges; or its ring of experts gathers and scatters them.

An option keeps the exchanges from a kernel for TPUs, `megablox`, which the ring needs: there,
`jax.lax.ragged_dot` computes the same.
"""

import contextlib
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import tree
from edits import Edit

WITHIN = "RoutedMoE.sparse_matmul._moe_body"


def build(module: ModuleType, **options: Any) -> tree.Layer:
    from flax import linen, nnx
    from maxtext.configs import pyconfig
    from maxtext.layers import initializers
    from maxtext.utils import globals as paths
    from maxtext.utils import maxtext_utils

    config = pyconfig.initialize(
        [None, str(Path(paths.MAXTEXT_CONFIGS_DIR) / "base.yml")],
        sparse_matmul=True,
        ici_expert_parallelism=tree.DEVICES,
        num_experts=tree.EXPERTS,
        num_experts_per_tok=tree.TOP_K,
        base_emb_dim=tree.WIDTH,
        base_mlp_dim=tree.INNER,
        base_moe_mlp_dim=tree.INNER,
        dtype="float32",
        hardware="cpu",
        skip_jax_distributed_system=True,
        enable_checkpointing=False,
        log_config=False,
        run_name="layers_of_others",
        **options,
    )
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    routed = module.RoutedMoE(
        config=config,
        num_experts=config.num_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        mesh=mesh,
        kernel_init=initializers.nd_dense_init(1.0, "fan_in", "truncated_normal"),
        kernel_axes=("embed", "mlp"),
        intermediate_dim=config.moe_mlp_dim,
        dtype=config.dtype,
        rngs=nnx.Rngs(0),
    )
    definition, params, rest = nnx.split(routed, nnx.Param, ...)
    given = []
    for preference in tree.PREFERENCES:
        preferring = jax.tree.map(lambda leaf: leaf, params)
        router: Any = preferring["gate"]["kernel"]
        router[...] = tree.prefer_first(router[...], preference)
        given.append(preferring)

    def scope() -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(jax.set_mesh(mesh))
        stack.enter_context(linen.logical_axis_rules(config.logical_axis_rules))
        return stack

    return tree.Layer(lambda params, x: nnx.merge(definition, params, rest)(x)[0], given, scope)


EDITS = [
    Edit(
        WITHIN,
        "batch_size, sequence_length",
        None,
        "expert = lambda rows, w: self.apply_ffn_activation(rows @ w[0], rows @ w[1]) @ w[2]",
    ),
    Edit(
        WITHIN,
        "if self.config.num_moe_emb_chunks",
        "return",
        """
        weights, ids = self.get_topk(logits, pre_bias_logits, rngs, sharded_input_ids)
        *_, lb_loss, bias_updates, _ = self.permute(x, logits, pre_bias_logits, False, rngs)
        output = moe.layer(x, ids, weights, (w0, w1, wo), expert_fn=expert,
                           num_experts=self.num_experts, axis_name=self._expert_parallelism_name)
        return output, lb_loss, bias_updates
        """,
    ),
]
CASES = [
    tree.Case(
        module="maxtext.layers.moe",
        folder="src",
        build=build,
        exchanges=exchanges,
        absent=("grain", "maxtext.common.checkpointing", "tokamax", "transformers"),
        edits=EDITS,
        options={"use_ring_of_experts": ring, "megablox": ring},
        replaced={"mblx": types.SimpleNamespace(gmm=tree.some_groups)},
    )
    for ring, exchanges in [(False, 4), (True, 0)]
]
