"""A row for each token and other server that has experts of its: there, and back.

A token's row crosses once to each of those servers, with the numbers of its experts there and its
weights in the same message. It arrives on a device that balances NICs (`traffic.landing`), is
copied to its experts inside the server (`inside_servers`), and the results are added up there
before one row goes back. The gradients go the same ways, and are added up in the same order:
nothing is scattered.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import types
from fastjax.moe.linear import Arrays, Begun, depart
from fastjax.moe.routing import Crossing, Token
from fastjax.traced.nonnegative import look_up


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
    sent = depart(moving, way, token, wire_dtype)
    return sent.then(lambda *landed: tuple(map(jnp.concatenate, zip(own, landed, strict=True))))


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
    return depart(landed, way, token, wire_dtype, back=True).then(received)


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
