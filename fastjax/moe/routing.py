"""The ways of rows, and their offsets and sizes, from the experts that tokens chose.

Where there is less room than rows, it is shared out.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fastjax.traced.contract import Metadata
from fastjax.traced.levelling import Dealt
from fastjax.traced.nonnegative import look_up, quotient_up
from fastjax.traced.plan import TracedPlan
from fastjax.traced.slices import covered

Offsets = Metadata[jax.Array]
"""Offsets and sizes of an exchange: int32, for each device, or each device's experts."""

Token = jax.Array | None
"""Exists once an exchange has begun, so that the next one begins after it. None: there is no order,
and exchanges are plain calls, which have derivatives."""

UNROUTED = -1  # the expert of choices that go nowhere
_BITS = 31  # of a count
# Codes of wrong experts, which are int32 and positive: from here on they are of negative ones. Also
# in ffi/rendezvous/counts.cc.
_NEGATIVE = 1 << 30


class Choices(NamedTuple):
    """Choices of a device, checked.

    Attributes:
      experts: int32, shape (tokens, k); num_experts where a choice goes nowhere.
      wrong: code of an expert that there is not, or 0: its number; of a negative one 2**30 and its
        size. The size is at most 2**30 - 1, which stands for larger ones, too.
    """

    experts: jax.Array
    wrong: jax.Array

    def only(self, going: jax.Array, num_experts: int) -> Choices:
        """The choices that `going` marks; the others go nowhere."""
        return self._replace(experts=jnp.where(going, self.experts, num_experts))


class Sorted(NamedTuple):
    """Choices of a device, by expert.

    Attributes:
      choices: in their own order.
      order: the choice, token * k + which, that comes n-th.
      place: its inverse.
      counts: how many go to each expert, shape (num_experts,).
    """

    choices: Choices
    order: jax.Array
    place: jax.Array
    counts: jax.Array


def check(expert_ids: jax.Array, num_experts: int) -> Choices:
    """Which choices there are experts for."""
    chosen = expert_ids
    if chosen.dtype.itemsize < 4:  # which may not hold num_experts; wider types hold it
        chosen = chosen.astype(jnp.int32)
    exists = chosen < num_experts
    wrong, size = ~exists, jnp.minimum(chosen, _NEGATIVE - 1)
    if jnp.issubdtype(chosen.dtype, jnp.signedinteger):
        exists &= chosen >= 0
        wrong = ~exists & (chosen != UNROUTED)
        below = _NEGATIVE - jnp.maximum(chosen, 1 - _NEGATIVE)
        size = jnp.where(chosen < 0, below, size)
    code = jnp.where(wrong, size, 0).max(initial=0).astype(jnp.int32)
    experts = jnp.where(exists, chosen, num_experts).astype(jnp.int32)
    return Choices(experts, code)


def by_expert(choices: Choices, num_experts: int) -> Sorted:
    """Sorts choices by expert, those of one expert by token."""
    experts = choices.experts.reshape(-1)
    order = jnp.argsort(experts, stable=True).astype(jnp.int32)
    place = jnp.argsort(order).astype(jnp.int32)
    return Sorted(choices, order, place, count(experts, num_experts))


def count(experts: jax.Array, num_experts: int) -> jax.Array:
    """How often each expert stands there, shape (num_experts,); num_experts does not count."""
    counts = jnp.zeros_like(experts, shape=num_experts + 1).at[experts.reshape(-1)]
    return counts.add(1, mode="promise_in_bounds", wrap_negative_indices=False)[:num_experts]


