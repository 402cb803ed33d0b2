"""A row for each token and other server that has experts of its: there, and back.

A token's row crosses once to each of those servers, with the numbers of its experts there and its
weights in the same message. It arrives on a device that balances NICs (`rails`), is copied to its
experts inside the server (`inside_servers`), and the results are added up there before one row goes
back. The gradients go the same ways, and are added up in the same order: nothing is scattered.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.moe import types, wire
from fastjax.moe.linear import Arrays
from fastjax.moe.routing import Crossing, Leg, Token
from fastjax.moe.transit import Transit, depart
from fastjax.traced.nonnegative import look_up

# In the names that statistics and profiles have for the operations of deduplicated tokens.
_SCOPE = "moe_cross"


class Sent(NamedTuple):
    """Rows on their way to other servers, or back, and rows of this device, which stay.

    Attributes:
      own: arrays, shape (tokens, columns) each: rows, and columns beside them.
      transit: the same of rows that move; those without columns are left out.
    """

    own: Arrays
    transit: Transit

    @property
    def token(self) -> Token:
        """That of the exchange."""
        return self.transit.token

    def arrived(self, token: Token) -> Arrays:
        """The arrays of rows that arrived, once they have and after `token`."""
        rows, beside = self.transit.arrived(token)
        left = iter(beside)
        empty = (len(rows), 0)
        return rows, *(
            next(left) if a.shape[1] else jnp.zeros_like(rows, a.dtype, shape=empty)
            for a in self.own[1:]
        )


Constants = tuple[tuple[jax.Array, jax.Array] | None, Crossing]


@dataclasses.dataclass(frozen=True)
class Crossed:
    """Tokens to the other servers that have experts of theirs; see `linear.Map`.

    Operands are rows, shape (tokens, width), and weights of each choice, shape (tokens, k or 0).
    Constants are the numbers of experts, on the own server and on that of each entry, and the way.

    Attributes:
      wire_dtype: of rows on the wire.
      wire_back: of their gradients.
      numbered: whether numbers travel; not in the transpose of `Returned`.
    """

    wire_dtype: np.dtype
    wire_back: np.dtype
    numbered: bool = True

    @jax.named_scope(_SCOPE)
    def start(self, operands: Arrays, constants: Constants, token: Token) -> Sent:
        """Sends them."""
        (rows, weights), (numbers, crossing) = operands, constants
        arrays = [(rows, look_up(rows, crossing.token)), _by_server(weights, crossing)]
        if self.numbered:
            assert numbers is not None
            arrays.append(numbers)
        own, moving = zip(*arrays, strict=True)
        return _sent(own, moving, crossing.there, self.wire_dtype, token)

    @jax.named_scope(_SCOPE)
    def finish(self, sent: Sent, constants: Constants, token: Token) -> Arrays:
        """Rows, weights and numbers of a server's tokens on this device: (tokens + room, ...) each.

        The device's own tokens come first.
        """
        del constants
        return tuple(map(jnp.concatenate, zip(sent.own, sent.arrived(token), strict=True)))

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> Returned:
        """The way back of cotangents."""
        del dtypes
        return Returned(self.wire_back, self.wire_back)


@dataclasses.dataclass(frozen=True)
class Returned:
    """Rows of servers' tokens to the devices of these; the transpose of `Crossed`.

    Operands are rows, shape (tokens + room, width), and a value for each choice, shape
    (tokens + room, k or 0).
    """

    wire_dtype: np.dtype
    wire_back: np.dtype

    @classmethod
    def of_sums(cls, wide: np.dtype, dtype: np.dtype, payload_dtype: DTypeLike | None) -> Returned:
        """That of sums, of a wide type, of rows that are of `dtype`."""
        wire_dtype = wire.check(payload_dtype, dtype)
        if not jnp.issubdtype(dtype, jnp.floating):
            return cls(wide, wide)
        return cls(wire_dtype, dtype if wire.has_scales(wire_dtype, wide) else wire_dtype)

    @jax.named_scope("moe_return")
    def start(self, operands: Arrays, constants: Constants, token: Token) -> Sent:
        """Returns them."""
        _, crossing = constants
        tokens = len(crossing.goes)
        own, landed = zip(*((array[:tokens], array[tokens:]) for array in operands), strict=True)
        return _sent(own, landed, crossing.back, self.wire_dtype, token)

    @jax.named_scope("moe_return")
    def finish(self, sent: Sent, constants: Constants, token: Token) -> Arrays:
        """For each token, the sum of its rows in a wide type; and for each choice, its value."""
        _, crossing = constants
        (own_rows, own_each), (rows, each) = sent.own, sent.arrived(token)
        return _added_up(own_rows, rows, crossing), _of_choices(own_each, each, crossing)

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> Crossed:
        """The way there of cotangents."""
        del dtypes
        return Crossed(self.wire_back, self.wire_back, numbered=False)


def _sent(own: Arrays, moving: Arrays, leg: Leg, wire_dtype: np.dtype, token: Token) -> Sent:
    """Sends rows, and what there is beside them in the same message."""
    rows, *beside = moving
    beside = [array for array in beside if array.shape[1]]
    return Sent(own, depart(rows, beside, leg, wire_dtype if rows.shape[1] else rows.dtype, token))


def weights_to_send(weights: jax.Array | None, tokens: int) -> jax.Array:
    """The weights of choices for a message; of no columns if there are none."""
    each = jnp.zeros((tokens, 0), jnp.float32) if weights is None else weights
    return each.astype(types.summed_in(each.dtype))


def _by_server(weights: jax.Array, crossing: Crossing) -> tuple[jax.Array, jax.Array]:
    """Weights of this server's choices, and for each entry those of its server's; 0 elsewhere."""
    if weights.shape[1] == 0:
        return weights, jnp.zeros_like(weights, shape=(crossing.token.shape[0], 0))
    chosen, token = crossing.chosen, crossing.token
    own = jnp.where(chosen == crossing.here, weights, 0)
    chosen = look_up(chosen, token)
    return own, jnp.where(chosen == crossing.server[:, None], look_up(weights, token), 0)


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
    server = jnp.minimum(crossing.chosen, crossing.servers - 1)
    of_choice = functools.partial(jnp.take_along_axis, mode="promise_in_bounds")
    entry = of_choice(crossing.entry, server, 1)
    columns = own.shape[1]
    if columns == 0:
        return own
    at = entry * columns + jnp.arange(columns, dtype=jnp.int32)[None]
    there = jnp.where(of_choice(crossing.goes, server, 1), look_up(entries.reshape(-1), at), 0)
    exists = crossing.chosen < crossing.servers
    return jnp.where(exists, jnp.where(crossing.chosen == crossing.here, own, there), 0)
