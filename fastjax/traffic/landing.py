"""On which device of its target server each row lands that crosses to another server.

Each rail carries its share of what one server sends another. A device keeps its own rows on its own
rail as far as the share goes; what is left of them goes to the rails that have room, in order. So
NICs are balanced, no row is moved inside its server that need not be, and none is after it landed.

Arrays are those of `xp`: numpy, or the traced ones of `fastjax.moe`, whose sums and products int32
holds as long as it holds the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError

_MOST_SHARES = 1 << 15


def rows_to_devices(
    wanted: Any, shares: np.ndarray, xp: Any = np, divide: Callable[..., Any] = np.floor_divide
) -> Any:
    """The rows that each device sends each, all in whole numbers: the same on every host.

    Args:
      wanted: rows of each device for each server, shape (servers, devices of a server, servers).
        Those for its own server do not count.
      shares: see `rail_shares`.
      xp: numpy, or what has its functions for such arrays.
      divide: quotients of numbers that are not negative, rounded down.

    Returns:
      Of source and target, shape (devices, devices), server by server; none inside a server.
    """
    n, m = wanted.shape[:2]
    apart = 1 - np.eye(n, dtype=np.int32)
    have = wanted.transpose(0, 2, 1) * apart[..., None]  # source, target, device
    share = quotas(have.sum(-1, dtype=have.dtype), shares, divide)
    kept = xp.minimum(have, share)
    moved = _overlaps(have - kept, share - kept, xp)
    moved += kept[..., None] * np.eye(m, dtype=np.int32)[None, None]
    # From (source, target, source's device, target's device).
    return moved.transpose(0, 2, 1, 3).reshape(n * m, n * m)


def quotas(rows: Any, shares: np.ndarray, divide: Callable[..., Any] = np.floor_divide) -> Any:
    """What each rail carries of the rows between two servers, in whole rows.

    Rows of a remainder go to rails one after the other; which is first differs from pair to pair.

    Args:
      rows: shape (servers, servers).
      shares: see `rail_shares`.
      divide: see `rows_to_devices`.

    Returns:
      In the shape of `shares`: within one row of the rail's share, together `rows`.
    """
    n, m = shares.shape[1:]
    first = np.add.outer(np.arange(n), np.arange(n))[..., None]
    order = (np.arange(m) + first) % m
    upto = np.cumsum(np.take_along_axis(shares, order, 2), axis=2, dtype=shares.dtype)
    ends, total = np.take_along_axis(upto, np.argsort(order, 2), 2), upto[..., -1:]
    # rows * ends // total, in which the product may be more than int32 holds.
    whole = divide(rows[..., None], total)
    part = rows[..., None] - whole * total
    before, upto = (
        divide(part * end, np.broadcast_to(total, end.shape)) for end in (ends - shares, ends)
    )
    return whole * shares + upto - before


def room(tokens: int, shares: np.ndarray) -> int:
    """The most rows that can land on a device if each has up to `tokens` for each other server."""
    n, _, m = shares.shape
    most = m * tokens * shares.astype(np.int64)
    each = -(-most // shares.sum(2, keepdims=True)) * ~np.eye(n, dtype=bool)[..., None]
    return int(each.sum(0).max(initial=0))


def rail_shares(n: int, m: int, nics: Sequence[float] | None) -> np.ndarray:
    """How much of what one server sends another each rail carries, in whole shares.

    A rail is as fast as the slower of its two NICs; where all have failed somewhere, rails are
    taken to be equal, and the planner sends rows round.

    Args:
      n: servers.
      m: devices of each.
      nics: speed of each device's NIC; None if all are alike.

    Returns:
      int32, shape (servers, servers, devices of a server), of source and target server; those of
      one pair are at most 2^15 together.

    Raises:
      ArgumentError: nics are not one number of 0 or more for each device.
    """
    equal = np.ones((n, n, m), np.int32)
    if nics is None:
        return equal
    speeds = np.asarray(nics, np.float64)
    if speeds.shape != (n * m,) or not (speeds >= 0).all():
        raise ArgumentError(
            f"nic_bandwidths must be {n * m} numbers of 0 or more, one for each device; got "
            f"{nics!r}."
        )
    speeds = speeds.reshape(n, m)
    rail = np.minimum(speeds[:, None], speeds[None, :])
    rail = np.where(rail.max(2, keepdims=True) > 0, rail, 1)
    if (rail == rail[..., :1]).all():
        return equal
    whole = np.rint(rail / rail.max(2, keepdims=True) * (_MOST_SHARES // m))
    return np.maximum(whole, rail > 0).astype(np.int32)


def _overlaps(left: Any, right: Any, xp: Any) -> Any:
    """Pairs two lists of lengths, laid end to end, whose sums agree: how much each two overlap."""
    left_end, right_end = (xp.cumsum(x, axis=-1, dtype=x.dtype) for x in (left, right))
    ends = xp.minimum(left_end[..., :, None], right_end[..., None, :])
    starts = xp.maximum((left_end - left)[..., :, None], (right_end - right)[..., None, :])
    return xp.maximum(ends - starts, 0)
