"""Exchanges of rows as linear maps, with one derivative rule: transposes send cotangents.

An exchange is plain or has a start and an end, and is in the type of the wire.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

from fastjax import jax_compat
from fastjax.moe import wire
from fastjax.moe.routing import Crossing, Route, Token
from fastjax.traced.after import after as wait
from fastjax.traced.planned_exchange import exchange_planned
from fastjax.traced.reverse_mode import in_reverse_mode
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


Start = Callable[[Arrays, Any, Token, np.dtype], Begun]
"""Sends operands along a way, after a token, by a type.

Without a token JAX finds derivatives, with one there are none.
"""


def named(scope: str, start: Start) -> Start:
    """Names the operations of a start, and of what it begins: for statistics and profiles."""

    @functools.wraps(start)
    def begin(*args: Any) -> Begun:
        begun = jax.named_scope(scope)(start)(*args)
        return begun._replace(results=jax.named_scope(scope)(begun.results))

    return begin


@dataclasses.dataclass(frozen=True)
class Map:
    """A linear map of arrays, of which the n-th result is made of the n-th operand alone.

    It is an exchange along a way, with a start and an end. An array of no columns stands for one
    that is left out. Integers have no derivatives.

    Attributes:
      there: starts it.
      back: starts its transpose.
      dtype: of rows on the wire, or of sums.
      dtype_back: the same of the transpose, and of further ones.
    """

    there: Start
    back: Start
    dtype: np.dtype
    dtype_back: np.dtype

    def start(self, operands: Arrays, way: Trip, token: Token) -> Begun:
        """Sends the operands."""
        return self.there(operands, way, token, self.dtype)

    @property
    def transposed(self) -> Map:
        """The way back of cotangents."""
        return Map(self.back, self.there, self.dtype_back, self.dtype_back)


def begin(linear: Map, operands: Arrays, way: Trip, token: Token) -> Begun:
    """Begins a linear map after a token, or, without an order, applies it; see `apply`."""
    if token is not None:
        return linear.start(operands, way, token)
    made = apply(linear, operands, way)
    return Begun(None, lambda _: made)


def apply(linear: Map, operands: Arrays, way: Trip) -> Arrays:
    """The results of a linear map.

    Cotangents that nobody wants, or that are known to be zero, are not sent.
    """
    operands, way = jax_compat.vary_together((operands, way), way.plan.axis_name)
    return _applied(linear, in_reverse_mode(operands), way)


def _applied(linear: Map, operands: Arrays, way: Trip) -> Arrays:
    return jax_compat.with_symbolic_zeros(functools.partial(_apply, linear), operands, way)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(linear: Map, operands: Arrays, way: Trip) -> Arrays:
    return linear.start(operands, way, None).results(None)


def _forward(linear: Map, *primals: Any) -> Any:
    operands, way = custom_vjp_primal_tree_values(primals)
    made: Any = _apply(linear, operands, way)  # which further derivatives need
    # None where nobody wants a cotangent.
    likes = [p.value[:0] if p.perturbed else None for p in primals[0]]
    return made, (likes, way)


@jax.named_scope("moe_gradient")
def _backward(linear: Map, residuals: Any, cts: Any) -> Any:
    likes, way = residuals
    moves = [
        like is not None and like.shape[1] > 0 and is_moving(like.dtype, ct)
        for like, ct in zip(likes, cts, strict=True)
    ]
    if not any(moves):
        return tuple(None for _ in likes), None
    given = tuple(
        ct.astype(like.dtype) if move else jnp.zeros((ct.shape[0], 0), jnp.float32)
        for like, ct, move in zip(likes, cts, moves, strict=True)
    )
    made = _applied(linear.transposed, given, way)
    return tuple(
        ct.astype(like.dtype) if move else None
        for like, ct, move in zip(likes, made, moves, strict=True)
    ), None


_apply.defvjp(_forward, _backward, symbolic_zeros=True)


def is_moving(dtype: np.dtype, ct: Any) -> bool:
    """Whether there is a cotangent: zeros that JAX knows of, and those of integers, are none."""
    return jnp.issubdtype(dtype, jnp.inexact) and not isinstance(ct, SymbolicZero)
