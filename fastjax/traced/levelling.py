"""Rows of popular experts go to devices of the same server that have less to compute.

`level` chooses the devices, from the rows of all senders; `deal` deals each sender's rows to them,
all of them or a part. CPU devices have a call for each (`ffi/planner/levelling.cc` and
`dealing.cc`). Other platforms get `levelling_in_jax.py`, which has the same results.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from fastjax import jax_compat
from fastjax.traced.contract import DEAL, LEVEL
from fastjax.traced.integer_primitive import Shape, integer_primitive
from fastjax.traced.levelling_in_jax import deal_in_jax, level_in_jax


class Levelled(NamedTuple):
    """Which devices compute rows of which experts; int32.

    The groups of a device are those of the experts that it has, its home experts, then its slots.

    Attributes:
      slots: the expert of each slot, shape (ranks, copies); unused slots are last, and -1.
      rows: rows of each group of each device, shape (ranks, groups); 0 in unused slots.
    """

    slots: jax.Array
    rows: jax.Array


class Dealt(NamedTuple):
    """Which rows of which sender each device computes; int32.

    Attributes:
      sizes: rows of each sender for each group of each device, shape (ranks, ranks, groups).
      starts: where they begin among the sender's rows, sorted by expert, of the same shape; 0 in
        unused slots. Rows of an expert follow each other in the order of devices.
    """

    sizes: jax.Array
    starts: jax.Array


def level(
    rows: jax.Array, *, servers: int, devices: int, copies: int, cost_rows: int = 0
) -> Levelled:
    """Chooses devices for the rows of each server's experts, so that the slowest has few.

    Args:
      rows: int32, shape (experts,): rows of each expert, of all senders. Ranks are server-major,
        and each has the next experts / ranks experts. CPU devices refuse negative ones, and more
        than 2**31 - 1 in all; elsewhere both must not be.
      servers: of the group.
      devices: of each server.
      copies: the most experts of other devices that a device computes for, at least 1.
      cost_rows: the rows that a copy takes as long as, less than 2**31 for all copies. A server
        uses as many slots as make the rows of its slowest device and its copies take least
        together.
    """
    params = {"servers": servers, "devices": devices, "copies": copies, "cost_rows": cost_rows}
    return Levelled(*level_p.bind(rows, **params))


def deal(counts: jax.Array, levelled: Levelled, *, servers: int, devices: int) -> Dealt:
    """Deals rows of experts to devices, to each its share.

    Of its share of an expert's rows, a device takes first what it sends itself. The others are
    dealt in the order of senders.

    Args:
      counts: int32, shape (ranks, experts): rows of each sender for each expert. All that have been
        levelled, or a part: each device gets the part of its rows. Where none of an expert's have
        been levelled, they stay at home.
      levelled: what `level` has returned, or other rows for its slots. CPU devices refuse negative
        counts and rows, more than 2**31 - 1 of either in all, and slots of experts of other servers
        or of the device itself, or twice of one; elsewhere none of it must be.
      servers: of the group.
      devices: of each server.
    """
    values, copies = jax_compat.vary_together([counts, *levelled], ()), levelled.slots.shape[-1]
    return Dealt(*deal_p.bind(*values, servers=servers, devices=devices, copies=copies))


def _levelled_shapes(
    shape: Shape, *, servers: int, devices: int, copies: int, cost_rows: int
) -> tuple[Shape, list[Shape]]:
    del cost_rows
    *batch, experts = shape
    ranks = servers * devices
    return tuple(batch), [(ranks, copies), (ranks, experts // ranks + copies)]


def _dealt_shapes(
    shape: Shape, *, servers: int, devices: int, copies: int
) -> tuple[Shape, list[Shape]]:
    *batch, ranks, experts = shape
    del servers, devices
    return tuple(batch), [(ranks, ranks, experts // ranks + copies)] * 2


level_p = integer_primitive("level_experts", LEVEL, level_in_jax, _levelled_shapes)
"""Takes rows, shape (..., experts); returns the arrays of `Levelled`, each (..., *)."""
deal_p = integer_primitive("deal_rows", DEAL, deal_in_jax, _dealt_shapes)
"""Takes counts, slots and rows, each (..., *); returns the arrays of `Dealt`, each (..., *)."""
