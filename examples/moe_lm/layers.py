"""The layer of experts, in the ways that are compared: `moe.layer`, and padded all_to_alls.

Both run inside `jax.shard_map`, on tokens x of shape (tokens, width), their choices and the weights
of these, shape (tokens, k), and a device's own experts: two matrices each, shapes (experts of a
device, width, inner) and (experts of a device, inner, width). They return tokens, and how many
chose each expert on all devices, shape (experts,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fastjax import Topology, moe

AXIS = "expert"

Layer = Callable[[Any, Any, Any, tuple[Any, Any]], tuple[Any, Any]]


def fast(
    scheduler: str | None = None,
    topology: Topology | None = None,
    *,
    deduplicate: bool | None = None,
    chunks: int | None = None,
) -> Layer:
    """Rows travel as they are; experts work on those that there are. See `fastjax.moe.layer`."""

    def layer(x: Any, ids: Any, weights: Any, experts: tuple[Any, Any]) -> tuple[Any, Any]:
        result, stats = moe.layer(
            x,
            ids,
            weights,
            experts,
            expert_fn=_expert,
            num_experts=experts[0].shape[0] * jax.lax.axis_size(AXIS),
            axis_name=AXIS,
            scheduler=scheduler,
            topology=topology,
            deduplicate=deduplicate,
            chunks=chunks,
            return_stats=True,
        )
        return result, stats.expert_rows

    return layer


def _expert(rows: Any, matrices: tuple[Any, Any]) -> Any:
    return jax.nn.relu(rows @ matrices[0]) @ matrices[1]


def dense(x: Any, ids: Any, weights: Any, experts: tuple[Any, Any]) -> tuple[Any, Any]:
    """What there is without ragged exchanges: every expert has a slot for every token.

    A token's row is in its own slot of each expert that it chose; the other slots are zero, travel
    and are multiplied all the same. With fewer slots, tokens would be dropped.
    """
    (tokens, width), devices = x.shape, jax.lax.axis_size(AXIS)
    here = experts[0].shape[0]
    chosen = jax.nn.one_hot(ids, devices * here, dtype=x.dtype).sum(1)
    packed = chosen.T[:, :, None] * x
    packed = packed.reshape(devices, here, tokens, width)
    arrived = jax.lax.all_to_all(packed, AXIS, 0, 0)  # (senders, experts here, tokens, width)
    rows = jnp.swapaxes(arrived, 0, 1).reshape(here, devices * tokens, width)
    rows = jax.nn.relu(jnp.einsum("erw,ewi->eri", rows, experts[0]))
    rows = jnp.einsum("eri,eiw->erw", rows, experts[1])
    back = jnp.swapaxes(rows.reshape(here, devices, tokens, width), 0, 1)
    returned = jax.lax.all_to_all(back, AXIS, 0, 0).reshape(devices * here, tokens, width)
    own = returned[ids, jnp.arange(tokens)[:, None]]  # (tokens, k, width)
    each = jnp.bincount(ids.ravel(), length=devices * here)
    rows = jax.lax.all_gather(each, AXIS).sum(0)
    return (own * weights[:, :, None]).sum(1), rows
