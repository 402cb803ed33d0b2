"""TransformerEngine's permutation, in a layer of ours that calls it as its comments say.

The chunks that a device received are sorted by a Triton kernel, which is replaced.
"""

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import tree
from edits import Edit


def sort_chunks(rows: jax.Array, sizes: jax.Array, order: jax.Array) -> tuple[jax.Array, None]:
    """Rows of chunks, which are so long, one chunk after the other in another order."""
    starts, ordered = jnp.cumsum(sizes) - sizes, sizes[order]
    shifts = starts[order] - (jnp.cumsum(ordered) - ordered)
    taken = jnp.arange(len(rows))
    shifts = jnp.repeat(shifts, ordered, total_repeat_length=len(rows))
    return rows[jnp.where(taken < sizes.sum(), taken + shifts, taken)], None


def block(permutation: Any, x: Any, ids: Any, weights: Any, params: Any) -> jax.Array:
    shard, (gate, up, down) = jax.lax.axis_index("ep"), params
    rows, state, sizes = permutation.pure_jax_token_dispatch(x, ids, tree.EXPERTS, tree.TOP_K)
    every = jax.lax.all_gather(sizes, "ep")
    there = permutation.compute_ragged_all_to_all_params(every, shard, tree.DEVICES)
    back = permutation.compute_reverse_ragged_all_to_all_params(every, shard, tree.DEVICES)
    room = jnp.zeros((tree.DEVICES * len(rows), tree.WIDTH), rows.dtype)
    sent = jax.lax.ragged_all_to_all(rows, room, *there, axis_name="ep")
    sent, sizes, chunks = permutation.local_permute_after_a2a(sent, every, shard, tree.DEVICES)
    hidden = jax.nn.silu(jax.lax.ragged_dot(sent, gate, sizes))
    sent = jax.lax.ragged_dot(hidden * jax.lax.ragged_dot(sent, up, sizes), down, sizes)
    sent = permutation.local_unpermute_before_a2a(sent, chunks)
    rows = jax.lax.ragged_all_to_all(sent, jnp.zeros_like(rows), *back, axis_name="ep")
    return permutation.pure_jax_token_combine(rows, state, weights, tree.TOP_K, *x.shape[:2])


def build(module: ModuleType) -> tree.Layer:
    from transformer_engine.jax import permutation

    permutation.sort_chunks_by_index = sort_chunks
    mesh = jax.make_mesh((tree.DEVICES,), ("ep",), axis_types=(jax.sharding.AxisType.Auto,))
    router, experts = tree.router_and_kernels()

    def on_device(x: jax.Array, router: jax.Array, experts: Any) -> jax.Array:
        weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router), tree.TOP_K)
        return module.block(permutation, x, ids, weights, experts)

    spread = jax.P("ep")
    mapped = jax.shard_map(
        on_device, check_vma=False, mesh=mesh, in_specs=(spread, jax.P(), spread), out_specs=spread
    )
    given = [(tree.prefer_first(router, preference), experts) for preference in tree.PREFERENCES]
    return tree.Layer(lambda params, x: mapped(x, *params), given)


EDITS = [
    Edit(
        "block",
        "shard, ",
        "return",
        """
        expert = lambda rows, w: (jax.nn.silu(rows @ w[0]) * (rows @ w[1])) @ w[2]
        return moe.layer(x, ids, weights, params, expert_fn=expert, num_experts=tree.EXPERTS,
                         axis_name="ep")
        """,
    )
]
CASES = [
    tree.Case(
        module=__name__,
        build=build,
        exchanges=4,
        bare=("transformer_engine", "transformer_engine.jax"),
        edits=EDITS,
    )
]
