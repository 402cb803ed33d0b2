"""Which device of a server computes which rows, where experts are levelled.

`traced.levelling` has devices by rank, server by server; layers have them by position.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import routing
from fastjax.moe.servers import Balance, Servers
from fastjax.traced import levelling
from fastjax.traced.levelling import Dealt, Levelled
from fastjax.traced.nonnegative import is_identity, look_up, permuted, quotient


def level(expert_rows: jax.Array, servers: Servers, balance: Balance | None) -> Levelled | None:
    """Chooses the experts that have copies, and the rows of each group of each device, by rank.

    Args:
      expert_rows: rows of all devices for each expert, shape (num_experts,).
      servers: where experts are.
      balance: how much may move; None if rows are computed at home.
    """
    if balance is None:
        return None
    of_devices = expert_rows.reshape(len(servers.rank_of), -1)
    return levelling.level(
        permuted(of_devices, servers.position_at).reshape(-1),
        servers=servers.count,
        devices=servers.devices,
        **dataclasses.asdict(balance),
    )


def deal(counts: jax.Array, levelled: Levelled | None, servers: Servers) -> Dealt:
    """Deals rows to the groups of devices; by position.

    Args:
      counts: rows of each device for each expert, shape (devices, num_experts); all that were
        levelled, or those of a chunk.
      levelled: by rank; None if rows are computed at home.
      servers: where experts are.
    """
    if levelled is None:
        return routing.at_home(counts)
    at, rank_of = servers.position_at, np.array(servers.rank_of)
    blocks = counts.reshape(len(counts), len(counts), -1)
    by_rank = permuted(jnp.moveaxis(permuted(blocks, at), 1, 0), at)  # of experts, then of senders
    by_rank = jnp.moveaxis(by_rank, 0, 1)
    sizes, starts = levelling.deal(
        by_rank.reshape(counts.shape), levelled, servers=servers.count, devices=servers.devices
    )
    if is_identity(rank_of):
        return Dealt(sizes, starts)
    # Senders have rows in the order of experts, which is that of positions.
    rows = by_rank.sum(-1, dtype=counts.dtype)
    before = lambda rows: jnp.cumsum(rows, axis=1, dtype=rows.dtype) - rows  # noqa: E731
    moved = look_up(before(look_up(rows, slice(None), rank_of)), slice(None), at) - before(rows)
    starts = starts + jnp.where(sizes > 0, look_up(moved, slice(None), _homes(levelled)), 0)
    by_position = lambda a: look_up(look_up(a, rank_of), slice(None), rank_of)  # noqa: E731
    return Dealt(by_position(sizes), by_position(starts))


def _homes(levelled: Levelled) -> jax.Array:
    """The rank of the home of each group's expert, shape (ranks, groups); 0 for unused slots."""
    ranks, copies = levelled.slots.shape
    here = levelled.rows.shape[1] - copies
    own = jnp.broadcast_to(jnp.arange(ranks, dtype=jnp.int32)[:, None], (ranks, here))
    return jnp.concatenate([own, quotient(jnp.maximum(levelled.slots, 0), here)], axis=1)


def of_kept(levelled: Levelled, kept: jax.Array, servers: Servers) -> Levelled:
    """The same slots, for the rows that found room: of each sender, device and group."""
    return levelled._replace(rows=permuted(kept.sum(0, dtype=kept.dtype), servers.position_at))


def of_server(levelled: Levelled, servers: Servers, server: jax.Array) -> Levelled:
    """Those of the devices of a server, whose experts are numbered from 0 on."""
    slots, rows = (
        look_up(array.reshape(servers.count, servers.devices, -1), server) for array in levelled
    )
    return Levelled(jnp.where(slots < 0, -1, slots - server * servers.experts), rows)
