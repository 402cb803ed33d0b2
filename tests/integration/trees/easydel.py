"""EasyDeL: all devices have all tokens, and results travel by an exchange.

The kernel for TPUs and GPUs, `grouped_matmul`, is replaced: `jax.lax.ragged_dot` computes the same.
"""

import functools
import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import tree
from edits import Edit

WITHIN = "BaseMoeModule._sparse_moe_call"


def _times(matrix: jax.Array, rows: jax.Array) -> jax.Array:
    return rows @ matrix


def gmm(rows: jax.Array, kernel: jax.Array, group_sizes: jax.Array, **_: Any) -> jax.Array:
    return jax.lax.ragged_dot(rows, kernel, group_sizes)


def build(module: ModuleType) -> tree.Layer:
    axis_types = (jax.sharding.AxisType.Auto,) * 3
    mesh = jax.make_mesh((1, 4, 2), ("dp", "ep", "tp"), axis_types=axis_types)
    names = {module.DP: "dp", module.EP: "ep", module.TP: "tp", module.FSDP: None, module.SP: None}

    def resolve_axis(axes: Sequence[Any], mode: Any) -> list[Any]:
        return [names[axis] for axis in axes]

    config = types.SimpleNamespace(
        mesh=mesh,
        expert_mesh=mesh,
        auto_expert_mesh=mesh,
        expert_abstract_mesh=mesh.abstract_mesh,
        moe_method=None,
        n_routed_experts=tree.EXPERTS,
        num_experts_per_tok=tree.TOP_K,
        hidden_size=tree.WIDTH,
        partition_manager=types.SimpleNamespace(
            paxis=types.SimpleNamespace(resolve_axis=resolve_axis),
            resolve=lambda **_: jax.P("dp", None, "tp"),
        ),
        use_expert_tensor_mode=False,
        use_ring_of_experts=False,
        fsdp_is_ep_bound=False,
        sp_is_ep_bound=False,
        moe_force_xla_gmm=True,
    )

    class Sparse(module.BaseMoeModule):
        dtype = jax.numpy.float32

        def __call__(self) -> None: ...

    layer = Sparse(config)
    router, kernels = tree.router_and_kernels()

    def function(params: Any, x: jax.Array) -> jax.Array:
        router, kernels = params
        gate = functools.partial(_times, router)
        return layer._sparse_moe_call(x, gate, *kernels, act_fn=jax.nn.silu)[0]

    given = [(tree.prefer_first(router, preference), kernels) for preference in tree.PREFERENCES]
    return tree.Layer(function, given)


EDITS = [
    Edit(
        WITHIN,
        "expert_mesh",
        None,
        """
        gate_logits = get_experts_location(gate_logits, None, select_hook, refine_weights_hook,
                                           num_experts_per_tok=self.num_experts_per_tok)
        """,
    ),
    Edit(
        WITHIN,
        "use_expert_tensor",
        None,
        "expert = lambda rows, w: ffn_activation(rows @ w[0], rows @ w[1]) @ w[2]",
    ),
    Edit(
        f"{WITHIN}._sparse_call",
        "batch_size, ",
        "intermediate_output = checkpoint_name",
        """
        intermediate_output = moe.layer(x.reshape(-1, HD), *gate_logits[::-1],
            (wi_kernel, wu_kernel, wd_kernel), expert_fn=expert, replicated=True,
            num_experts=self.n_routed_experts, axis_name=expert_axis_name)
        """,
    ),
    Edit(
        f"{WITHIN}._sparse_call",
        "if wd_bias is not None",
        "return",
        "return intermediate_output.reshape(*x.shape[:2], -1)",
    ),
]
CASES = [
    tree.Case(
        module="easydel.layers.moe._moe_module",
        build=build,
        exchanges=2,
        own_gradients=False,
        bare=("easydel", "easydel.layers", "easydel.layers.moe"),
        absent=("easydel.utils", "eformer", "ejkernel"),
        replaced={"grouped_matmul": gmm},
        edits=EDITS,
    )
]