def kept(by_expert: Sorted, dealt: Dealt, me: jax.Array) -> jax.Array:
    """Which choices go, if these rows of all devices do: bool, shape (tokens, k)."""
    starts, sizes = (look_up(array, me).reshape(-1) for array in (dealt.starts, dealt.sizes))
    going = covered(starts, sizes, by_expert.order.shape[0])
    return look_up(going, by_expert.place).reshape(by_expert.choices.experts.shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Route:
    """How choices get to their experts, a row for each, and back.

    Attributes:
      kept: bool, shape (tokens, k): which choices go.
      plan: of both exchanges, and of their gradients.
      order: int32, shape (tokens * k,): the choice that comes n-th by expert.
      place: int32, shape (tokens * k,): where each choice is then.
      dispatch, combine: offsets and sizes of either exchange.
      group_rows, group_sizes: rows of each group of this device, without and with padding.
      rows: of the buffer that they arrive in.
      crossing: that has brought the tokens to this server, where they cross once.
    """

    kept: jax.Array
    plan: TracedPlan
    order: jax.Array
    place: jax.Array
    dispatch: Offsets
    combine: Offsets
    group_rows: jax.Array
    group_sizes: jax.Array
    rows: int = dataclasses.field(metadata={"static": True})
    crossing: Crossing | None = None

    @property
    def returning(self) -> int:
        """Rows that come back, one for each choice, by expert."""
        return self.kept.size

    def by_expert(self, choices: jax.Array) -> jax.Array:
        """Rows of choices, shape (tokens, k, width), in the order of their experts."""
        rows = choices.reshape(self.kept.size, choices.shape[-1])
        return look_up(rows, self.order, unique=True)

    def by_choice(self, rows: jax.Array) -> jax.Array:
        """Rows in the order of their experts, as those of choices: shape (tokens, k, width)."""
        placed = look_up(rows, self.place, unique=True)
        return placed.reshape(*self.kept.shape, rows.shape[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Crossing:
    """How tokens get to the other servers that have experts of theirs, one row each, and back.

    A row that crosses is an entry of the list of its device's: by server, then by token.

    Attributes:
      plan: of both exchanges, and of their gradients.
      dispatch, combine: offsets and sizes of either exchange, one for each device.
      token: int32, shape (entries,): the token of each entry.
      server: int32, shape (entries,): and the server that it goes to.
      entry: int32, shape (tokens, servers): the entry of a token for a server, if it goes there.
      goes: bool, shape (tokens, servers): whether it does; not to its own.
      chosen: int32, shape (tokens, k): the server of each choice, or `servers` for none.
      here: int32: the server of this device.
      rows: the most that arrive.
    """

    plan: TracedPlan
    dispatch: Offsets
    combine: Offsets
    token: jax.Array
    server: jax.Array
    entry: jax.Array
    goes: jax.Array
    chosen: jax.Array
    here: jax.Array
    rows: int = dataclasses.field(metadata={"static": True})

    @property
    def servers(self) -> int:
        """How many there are."""
        return self.goes.shape[-1]

    @property
    def returning(self) -> int:
        """Rows that come back, one for each entry."""
        return len(self.token)


def at_home(counts: jax.Array) -> Dealt:
    """Rows of each sender, shape (devices, num_experts), for groups that are a device's experts."""
    blocks = len(counts), len(counts), -1
    return Dealt(counts.reshape(blocks), _before(counts, 1).reshape(blocks))


def find(
    dealt: Dealt, me: jax.Array, alignment: int
) -> tuple[Offsets, Offsets, jax.Array, jax.Array]:
    """Where the rows of each group lie, at their senders and at their device.

    Args:
      dealt: rows that go, of each sender for each group of each device.
      me: position of this device.
      alignment: each group's rows are padded to a multiple of it.

    Returns:
      See `Route`: dispatch, combine, group_rows and group_sizes.
    """
    kept, starts = dealt
    group_rows = kept.sum(0, dtype=kept.dtype)
    group_sizes = quotient_up(group_rows, alignment) * alignment
    first = _before(group_sizes, 1)[None] + _before(kept, 0)  # at experts
    of_row = lambda array: look_up(array, me).reshape(-1)  # noqa: E731
    of_column = lambda array: look_up(array, slice(None), me).reshape(-1)  # noqa: E731
    to_each, from_each = of_row(kept), of_column(kept)
    dispatch = Offsets(of_row(starts), to_each, of_row(first), from_each)
    combine = Offsets(of_column(first), from_each, of_column(starts), to_each)
    return dispatch, combine, of_row(group_rows), of_row(group_sizes)


def _before(sizes: jax.Array, axis: int) -> jax.Array:
    """The sum of the sizes before each."""
    return jnp.cumsum(sizes, axis=axis, dtype=sizes.dtype) - sizes


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
