"""Shares out room where there is not enough for all rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fastjax.traced.nonnegative import quotient_up

_BITS = 31  # of a count


def share_out(wanted: jax.Array, room: jax.Array) -> jax.Array:
    """Gives everyone what they want, up to a level that is the same for all and just fits.

    So the most popular lose first, and no room is left while anyone wants more.

    Args:
      wanted: int32, shape (..., n), not negative; sums stay below 2^31.
      room: int32, shape (...).

    Returns:
      What each gets, shape (..., n): at most what it wanted, together at most `room`.
    """

    def raise_level(i: jax.Array, level: jax.Array) -> jax.Array:
        higher = level + (1 << (_BITS - 1 - i))
        needed = jnp.minimum(wanted, higher[..., None]).sum(-1, dtype=wanted.dtype)
        return jnp.where(needed <= room, higher, level)

    level = jax.lax.fori_loop(0, _BITS, raise_level, room * 0)[..., None]
    given = jnp.minimum(wanted, level)
    short = wanted > level
    left = room[..., None] - given.sum(-1, dtype=given.dtype, keepdims=True)
    return given + (short & (jnp.cumsum(short, axis=-1) <= left)).astype(given.dtype)


def keep(counts: jax.Array, rows: int, alignment: int) -> jax.Array:
    """Which of the rows that go to each expert find room on its device.

    Experts share the room of their device, then senders that of their expert.

    Args:
      counts: int32, shape (senders, devices, experts of a device).
      rows: room of each device; a multiple of alignment.
      alignment: each expert's rows fill up a multiple of this.

    Returns:
      Rows that stay, of the same shape.
    """
    wanted = counts.sum(0, dtype=counts.dtype)  # (devices, experts of a device)
    room = jnp.full_like(wanted[:, 0], rows // alignment)
    given = share_out(quotient_up(wanted, alignment), room) * alignment
    return jnp.moveaxis(share_out(jnp.moveaxis(counts, 0, -1), jnp.minimum(wanted, given)), -1, 0)
