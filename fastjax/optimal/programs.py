"""The mixed-integer programs that HiGHS solves: stages of one count, and lengths of given stages.

`docs/design/optimal.md` derives them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastjax.optimal.cover import Clock, Cover, busiest_line, scipy_module

# What HiGHS takes for zero, relative to the largest entry of a program.
_TOLERANCE = 1e-6
# Lengths are integers in the program itself only up to here: beyond, _TOLERANCE would be rows.
_MOST_INTEGRAL = 2**14
# Slots times pairs beyond which HiGHS gets nowhere: it is not even asked.
_MOST_PLACES = 20_000
_UNIT_BITS = 20


def shortest_cover(rows: np.ndarray, count: int, longest: int, clock: Clock) -> Cover | None:
    """The shortest cover with at most `count` stages.

    Args:
      rows: rows between servers, shape (servers, servers), zero diagonal.
      count: stages allowed.
      longest: rows that the stages may be long together; covers above are of no interest.
      clock: when to stop.

    Returns:
      A cover no longer than `longest`, if there is one and it was found.
    """
    cover, lower = _solve_slots(rows, count, longest, False, clock)
    if cover is None or lower >= cover.length or rows.max() > _MOST_INTEGRAL:
        return cover
    # Half rows can make a difference; they are rare, and this program takes twice the time.
    better, _ = _solve_slots(rows, count, cover.length - 1, True, clock)
    return better or cover


def _solve_slots(
    rows: np.ndarray, count: int, longest: int, integral: bool, clock: Clock
) -> tuple[Cover | None, int]:
    """A cover, if one was found, and what no cover of real lengths is shorter than."""
    least = busiest_line(rows)
    pairs = np.argwhere(rows > 0)
    if longest < least or not clock.left() or count * len(pairs) > _MOST_PLACES:
        return None, least
    scale = 1 if rows.max() <= _MOST_INTEGRAL else int(rows.max())
    result = _run_slots(rows, pairs, count, longest, scale, integral, clock)
    if result.x is None:
        return None, least
    if result.mip_dual_bound is not None and math.isfinite(result.mip_dual_bound):
        slack = _TOLERANCE * int(rows.max())
        least = max(least, math.ceil(result.mip_dual_bound * scale - slack))
    taken = result.x[count : count + count * len(pairs)].reshape(count, len(pairs)) > 0.5
    targets = np.full((count, len(rows)), -1, np.int32)
    for stage, picked in zip(targets, taken, strict=True):
        stage[pairs[picked, 0]] = pairs[picked, 1]
    cover = _settle(rows, targets)
    return cover if cover.length <= longest else None, least


def _run_slots(
    rows: np.ndarray,
    pairs: np.ndarray,
    count: int,
    longest: int,
    scale: int,
    integral: bool,
    clock: Clock,
) -> Any:
    """One program: a length for each slot; which pairs are in it; what each carries there."""
    optimize, sparse = scipy_module("optimize"), scipy_module("sparse")
    servers, places = len(rows), count * len(pairs)
    amount = rows[pairs[:, 0], pairs[:, 1]] / scale
    place = np.arange(places)
    slot, pair = place // len(pairs), place % len(pairs)
    member, carry = count + place, count + places + place
    width = count + 2 * places
    constraints = []

    def add(terms: list[tuple[Any, Any, Any]], least: Any, most: Any, height: int) -> None:
        row, column, value = (
            np.concatenate([np.broadcast_to(t[i], np.shape(t[1])) for t in terms]) for i in range(3)
        )
        matrix = sparse.csr_matrix((value, (row, column)), shape=(height, width))
        constraints.append(optimize.LinearConstraint(matrix, least, most))

    add([(pair, carry, 1.0)], amount, np.inf, len(pairs))  # all rows are carried
    add([(pair, member, 1.0)], 1, np.inf, len(pairs))
    add([(place, slot, 1.0), (place, carry, -1.0)], 0, np.inf, places)  # in the slot's length
    add([(place, member, amount[pair]), (place, carry, -1.0)], 0, np.inf, places)  # by members
    for end in (0, 1):  # a slot is a matching
        line = slot * servers + pairs[pair, end]
        add([(line, member, 1.0)], -np.inf, 1, count * servers)
    step = np.arange(count - 1)
    if count > 1:  # slots are interchangeable, so only one order of them is worth looking at
        add([(step, step, 1.0), (step, step + 1, -1.0)], 0, np.inf, count - 1)
    slots = np.arange(count)
    within = (busiest_line(rows) / scale, longest / scale)
    add([(np.zeros(count, int), slots, 1.0)], *within, 1)
    upper = np.concatenate([np.full(count, amount.max()), np.ones(places), amount[pair]])
    return optimize.milp(
        np.arange(width) < count,
        integrality=np.concatenate([np.full(count, integral), np.ones(places), np.zeros(places)]),
        bounds=optimize.Bounds(0, upper),
        constraints=constraints,
        options={"time_limit": clock.left(), "mip_rel_gap": _TOLERANCE / 10},
    )


def _settle(rows: np.ndarray, targets: np.ndarray) -> Cover:
    """Integer lengths for given stages so that they carry all rows; as short as found in seconds.

    Long stages are settled in units of 2**20 rows first and then corrected by single rows, so that
    the solver's floats never have to tell more than 2**20 from each other.

    Args:
      rows: rows between servers.
      targets: stages, shape (stages, servers), -1 for idle; each pair with rows is in one of them.
    """
    targets = np.unique(targets, axis=0)
    sources = np.arange(len(rows))
    inside = np.where(targets >= 0, rows[sources, targets], 0)
    pairs = np.argwhere(rows > 0)
    amount = rows[pairs[:, 0], pairs[:, 1]]
    member = (targets[:, pairs[:, 0]] == pairs[:, 1]).T.astype(np.int64)
    lengths = np.zeros(len(targets), np.int64)
    bits = max(0, int(rows.max()).bit_length() - 1) // _UNIT_BITS * _UNIT_BITS
    while bits >= 0 and lengths is not None:
        lengths = _correct(amount, member, lengths, 1 << bits)
        bits -= _UNIT_BITS
    safe = inside.max(axis=1)  # every pair in one piece
    if lengths is None or lengths.sum() > safe.sum():
        lengths = safe
    used = lengths > 0
    return Cover(targets[used].astype(np.int32), lengths[used])


def _correct(
    amount: np.ndarray, member: np.ndarray, lengths: np.ndarray, unit: int
) -> np.ndarray | None:
    """Lengths changed by multiples of a unit so that members carry their amounts; or None."""
    optimize = scipy_module("optimize")
    most = 2 << _UNIT_BITS
    need = -((member @ lengths - amount) // unit)
    result = optimize.milp(
        np.ones(len(lengths)),
        integrality=np.ones(len(lengths)),
        bounds=optimize.Bounds(-np.minimum(lengths // unit, most), most),
        constraints=optimize.LinearConstraint(member, np.maximum(need, -most), np.inf),
        options={"time_limit": 2.0, "mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None
    corrected = lengths + unit * np.rint(result.x).astype(np.int64)
    return corrected if (member @ corrected >= amount).all() else None
