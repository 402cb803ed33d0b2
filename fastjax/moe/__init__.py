"""Expert parallelism: tokens to the devices of their experts, and back.

`dispatch` sorts tokens by expert, plans once and sends; `combine` brings rows back and adds up what
each token's experts made of it. Both are called inside `jax.shard_map`:

    rows, group_sizes, handle = fastjax.moe.dispatch(
        x, expert_ids, num_experts=64, axis_name="expert")
    rows = jax.lax.ragged_dot(rows, expert_weights, group_sizes)
    tokens = fastjax.moe.combine(rows, handle, weights)

`layer` does all of that in one call, and in chunks of tokens if asked to, so that exchanges and
experts work side by side. On CPUs, `grouped_dot` in place of `jax.lax.ragged_dot`, or a whole
expert by `grouped_map`, costs what the rows that there are cost. `save_plans` is a policy for
`jax.checkpoint`.
"""

from fastjax.moe.checkpoint import save_plans
from fastjax.moe.dispatching import Handle, combine, dispatch, take_weights
from fastjax.moe.groups import grouped_dot, grouped_map
from fastjax.moe.router import LoadBalance, load_balance, route
from fastjax.moe.whole_layer import LayerStats, layer

__all__ = [
    "Handle",
    "LayerStats",
    "LoadBalance",
    "combine",
    "dispatch",
    "grouped_dot",
    "grouped_map",
    "layer",
    "load_balance",
    "route",
    "save_plans",
    "take_weights",
]


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
