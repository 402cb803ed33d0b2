"""What CPU devices have calls for, in operations of JAX: the same results, bit for bit.

`ffi/planner/levelling.cc` and `dealing.cc` say how.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.traced.nonnegative import look_up, quotient, quotient_up, remainder

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
    rows: jax.Array, *, servers: int, devices: int, copies: int, cost_rows: int
) -> list[jax.Array]:
    """The results of `level_p`."""
    *batch, experts = rows.shape
    ranks = servers * devices
    here = experts // ranks
    choose = functools.partial(_choose, copies=copies, cost_rows=cost_rows)
    deal = jax.vmap(choose)(rows.reshape(-1, devices, here))
    is_used = jnp.arange(copies, dtype=rows.dtype) < deal.used[..., None]
    server = jnp.arange(len(deal.used), dtype=rows.dtype) % servers
    expert = deal.expert + server[:, None, None] * (devices * here)
    slots = jnp.where(is_used, expert, -1)
    dealt = jnp.concatenate([deal.left, jnp.where(is_used, deal.taken, 0)], axis=2)
    return [array.reshape(*batch, ranks, array.shape[2]) for array in (slots, dealt)]


def _choose(rows: jax.Array, *, copies: int, cost_rows: int) -> _Deal:
    """Deals with the number of slots that costs least; rows by device and expert of it."""
    limits = jnp.arange(copies + 1, dtype=rows.dtype)
    deals = jax.vmap(functools.partial(_search, rows, copies))(limits)
    slowest = deals.load.max(1)
    best = jnp.argmin(limits * cost_rows - (slowest[0] - slowest))
    return jax.tree.map(lambda of_limit: look_up(of_limit, best), deals)


def _search(rows: jax.Array, copies: int, limit: jax.Array) -> _Deal:
    """Deals by the cap at which the slowest device has fewest rows: the mean, or by bisection."""
    load = rows.sum(1, dtype=rows.dtype)
    mean = quotient_up(load.sum(dtype=rows.dtype), len(rows))
    none = jnp.zeros_like(rows, shape=(len(rows), copies))
    # Zeros vary over the axes that rows vary over.
    none += (load * 0)[:, None]
    start = _Deal(rows, load, load * 0, none, none)

    def narrow(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, low, high, best = state
        cap = jnp.where(i == 0, mean, low + quotient(high - low, 2))
        deal = _deal(start, limit, cap)
        slowest = deal.load.max()
        best = jax.tree.map(functools.partial(jnp.where, slowest < high), deal, best)
        low = jnp.where(slowest > cap, cap, low)
        return i + 1, low, jnp.minimum(high, slowest), best

    def goes_on(state: tuple[Any, ...]) -> jax.Array:
        i, low, high, _ = state
        return (i <= _HALVINGS) & (low + 1 < high)

    most = mean * 0 + np.iinfo(rows.dtype).max
    return jax.lax.while_loop(goes_on, narrow, (limit * 0, mean, most, start))[3]


def _deal(start: _Deal, limit: jax.Array, cap: jax.Array) -> _Deal:
    devices, here = start.left.shape
    copies = start.expert.shape[1]
    device, place, slot = (jnp.arange(n, dtype=start.load.dtype) for n in (devices, here, copies))

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

    return jax.lax.while_loop(goes_on, move, start)


def _first_largest(values: jax.Array) -> jax.Array:
    return jnp.argmax(values).astype(values.dtype)


def deal_in_jax(
    counts: jax.Array, slots: jax.Array, rows: jax.Array, *, servers: int, devices: int, copies: int
) -> list[jax.Array]:
    """The results of `deal_p`."""
    *batch, ranks, experts = counts.shape
    here = experts // ranks

    def one(counts: jax.Array, slots: jax.Array, rows: jax.Array) -> list[jax.Array]:
        first = jnp.cumsum(counts, axis=1, dtype=counts.dtype) - counts
        server = jnp.arange(servers, dtype=counts.dtype)
        by_server = lambda array: array.reshape(ranks, servers, -1).transpose(1, 0, 2)  # noqa: E731
        of_server = lambda array: array.reshape(servers, devices, -1)  # noqa: E731
        made = jax.vmap(_cut)(
            server, by_server(counts), by_server(first), of_server(slots), of_server(rows)
        )
        return [array.transpose(1, 0, 2, 3).reshape(ranks, ranks, here + copies) for array in made]

    made = jax.vmap(one)(*(a.reshape(-1, *a.shape[-2:]) for a in (counts, slots, rows)))
    return [array.reshape(*batch, *array.shape[1:]) for array in made]


def _cut(
    server: jax.Array, counts: jax.Array, first: jax.Array, slots: jax.Array, rows: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sizes and starts at the devices of a server, each by sender, device and group.

    Args:
      server: its number.
      counts: rows of each sender for each expert of the server.
      first: where they begin among the sender's rows.
      slots: of each of its devices.
      rows: of the groups of each.
    """
    devices, experts = len(slots), counts.shape[1]
    home = jnp.arange(experts, dtype=counts.dtype).reshape(devices, -1)
    is_used = slots >= 0
    # The expert of each group, and whether it has one.
    groups = jnp.concatenate([home, jnp.where(is_used, slots - server * experts, 0)], axis=1)
    is_group = jnp.concatenate([home >= 0, is_used], axis=1)
    device = jnp.arange(devices, dtype=counts.dtype)[:, None]
    # By device and expert: its rows, and those of them that it sends.
    levelled = jnp.zeros_like(counts, shape=(devices, experts))
    levelled = levelled.at[device, groups].add(jnp.where(is_group, rows, 0))
    computed = _part_of(levelled, counts.sum(0, dtype=counts.dtype))
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
    return jnp.where(is_group, sizes, 0), jnp.where(is_group, at(first) + before, 0)


def _part_of(levelled: jax.Array, part: jax.Array) -> jax.Array:
    """Rows of each expert at each device if there are `part` of each in all.

    As `Scale` in `ffi/planner/dealing.cc` has it.
    """
    devices, experts = levelled.shape
    upto = jnp.cumsum(levelled, axis=0, dtype=levelled.dtype)
    part, whole = (jnp.broadcast_to(array, upto.shape) for array in (part, upto[-1:]))
    shift = jnp.maximum(17 - jax.lax.clz(whole), 0)  # to 15 bits
    cut, unit = upto >> shift, jnp.maximum(whole >> shift, 1)
    rest = quotient(remainder(part, unit) * cut + quotient(unit, 2), unit)
    scaled = quotient(part, unit) * cut + rest
    is_past_home = np.arange(devices)[:, None] >= np.arange(experts) // (experts // devices)
    scaled = jnp.where(whole > 0, scaled, jnp.where(is_past_home, part, 0))
    scaled = jnp.where(part == whole, upto, scaled)
    return jnp.diff(scaled, axis=0, prepend=0)
