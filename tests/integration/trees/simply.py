"""Google DeepMind's simply: rows travel by two ragged exchanges."""

import functools
import types
from types import ModuleType

import jax
import tree
from edits import Edit

WITHIN = "MoEFeedForward._apply_sparse_moe.moe_ffn"


def build(module: ModuleType) -> tree.Layer:
    shardings = types.SimpleNamespace(
        activation_partition=("data", None, None),
        ffn0_partition=("data", None, None),
        ffn1_partition=("data", None, None),
        mesh_axis_names=("data",),
    )
    layer = module.MoEFeedForward(
        model_dim=tree.WIDTH,
        expand_factor=tree.INNER // tree.WIDTH,
        sharding_config=shardings,
        use_gated_activation_in_ffn=True,
        activation_dtype="float32",
        ffn_use_bias=False,
        num_experts=tree.EXPERTS,
        num_experts_per_token=tree.TOP_K,
    )
    mesh = jax.make_mesh((tree.DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        params = module.get_raw_arrays(layer.init(jax.random.key(0)))
    given = []
    for preference in tree.PREFERENCES:
        router = {"w": tree.prefer_first(params["router"]["w"], preference)}
        given.append(params | {"router": router})
    scope = functools.partial(jax.set_mesh, mesh)
    return tree.Layer(lambda params, x: layer.apply(params, x)[0], given, scope)


EDITS = [
    Edit(
        WITHIN,
        "def all_gather_if_sharded",
        None,
        """
        act = registry.FunctionRegistry.get(self.ffn_activation)
        expert = lambda rows, w: (act(rows @ w[1]) * (rows @ w[0])) @ w[2]
        """,
    ),
    Edit(
        WITHIN,
        "local_batch_size",
        "group_sizes",
        "group_sizes = jnp.bincount(selected_indices.ravel(), length=self.num_experts)",
    ),
    Edit(
        WITHIN,
        "local_num_tokens",
        "outputs = jnp.einsum",
        """
        experts = ffn0_w, ffn0_gate_w, ffn1_w
        outputs = moe.layer(inputs, selected_indices, selected_weights, experts,
                            expert_fn=expert, num_experts=self.num_experts, axis_name=ep_axis)
        """,
    ),
]
CASES = [
    tree.Case(
        module="simply.model_lib",
        build=build,
        exchanges=4,
        absent=("grain", "orbax", "sentencepiece", "tokenizers", "tensorboardX", "wandb"),
        edits=EDITS,
    )
]
