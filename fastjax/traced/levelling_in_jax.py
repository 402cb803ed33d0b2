"""What `ffi/planner/levelling.cc` does, in operations of JAX: the same results, bit for bit."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fastjax.traced.nonnegative import look_up, quotient, quotient_up

_HALVINGS = 6  # kHalvings


class _Deal(NamedTuple):
    """How rows are dealt to the devices of a server.

    Attributes:
      left: rows that stay at home, by device and expert of it.
      load: rows of each device.
      used: slots of each.
      expert, taken: the expert of each slot, by its number in the server, and the rows of it.
    """

    left: jax.Array
    load: jax.Array
    used: jax.Array
    expert: jax.Array
    taken: jax.Array


def level_in_jax(
    counts: jax.Array, *, servers: int, devices: int, copies: int, cost_rows: int
) -> list[jax.Array]:
    """The results of `level_p`."""
    *batch, ranks, experts = counts.shape
    one = functools.partial(
        _level, servers=servers, devices=devices, copies=copies, cost_rows=cost_rows
    )
    made = jax.vmap(one)(counts.reshape(-1, ranks, experts))
    return [array.reshape(*batch, *array.shape[1:]) for array in made]


def _level(
    counts: jax.Array, *, servers: int, devices: int, copies: int, cost_rows: int
) -> list[jax.Array]:
    ranks, experts = counts.shape
    here = experts // ranks
    first = jnp.cumsum(counts, axis=1, dtype=counts.dtype) - counts
    rows = counts.sum(0, dtype=counts.dtype).reshape(servers, devices, here)
    deals = jax.vmap(functools.partial(_choose, copies=copies, cost_rows=cost_rows))(rows)
    of_servers = lambda array: array.reshape(ranks, servers, -1).transpose(1, 0, 2)  # noqa: E731
    sizes, starts = jax.vmap(_cut)(
        deals, of_servers(counts), of_servers(first), jnp.arange(servers, dtype=counts.dtype)
    )
    in_group = jnp.arange(servers, dtype=counts.dtype)[:, None, None] * (devices * here)
    slots = jnp.where(_is_used(deals), deals.expert + in_group, -1).reshape(ranks, copies)
    of_ranks = lambda a: a.transpose(1, 0, 2, 3).reshape(ranks, ranks, -1)  # noqa: E731
    return [slots, of_ranks(sizes), of_ranks(starts)]


def _is_used(deal: _Deal) -> jax.Array:
    copies = deal.expert.shape[-1]
    return jnp.arange(copies, dtype=deal.used.dtype) < deal.used[..., None]


def _choose(rows: jax.Array, *, copies: int, cost_rows: int) -> _Deal:
    """Deals with the number of slots that costs least; rows by device and expert of it."""
    load = rows.sum(1, dtype=rows.dtype)
    mean = quotient_up(load.sum(dtype=rows.dtype), len(rows))
    limits = jnp.arange(1, copies + 1, dtype=rows.dtype)
    caps, slowest = jax.vmap(functools.partial(_search, rows, mean, copies))(limits)
    beside_none = limits * cost_rows - (load.max() - slowest)
    best = jnp.argmin(beside_none)
    worth = look_up(beside_none, best) < 0
    limit = jnp.where(worth, look_up(limits, best), 0)
    return _deal(rows, limit, look_up(caps, best), copies)


def _search(
    rows: jax.Array, mean: jax.Array, copies: int, limit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The cap at which the slowest device has fewest rows, and these rows."""

    def narrow(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        i, low, high, cap = state
        middle = low + quotient(high - low, 2)
        slowest = _deal(rows, limit, middle, copies).load.max()
        cap = jnp.where(slowest < high, middle, cap)
        return i + 1, jnp.where(slowest > middle, middle, low), jnp.minimum(high, slowest), cap

    def goes_on(state: tuple[jax.Array, ...]) -> jax.Array:
        i, low, high, _ = state
        return (i < _HALVINGS) & (low + 1 < high)

    slowest = _deal(rows, limit, mean, copies).load.max()
    *_, high, cap = jax.lax.while_loop(goes_on, narrow, (limit * 0, mean, slowest, mean))
    return cap, high


def _deal(rows: jax.Array, limit: jax.Array, cap: jax.Array, copies: int) -> _Deal:
    devices, here = rows.shape
    device, place = (jnp.arange(n, dtype=rows.dtype) for n in (devices, here))
    slot = jnp.arange(copies, dtype=rows.dtype)

    def can_take(deal: _Deal) -> jax.Array:
        return (deal.load < cap) & (deal.used < limit)

    def goes_on(deal: _Deal) -> jax.Array:
        return can_take(deal).any() & (deal.load > cap).any()

    def move(deal: _Deal) -> _Deal:
        used = jnp.where(can_take(deal), deal.used, copies)
        room = cap - deal.load
        taker = _first_largest(jnp.where(used == used.min(), room, -1))
        room = look_up(room, taker)
        most = deal.left.max(1)
        gives = deal.load > cap
        fits = gives & (most >= room)
        by_excess = jnp.where(fits, deal.load, -1)
        giver = _first_largest(jnp.where(fits.any(), by_excess, jnp.where(gives, most, -1)))
        expert = _first_largest(look_up(deal.left, giver))
        moved = jnp.minimum(room, look_up(most, giver))
        to_taker = jnp.where(device == taker, moved, 0)
        to_giver = jnp.where(device == giver, moved, 0)
        filled = (device == taker)[:, None] & (slot == deal.used[:, None])
        return _Deal(
            deal.left - jnp.where(place == expert, to_giver[:, None], 0),
            deal.load + to_taker - to_giver,
            deal.used + (device == taker),
            jnp.where(filled, giver * here + expert, deal.expert),
            jnp.where(filled, moved, deal.taken),
        )

    none = jnp.zeros_like(rows, shape=(devices, copies))
    load = rows.sum(1, dtype=rows.dtype)
    # Zeros vary over the axes that rows vary over.
    none += (load * 0)[:, None]
    return jax.lax.while_loop(goes_on, move, _Deal(rows, load, load * 0, none, none))


def _first_largest(values: jax.Array) -> jax.Array:
    return jnp.argmax(values).astype(values.dtype)


def _cut(
    deal: _Deal, counts: jax.Array, first: jax.Array, server: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sizes and starts at the devices of a server, each by sender, device and group.

    Args:
      deal: of the server.
      counts: rows of each sender for each expert of the server.
      first: where they begin among the sender's rows.
      server: its number.
    """
    devices, here = deal.left.shape
    home = jnp.arange(devices * here, dtype=counts.dtype).reshape(devices, here)
    groups = jnp.concatenate([home, deal.expert], axis=1)  # the expert of each
    rows = jnp.concatenate([deal.left, jnp.where(_is_used(deal), deal.taken, 0)], axis=1)
    device = jnp.arange(devices, dtype=counts.dtype)[:, None]
    # By device and expert: rows that the device computes, and those of them that it sends.
    computed = jnp.zeros_like(counts, shape=(devices, devices * here)).at[device, groups].add(rows)
    kept = jnp.minimum(jax.lax.dynamic_slice_in_dim(counts, server * devices, devices), computed)
    # The others lie on one line, in the order of senders, and are cut in the order of devices.
    others = computed - kept
    begin = jnp.cumsum(others, axis=0, dtype=counts.dtype) - others
    kept_by = jax.lax.dynamic_update_slice_in_dim(counts * 0, kept, server * devices, 0)
    sent = counts - kept_by
    sent_begin = jnp.cumsum(sent, axis=0, dtype=counts.dtype) - sent
    of_groups = functools.partial(jnp.take_along_axis, indices=groups, axis=1)
    at = lambda array: look_up(array, slice(None), groups)  # noqa: E731  # (senders, devices, groups)
    sent, sent_begin = at(sent), at(sent_begin)
    begin, others = of_groups(begin), of_groups(others)
    ends = jnp.minimum(begin + others, sent_begin + sent)
    given = jnp.maximum(ends - jnp.maximum(begin, sent_begin), 0)
    sender = jnp.arange(len(counts), dtype=counts.dtype)[:, None, None] - server * devices
    own = at(kept_by)
    sizes = given + jnp.where(sender == device, own, 0)
    before = jnp.clip(begin - sent_begin, 0, sent) + jnp.where(sender < device, own, 0)
    is_group = jnp.concatenate([home >= 0, _is_used(deal)], axis=1)
    return jnp.where(is_group, sizes, 0), jnp.where(is_group, at(first) + before, 0)


__all__ = ["level_in_jax"]
