"""Rows on their way: one exchange, plain or with a start and an end, in the type of the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import wire
from fastjax.moe.routing import Crossing, Route, Token
from fastjax.traced.after import after as wait
from fastjax.traced.planned_exchange import exchange_planned
from fastjax.traced.start_done import done, start

Arrays = tuple[jax.Array, ...]
Trip = Route | Crossing


class Begun(NamedTuple):
    """Arrays on their way.

    Attributes:
      token: of their exchange; None if it was a plain call.
      results: waits for them; they are there after a token.
    """

    token: Token
    results: Callable[[Token], Arrays]

    def rows(self, token: Token = None) -> jax.Array:
        """The first of them, once they have come and after `token`."""
        return self.results(token)[0]

    def then(self, function: Callable[..., Arrays]) -> Begun:
        """The results of a function of them."""
        return Begun(self.token, lambda token: function(*self.results(token)))


def send(
    rows: jax.Array,
    way: Trip,
    token: Token,
    *,
    back: bool = False,
    length: int | None = None,
    dtype: np.dtype | None = None,
    **indexing: Any,
) -> Begun:
    """Exchanges rows; where none arrives the result is zero.

    Args:
      rows: to send.
      way: that they take.
      token: of the exchange before; None for a plain call.
      back: whether they go the way back.
      length: rows of the result, where indices say where they are added up.
      dtype: of the result, where rows are summed in another type than theirs.
      **indexing: see `planned_operands`, where indices name the rows.
    """
    offsets, plan, arriving = way.dispatch, way.plan, way.rows
    if back:
        offsets, plan, arriving = way.combine, plan.transpose(), way.returning
    # After the rows, or the exchange before: XLA would write zeros that wait for nothing when the
    # program begins. With many exchanges, all processors would be busy while devices meet for the
    # first time, and the memory of all exchanges taken at once.
    zero = wait(jnp.zeros((), dtype or rows.dtype), rows if token is None else token)
    base = jnp.broadcast_to(zero, (arriving if length is None else length, *rows.shape[1:]))
    if token is None:
        made = exchange_planned(rows, base, offsets, plan, **indexing)
        return Begun(None, lambda _: (made,))
    flight = start(rows, base, offsets, plan, after=[token], **indexing)
    received = lambda token: (done(flight, after=[] if token is None else [token]),)  # noqa: E731
    return Begun(flight.token, received)


def depart(
    arrays: Arrays, way: Trip, token: Token, wire_dtype: np.dtype, *, back: bool = False
) -> Begun:
    """Sends rows in the type of the wire, and the arrays behind them in the same message.

    Arrays of no columns are not sent, and none arrives.
    """
    rows, *beside = arrays
    dtypes = [array.dtype for array in arrays]
    wire_dtype = wire_dtype if rows.shape[1] else rows.dtype
    if wire.has_scales(wire_dtype, rows.dtype) or any(array.shape[1] for array in beside):
        words, unpack = wire.packed(rows, wire_dtype, beside)
        return send(words, way, token, back=back).then(unpack)

    def received(rows: jax.Array) -> Arrays:
        nothing = (jnp.zeros_like(rows, dtype, shape=(len(rows), 0)) for dtype in dtypes[1:])
        return rows.astype(dtypes[0]), *nothing

    return send(rows.astype(wire_dtype), way, token, back=back).then(received)
