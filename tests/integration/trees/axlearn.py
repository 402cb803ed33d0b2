"""Apple's axlearn: rows travel by two ragged exchanges, with room for all."""

from types import ModuleType

import jax
import tree
from edits import Edit

WITHIN = "TransformerFeedForwardDropFreeMoE._dispatch_and_combine"


def build(module: ModuleType) -> tree.Layer:
    from axlearn.common.module import functional

    config = module.ApproximateTokenDropFreeMoE.default_config().set(
        name="moe",
        input_dim=tree.WIDTH,
        hidden_dim=tree.INNER,
        activation=("nn.silu", "linear"),
        structure="nonorm",
        num_experts=tree.EXPERTS,
        num_groups=1,
        gating=module.TopKDropFreeGating.default_config().set(gating_logit_cap=0),
        gmm_backend=module.GMMBackend.RAGGED_DOT,
        tiling=(128, 128, 128),
        preferred_element_type=jax.numpy.float32,
        expert_parallel_capacity=float(tree.DEVICES),
    )
    names = "pipeline", "data", "expert", "fsdp", "seq", "model"
    types = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.make_mesh((1, 1, tree.DEVICES, 1, 1, 1), names, axis_types=types)
    layer = config.instantiate(parent=None)
    with mesh:
        params = layer.initialize_parameters_recursively(jax.random.key(0))

    def function(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        given = {"inputs": x}
        return functional(layer, jax.random.key(3), params, given, is_training=True)[0]

    given = [
        params | {"gate_weight": tree.prefer_first(params["gate_weight"], preference)}
        for preference in tree.PREFERENCES
    ]
    return tree.Layer(function, given, lambda: mesh)


EDITS = [
    Edit(WITHIN, "kbsm_out_spec", "kbsm_out_spec", "kbsm_out_spec = bsm_out_spec"),
    Edit(
        WITHIN,
        "@jax.jit",
        None,
        """
        acts = [get_activation_fn(name) for name in cfg.activation]
        expert = lambda rows, w: (acts[0](rows @ w[0]) * acts[1](rows @ w[1])) @ w[2]
        """,
    ),
    Edit(
        f"{WITHIN}.wrapper",
        "gate_assignment = jnp.transpose",
        "return",
        """
        y, stat = moe.layer(x, *gate_assignment, (wi_0, wi_1, wo), axis_name="expert",
                            expert_fn=expert, num_experts=cfg.num_experts, return_stats=True)
        return lax.psum_scatter(y, "model", scatter_dimension=2, tiled=True), stat.dropped[None]
        """,
    ),
    Edit(
        WITHIN,
        "out, *additional_outputs",
        None,
        "gate_assignment = gate_assignment, expert_weights",
    ),
    Edit(WITHIN, "out = jnp.einsum", "out = jnp.einsum", ""),
]
CASES = [
    tree.Case(
        module="axlearn.common.mixture_of_experts",
        build=build,
        exchanges=6,
        absent=("seqio", "tensorflow", "tensorflow_datasets", "tokamax"),
        edits=EDITS,
    )
]
