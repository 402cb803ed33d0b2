"""A row for each token and other server that has experts of its: there, and back.

A token's row crosses once to each of those servers, with the numbers of its experts there and its
weights in the same message. It arrives on a device that balances NICs (`traffic.landing`), is
copied to its experts inside the server (`inside_servers`), and the results are added up there
before one row goes back. The gradients go the same ways, and are added up in the same order:
nothing is scattered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.moe import types, wire
from fastjax.moe.linear import Map
from fastjax.moe.routing import Crossing, Token
from fastjax.moe.transit import Arrays, Begun, depart
from fastjax.traced.nonnegative import look_up


def _named(scope: str) -> Callable[[Callable[..., Begun]], Callable[..., Begun]]:
    """Names the operations of a start, and of what it begins: for statistics and profiles."""

    def decorate(start: Callable[..., Begun]) -> Callable[..., Begun]:
        @functools.wraps(start)
        def named(*args: Any) -> Begun:
            with jax.named_scope(scope):
                begun = start(*args)
            return begun._replace(results=jax.named_scope(scope)(begun.results))

        return named

    return decorate


@_named("moe_cross")
def cross(operands: Arrays, way: Crossing, token: Token, wire_dtype: np.dtype) -> Begun:
    """Sends tokens to the other servers that have experts of theirs; see `linear.Start`.

    Operands are rows, shape (tokens, width), and arrays beside them that have a value for each
    choice, or none: shape (tokens, k or 0). Results are the same of a server's tokens on this
    device, its own first: shape (tokens + room, ...). There, choices of other servers have 0.
    """
    rows, *beside = operands
    pairs = [(rows, look_up(rows, way.token))]
    pairs += [_by_server(array, way) for array in beside]
    own, moving = zip(*pairs, strict=True)
    sent = depart(moving, way, wire_dtype, token)
    return sent.then(lambda *landed: tuple(map(jnp.concatenate, zip(own, landed, strict=True))))


@_named("moe_return")
def come_back(operands: Arrays, way: Crossing, token: Token, wire_dtype: np.dtype) -> Begun:
    """Sends rows of servers' tokens to the devices of these; the transpose of `cross`.

    Results are, for each token, the sum of its rows in a wide type; and for each choice its values.
    """
    tokens = len(way.goes)
    own, *own_each = (array[:tokens] for array in operands)

    def received(rows: jax.Array, *each: jax.Array) -> Arrays:
        values = (_of_choices(*pair, way) for pair in zip(own_each, each, strict=True))
        return _added_up(own, rows, way), *values

    landed = tuple(array[tokens:] for array in operands)
    return depart(landed, way, wire_dtype, token, back=True).then(received)


def crossing_map(wire_dtype: np.dtype, wire_back: np.dtype) -> Map:
    """That of tokens, with types of their rows, and of these rows' gradients, on the wire."""
    return Map(cross, come_back, wire_dtype, wire_back)


def coming_back(wide: np.dtype, dtype: np.dtype, payload_dtype: DTypeLike | None) -> Map:
    """That of sums, of a wide type, of rows that are of `dtype`."""
    wire_dtype = wire.check(payload_dtype, dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return Map(come_back, cross, wide, wide)
    wire_back = dtype if wire.has_scales(wire_dtype, wide) else wire_dtype
    return Map(come_back, cross, wire_dtype, wire_back)


def weights_to_send(weights: jax.Array | None, tokens: int) -> jax.Array:
    """The weights of choices for a message; of no columns if there are none."""
    each = jnp.zeros((tokens, 0), jnp.float32) if weights is None else weights
    return each.astype(types.summed_in(each.dtype))


def _by_server(values: jax.Array, crossing: Crossing) -> tuple[jax.Array, jax.Array]:
    """Values of this server's choices, and for each entry those of its server's; 0 elsewhere."""
    if values.shape[1] == 0:
        return values, jnp.zeros_like(values, shape=(crossing.token.shape[0], 0))
    chosen, token = crossing.chosen, crossing.token
    own = jnp.where(chosen == crossing.here, values, 0)
    chosen = look_up(chosen, token)
    return own, jnp.where(chosen == crossing.server[:, None], look_up(values, token), 0)


def _added_up(own: jax.Array, entries: jax.Array, crossing: Crossing) -> jax.Array:
    """The parts of each token, summed wide in the order of servers: its own, and those entries."""
    wide = types.summed_in(own.dtype)
    total = jnp.zeros_like(own, wide)
    for server in range(crossing.servers):
        there = look_up(entries, crossing.entry[:, server])
        there = jnp.where(crossing.goes[:, server, None], there, 0)
        total += jnp.where(crossing.here == server, own, there).astype(wide)
    return total


def _of_choices(own: jax.Array, entries: jax.Array, crossing: Crossing) -> jax.Array:
    """The value of each choice, from the choice's server: shape (tokens, k)."""
    columns = own.shape[1]
    if columns == 0:
        return own
    server = jnp.minimum(crossing.chosen, crossing.servers - 1)
    of_choice = functools.partial(jnp.take_along_axis, mode="promise_in_bounds")
    entry = of_choice(crossing.entry, server, 1)
    at = entry * columns + jnp.arange(columns, dtype=jnp.int32)[None]
    there = jnp.where(of_choice(crossing.goes, server, 1), look_up(entries.reshape(-1), at), 0)
    exists = crossing.chosen < crossing.servers
    return jnp.where(exists, jnp.where(crossing.chosen == crossing.here, own, there), 0)
