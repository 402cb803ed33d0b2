"""Rows on their way: one exchange, plain or with a start and an end, in the type of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import wire
from fastjax.moe.routing import Leg, Token
from fastjax.traced.after import after as wait
from fastjax.traced.planned_exchange import exchange_planned
from fastjax.traced.start_done import InFlight, done, start


class Transit(NamedTuple):
    """Rows that have been sent, the type that they are to have, and how they are packed if so."""

    flight: InFlight | jax.Array
    dtype: np.dtype
    layout: wire.Layout | None = None

    @property
    def token(self) -> Token:
        """That of this exchange; None if it was a plain call."""
        return self.flight.token if isinstance(self.flight, InFlight) else None

    def arrived(self, token: Token = None) -> tuple[jax.Array, list[jax.Array]]:
        """The rows, and the arrays beside them, once they have arrived and after `token`."""
        rows = self.flight
        if isinstance(rows, InFlight):
            rows = done(rows, after=[] if token is None else [token])
        if self.layout is None:
            return rows.astype(self.dtype), []
        return wire.unpacked(rows, self.layout, self.dtype)

    def rows(self, token: Token = None) -> jax.Array:
        """The rows alone."""
        return self.arrived(token)[0]


def send(
    rows: jax.Array, leg: Leg, token: Token, dtype: np.dtype | None = None, **indexing: Any
) -> Transit:
    """Exchanges rows; where none arrives the result is zero.

    Args:
      rows: to send.
      leg: the exchange.
      token: of the exchange before; None for a plain call.
      dtype: of the result, where rows are summed in another type than theirs.
      **indexing: see `planned_operands`, where indices name the rows.
    """
    dtype, (offsets, plan, length) = dtype or rows.dtype, leg
    # After the rows, or the exchange before: XLA would write zeros that wait for nothing when the
    # program begins. With many exchanges, all processors would be busy while devices meet for the
    # first time, and the memory of all exchanges taken at once.
    zero = wait(jnp.zeros((), dtype), rows if token is None else token)
    base = jnp.broadcast_to(zero, (length, *rows.shape[1:]))
    if token is not None:
        return Transit(start(rows, base, offsets, plan, after=[token], **indexing), dtype)
    return Transit(exchange_planned(rows, base, offsets, plan, **indexing), dtype)


def depart(
    rows: jax.Array, beside: Sequence[jax.Array], leg: Leg, wire_dtype: np.dtype, token: Token
) -> Transit:
    """Sends rows in the type of the wire, and arrays beside them in the same message."""
    if not beside and not wire.has_scales(wire_dtype, rows.dtype):
        return send(rows.astype(wire_dtype), leg, token)._replace(dtype=rows.dtype)
    packed, layout = wire.packed(rows, wire_dtype, beside)
    return Transit(send(packed, leg, token).flight, rows.dtype, layout)
