"""Rows on their way: one exchange, plain or with a start and an end, in the type of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import wire
from fastjax.moe.routing import Offsets
from fastjax.traced.after import after as wait
from fastjax.traced.exchange import exchange_planned
from fastjax.traced.indexed_exchange import indexed_exchange
from fastjax.traced.plan import TracedPlan
from fastjax.traced.start_done import InFlight, done, start

Token = jax.Array | None
"""Exists once an exchange has begun, so that the next one begins after it. None: there is no order,
and exchanges are plain calls, which have derivatives."""

Flight = InFlight | jax.Array


class Transit(NamedTuple):
    """Rows that have been sent, and how they are to be unpacked."""

    flight: Flight
    layout: wire.Layout | None
    dtype: np.dtype

    @property
    def token(self) -> Token:
        """That of this exchange."""
        return token_of(self.flight)


def token_of(flight: Flight) -> Token:
    """The token of an exchange; None if it was a plain call."""
    return flight.token if isinstance(flight, InFlight) else None


def zeros(shape: tuple[int, ...], dtype: np.dtype, earlier: jax.Array) -> jax.Array:
    """Zeros that are written after `earlier`.

    XLA would write zeros that wait for nothing when the program begins: with many exchanges, all
    processors would be busy while devices meet for the first time, and the memory of all exchanges
    taken at once.
    """
    return jnp.broadcast_to(wait(jnp.zeros((), dtype), earlier), shape)


def send(
    rows: jax.Array,
    length: int,
    offsets: Offsets,
    plan: TracedPlan,
    token: Token,
    dtype: np.dtype | None = None,
    **indexing: Any,
) -> Flight:
    """Exchanges rows; where none arrives the result, of `length` rows, is zero.

    Args:
      rows: to send.
      length: of the result.
      offsets: of the exchange.
      plan: of it.
      token: of the exchange before; None for a plain call.
      dtype: of the result, where rows are summed in another type than theirs.
      **indexing: see `indexed_exchange`, where indices name the rows.
    """
    base = zeros((length, *rows.shape[1:]), dtype or rows.dtype, rows if token is None else token)
    if token is not None:
        return start(rows, base, offsets, plan, after=[token], **indexing)
    if indexing:
        return indexed_exchange(rows, base, offsets, plan=plan, **indexing)
    return exchange_planned(rows, base, offsets, plan)


def receive(flight: Flight, token: Token = None) -> jax.Array:
    """The result of an exchange, for what begins after its end, and after `token`."""
    if not isinstance(flight, InFlight):
        return flight
    return done(flight, after=[] if token is None else [token])


def depart(
    rows: jax.Array,
    beside: Sequence[jax.Array],
    length: int,
    offsets: Offsets,
    plan: TracedPlan,
    wire_dtype: np.dtype,
    token: Token,
) -> Transit:
    """Sends rows in the type of the wire, and arrays beside them in the same message."""
    dtype = rows.dtype
    layout = None
    if beside or wire.has_scales(wire_dtype, dtype):
        rows, layout = wire.packed(rows, wire_dtype, beside)
    else:
        rows = rows.astype(wire_dtype)
    return Transit(send(rows, length, offsets, plan, token), layout, dtype)


def arrive(transit: Transit, token: Token = None) -> tuple[jax.Array, list[jax.Array]]:
    """The rows, and the arrays beside them, once they have arrived and after `token`."""
    rows = receive(transit.flight, token)
    if transit.layout is None:
        return rows.astype(transit.dtype), []
    return wire.unpacked(rows, transit.layout, transit.dtype)


__all__ = [
    "Flight",
    "Token",
    "Transit",
    "arrive",
    "depart",
    "receive",
    "send",
    "token_of",
    "zeros",
]
