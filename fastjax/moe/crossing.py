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

from fastjax.moe import linear, types, wire
from fastjax.moe.handle import Crossing
from fastjax.moe.linear import Arrays
from fastjax.moe.transit import Token, Transit, arrive, depart
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
        rows, beside = arrive(self.transit, token)
        left = iter(beside)
        empty = (len(rows), 0)
        return rows, *(
            next(left) if a.shape[1] else jnp.zeros_like(rows, a.dtype, shape=empty)
            for a in self.own[1:]
        )


@jax.named_scope(_SCOPE)
def start_there(
    rows: jax.Array,
    weights: jax.Array,
    numbers: tuple[jax.Array, jax.Array],
    crossing: Crossing,
    wire_dtype: np.dtype,
    token: Token = None,
) -> Sent:
    """Sends tokens to the other servers that have experts of theirs.

    Args:
      rows: of tokens, shape (tokens, width).
      weights: of each choice, shape (tokens, k or 0).
      numbers: of experts on the own server, and on that of each entry, shape (..., k or 0).
      crossing: the way.
      wire_dtype: type of rows on the wire.
      token: of the exchange before.
    """
    own_weights, listed_weights = _by_server(weights, crossing)
    own_numbers, listed_numbers = numbers
    listed = look_up(rows, crossing.token)
    beside = _with_columns(listed_weights, listed_numbers)
    plan = crossing.plan
    transit = depart(listed, beside, crossing.room, crossing.dispatch, plan, wire_dtype, token)
    return Sent((rows, own_weights, own_numbers), transit)


@jax.named_scope(_SCOPE)
def finish_there(sent: Sent, token: Token = None) -> Arrays:
    """Rows, weights and numbers of a server's tokens on this device: (tokens + room, ...) each.

    The device's own tokens come first. They are unpacked after `token`.
    """
    return tuple(jnp.concatenate(pair) for pair in zip(sent.own, sent.arrived(token), strict=True))


@jax.named_scope("moe_return")
def start_back(
    rows: jax.Array,
    each: jax.Array,
    crossing: Crossing,
    wire_dtype: np.dtype,
    token: Token = None,
) -> Sent:
    """Returns rows, and a value for each choice, of a server's tokens on this device.

    Args:
      rows: shape (tokens + room, width).
      each: shape (tokens + room, k or 0).
      crossing: the way that the tokens came.
      wire_dtype: type of rows on the wire.
      token: of the exchange before.
    """
    tokens = crossing.goes.shape[0]
    entries, plan = crossing.token.shape[0], crossing.plan.transpose()
    beside = _with_columns(each[tokens:])
    offsets = crossing.combine
    transit = depart(rows[tokens:], beside, entries, offsets, plan, wire_dtype, token)
    return Sent((rows[:tokens], each[:tokens]), transit)


@jax.named_scope("moe_return")
def finish_back(sent: Sent, crossing: Crossing, token: Token = None) -> tuple[jax.Array, jax.Array]:
    """For each token, the sum of its rows in a wide type; and for each choice, its value."""
    own_rows, own_each = sent.own
    rows, each = sent.arrived(token)
    return _added_up(own_rows, rows, crossing), _of_choices(own_each, each, crossing)


@dataclasses.dataclass(frozen=True)
class Crossed:
    """Tokens to their servers; see `linear.Map`.

    Operands are rows and weights; results rows, weights and numbers. Constants are the numbers of
    experts, of no columns in the transpose of `Returned`, and the crossing.

    Attributes:
      wire: type of rows on the wire.
      wire_back: of their gradients.
    """

    wire: np.dtype
    wire_back: np.dtype
    numbered: bool = True

    def __call__(
        self, operands: Arrays, constants: tuple[tuple[jax.Array, jax.Array], Crossing]
    ) -> Arrays:
        """Sends them, and waits for their arrival."""
        numbers, crossing = constants
        if not self.numbered:
            numbers = numbers[0][:, :0], numbers[1][:, :0]
        rows, weights = operands
        wire_dtype = self.wire if rows.shape[1] else rows.dtype
        results = finish_there(start_there(rows, weights, numbers, crossing, wire_dtype))
        return results if self.numbered else results[:2]

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> Returned:
        """The way back of cotangents."""
        del dtypes
        return Returned(self.wire_back, self.wire_back)


@dataclasses.dataclass(frozen=True)
class Returned:
    """Rows of servers' tokens to the devices of these; the transpose of `Crossed`."""

    wire: np.dtype
    wire_back: np.dtype

    def __call__(
        self, operands: Arrays, constants: tuple[tuple[jax.Array, jax.Array], Crossing]
    ) -> Arrays:
        """Returns them, and adds them up."""
        _, crossing = constants
        rows, each = operands
        wire_dtype = self.wire if rows.shape[1] else rows.dtype
        return finish_back(start_back(rows, each, crossing, wire_dtype), crossing)

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> Crossed:
        """The way there of cotangents."""
        del dtypes
        return Crossed(self.wire_back, self.wire_back, numbered=False)


def gradient_wire(wire_dtype: np.dtype, dtype: np.dtype) -> np.dtype:
    """Type of gradients on the wire: types of one byte are too coarse for them."""
    return dtype if wire.has_scales(wire_dtype, dtype) else wire_dtype


def sum_wires(wide: np.dtype, dtype: np.dtype, wire_dtype: np.dtype) -> tuple[np.dtype, np.dtype]:
    """Types of the sums of servers, and of their cotangents, on the wire.

    Args:
      wide: the sums' type.
      dtype: of rows.
      wire_dtype: type of rows on the wire.
    """
    if not jnp.issubdtype(dtype, jnp.floating):
        return wide, wide
    return wire_dtype, dtype if wire.has_scales(wire_dtype, wide) else wire_dtype


def weights_to_send(weights: jax.Array | None, tokens: int) -> jax.Array:
    """The weights of choices for a message; of no columns if there are none."""
    each = jnp.zeros((tokens, 0), jnp.float32) if weights is None else weights
    return each.astype(types.summed_in(each.dtype))


def no_numbers(crossing: Crossing) -> tuple[jax.Array, jax.Array]:
    """Numbers of experts that are left out: of no columns."""
    nothing = lambda count: jnp.zeros((count, 0), jnp.uint8)  # noqa: E731
    return nothing(crossing.goes.shape[0]), nothing(crossing.token.shape[0])


@jax.named_scope(_SCOPE)
def cross_weights(weights: jax.Array, crossing: Crossing) -> jax.Array:
    """Sends the weights of tokens after them: shape (tokens + room, k)."""
    nothing = jnp.zeros((weights.shape[0], 0), jnp.uint32)
    weights = weights.astype(types.summed_in(weights.dtype))
    mapped = Crossed(nothing.dtype, nothing.dtype, numbered=False)
    constants = no_numbers(crossing), crossing
    return linear.apply(mapped, (nothing, weights), constants, crossing.plan.axis_name)[1]


def _with_columns(*arrays: jax.Array) -> Arrays:
    return tuple(array for array in arrays if array.shape[1])


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


__all__ = [
    "Crossed",
    "Returned",
    "Sent",
    "cross_weights",
    "finish_back",
    "finish_there",
    "gradient_wire",
    "no_numbers",
    "start_back",
    "start_there",
    "sum_wires",
    "weights_to_send",
]
