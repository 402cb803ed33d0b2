"""Where rows land that cross to another server once: as `fastjax.moe` has it, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastjax.errors import ArgumentError

_MOST_SHARES = 1 << 15


def rows_to_devices(wanted: np.ndarray, nics: np.ndarray | None) -> np.ndarray:
    """The rows that each device sends to each device of other servers.

    Each rail carries its share of what one server sends another, by its speed. A device keeps its
    own rows on its own rail up to the share; the rest goes, in order, to the rails that have room.

    Args:
      wanted: rows of each device for each server, shape (servers, devices of a server, servers).
        Those for its own server do not count.
      nics: speed of each device's NIC, shape (servers, devices of a server); None if all are alike.

    Returns:
      int64, shape (devices, devices), server by server.
    """
    n, m = wanted.shape[:2]
    apart = ~np.eye(n, dtype=bool)
    have = wanted.transpose(0, 2, 1) * apart[..., None]  # source, target, device
    share = quotas(have.sum(2), rail_shares(n, m, nics))
    kept = np.minimum(have, share)
    moved = _overlaps(have - kept, share - kept) + kept[..., None] * np.eye(m, dtype=np.int64)
    return moved.transpose(0, 2, 1, 3).reshape(n * m, n * m)


def quotas(rows: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """What each rail carries of the rows between two servers, in whole rows.

    Rows of a remainder go to rails one after the other; which is first differs from pair to pair.

    Args:
      rows: shape (servers, servers).
      shares: how much each rail is to carry, shape (servers, servers, rails).

    Returns:
      int64, in the shape of `shares`, together `rows`.
    """
    n, m = len(rows), shares.shape[2]
    first = np.add.outer(np.arange(n), np.arange(n))[..., None]
    order = (np.arange(m) + first) % m
    upto = np.cumsum(np.take_along_axis(shares, order, 2), axis=2)
    ends = rows[..., None] * upto // upto[..., -1:]
    found = np.zeros_like(ends)
    np.put_along_axis(found, order, np.diff(ends, axis=2, prepend=0), 2)
    return found


def rail_shares(n: int, m: int, nics: np.ndarray | None) -> np.ndarray:
    """How much of what one server sends another each rail carries, in whole shares.

    A rail is as fast as the slower of its two NICs; where all have failed somewhere, rails are
    taken to be equal, and the planner sends rows round.

    Returns:
      int64, shape (servers, servers, devices of a server), of source and target server; those of
      one pair are at most 2^15 together.
    """
    equal = np.ones((n, n, m), np.int64)
    if nics is None:
        return equal
    rail = np.minimum(nics[:, None], nics[None, :])
    rail = np.where(rail.max(2, keepdims=True) > 0, rail, 1)
    if (rail == rail[..., :1]).all():
        return equal
    whole = np.rint(rail / rail.max(2, keepdims=True) * (_MOST_SHARES // m))
    return np.maximum(whole, rail > 0).astype(np.int64)


def _overlaps(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How much each two overlap of two lists of lengths with one sum, laid end to end."""
    left_end, right_end = np.cumsum(left, axis=-1), np.cumsum(right, axis=-1)
    ends = np.minimum(left_end[..., :, None], right_end[..., None, :])
    starts = np.maximum((left_end - left)[..., :, None], (right_end - right)[..., None, :])
    return np.maximum(ends - starts, 0)


def nic_speeds(given: Sequence[float] | None, servers: int, per_server: int) -> Any:
    """The speeds as an array, (servers, devices of a server); None where all are alike."""
    if given is None:
        return None
    speeds = np.asarray(given, np.float64)
    if speeds.shape != (servers * per_server,) or not (speeds >= 0).all():
        raise ArgumentError(
            f"nic_bandwidths must be {servers * per_server} numbers of 0 or more, one for each "
            f"device; got {given!r}."
        )
    return speeds.reshape(servers, per_server)
