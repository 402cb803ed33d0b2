"""On which device of its target server each row lands that crosses to another server.

Each rail carries its share of what one server sends another. A device keeps its own rows on its own
rail as far as the share goes; what is left of them goes to the rails that have room, in order. So
NICs are balanced, no row is moved inside its server that need not be, and none is after it landed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe.servers import Servers
from fastjax.traced.nonnegative import quotient, remainder


def rows_to_devices(wanted: jax.Array, servers: Servers) -> jax.Array:
    """The rows that each device sends each, all in whole numbers: the same on every host.

    Args:
      wanted: int32, shape (ranks, servers): rows of each device for each server. Those for its own
        do not count.
      servers: of the group.

    Returns:
      int32, shape (ranks, ranks), of source and target; none inside a server.
    """
    n, m = servers.count, servers.devices
    apart = 1 - np.eye(n, dtype=np.int32)
    have = jnp.moveaxis(wanted.reshape(n, m, n), 1, 2) * apart[..., None]  # source, target, device
    share = quotas(have.sum(-1, dtype=have.dtype), servers)
    kept = jnp.minimum(have, share)
    moved = _overlaps(have - kept, share - kept)
    moved += kept[..., None] * np.eye(m, dtype=np.int32)[None, None]
    # From (source, target, source's device, target's device).
    return jnp.transpose(moved, (0, 2, 1, 3)).reshape(n * m, n * m)


def quotas(rows: jax.Array, servers: Servers) -> jax.Array:
    """What each rail carries of the rows between two servers.

    Args:
      rows: int32, shape (servers, servers).
      servers: of the group.

    Returns:
      int32, shape (servers, servers, rails): within one row of the rail's share, together `rows`.
    """
    order = _remainder_order(servers)
    shares = np.take_along_axis(servers.rail_shares(), order, 2)
    upto = np.cumsum(np.pad(shares, ((0, 0), (0, 0), (1, 0))), axis=2, dtype=np.int32)
    total = upto[..., -1:]
    # rows * upto // total, in which the product may be more than int32 holds.
    rows = rows[..., None]
    parts = remainder(rows, total) * upto
    upto_rail = quotient(rows, total) * upto + quotient(parts, np.broadcast_to(total, upto.shape))
    each = jnp.diff(upto_rail, axis=2)
    return jnp.take_along_axis(each, np.argsort(order, 2), 2, mode="promise_in_bounds")


def room(tokens: int, servers: Servers) -> int:
    """The most rows that can land on a device if each has up to `tokens` for each other server."""
    n = servers.count
    shares = servers.rail_shares().astype(np.int64)
    most = servers.devices * tokens * shares
    total = shares.sum(2, keepdims=True)
    each = -(-most // total) * ~np.eye(n, dtype=bool)[..., None]
    return int(each.sum(0).max(initial=0))


def _remainder_order(servers: Servers) -> np.ndarray:
    """The order in which rails get the rows of a remainder: another for each pair of servers."""
    pair = np.add.outer(np.arange(servers.count), np.arange(servers.count))
    return (np.arange(servers.devices) + pair[..., None]) % servers.devices


def _overlaps(left: jax.Array, right: jax.Array) -> jax.Array:
    """Pairs two lists of lengths, laid end to end, whose sums agree: how much each two overlap."""
    left_end, right_end = (jnp.cumsum(x, axis=-1, dtype=x.dtype) for x in (left, right))
    ends = jnp.minimum(left_end[..., :, None], right_end[..., None, :])
    starts = jnp.maximum((left_end - left)[..., :, None], (right_end - right)[..., None, :])
    return jnp.maximum(ends - starts, 0)
