"""The layer of Qwen3 in jax-llm-examples: all devices have all tokens, and results are summed."""

import dataclasses
import functools
from types import ModuleType

import jax
import jax.numpy as jnp
import tree
from edits import Edit

WITHIN = "moe_block"


def build(module: ModuleType) -> tree.Layer:
    mesh = jax.make_mesh(
        (1, 2, 4), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Explicit,) * 3
    )
    config = module.Config(
        embed=tree.WIDTH,
        moe_ffw_size=tree.INNER,
        moe_experts_per_tok=tree.TOP_K,
        moe_num_experts=tree.EXPERTS,
        dtype=jnp.float32,
        mesh=mesh,
        # These are of other layers.
        q_heads=1,
        kv_heads=1,
        num_layers=1,
        head_dim=1,
        vocab_size=1,
        max_seq_len=1,
        causal=True,
    )
    with jax.set_mesh(mesh):
        params = module.MoELayer.init(jax.random.key(0), config)
        given = [
            dataclasses.replace(params, w_router=tree.prefer_first(params.w_router, preference))
            for preference in tree.PREFERENCES
        ]
    scope = functools.partial(jax.set_mesh, mesh)
    return tree.Layer(lambda params, x: module.moe_block(x, params, config), given, scope)


EDITS = [
    Edit(
        WITHIN,
        "@partial",
        None,
        "expert = lambda rows, w: (jax.nn.silu(rows @ w[0]) * (rows @ w[1])) @ w[2]",
    ),
    Edit(
        f"{WITHIN}._expert_fn",
        "(b, s, d), e",
        "with jax.named_scope('experts_collective')",
        """
        out = moe.layer(x, topk_idx, topk_weights, (we_gate, we_up, we_down), expert_fn=expert,
                        num_experts=cfg.moe_num_experts, axis_name=expert_axname, replicated=True)
        return jax.lax.psum(out, tensor_axname)
        """,
    ),
]
CASES = [
    tree.Case(
        module="qwen3_jax.model",
        folder="qwen3",
        build=build,
        exchanges=0,
        absent=("tqdm",),
        edits=EDITS,
    )
]
