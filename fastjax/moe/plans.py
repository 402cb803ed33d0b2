"""Plans of all chunks of a layer, or of one dispatch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fastjax.moe import planning, routing
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.copies import Copies, plan_copies
from fastjax.moe.levelled import Levelled, level
from fastjax.moe.planning import Way
from fastjax.moe.routing import Choices, Token
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up


class Plans(NamedTuple):
    """The plans of chunks.

    Attributes:
      ways: of each chunk.
      token: exists after all of them; None if there is one.
      levelled: how experts are, if they are.
    """

    ways: list[Way]
    token: jax.Array | None
    levelled: Levelled | None

    def copies(self, arrangement: Arrangement) -> Copies | None:
        """Those of experts, planned after the first plan, the one that is refused."""
        return plan_copies(self.levelled, arrangement, self.ways[0].trip.plan.table)

    def params(self, params: Any, arrangement: Arrangement) -> Any:
        """Of all groups of a device, from those of its experts."""
        copies = self.copies(arrangement) if jax.tree.leaves(params) else None
        return params if copies is None else copies.params(params)


def plan_dispatches(
    choices: Sequence[Choices],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None = None,
) -> Plans:
    """Plans the exchange of `dispatch` between all devices for each chunk of tokens.

    One collective gathers the counts of all chunks. A plan that is refused ends the program on all
    devices. No device may then have begun an exchange that waits for the others: so no plan is made
    before all counts are gathered, and none before the first. That is the one that is refused,
    since it has the wrong choices of all chunks. The others are made at once, so plans are made in
    two rounds, whatever the number of chunks.

    Args:
      choices: of each chunk.
      arrangements: of each chunk, which differ in the experts' rows only.
      levelled: how experts are, if that has been decided; otherwise it is by the rows of all
        chunks.
    """
    make = _crossings if arrangements[0].deduplicated else _each_choice
    plan, levelled = make(choices, arrangements, levelled)
    first = plan(0, None)
    ways = [first, *(plan(chunk, first.trip.plan.table) for chunk in range(1, len(choices)))]
    if len(ways) == 1:
        return Plans(ways, None, levelled)
    token = jnp.zeros((), jnp.float32)
    for way in ways:
        token = after(token, way.trip.plan.table)
    return Plans(ways, jax.lax.stop_gradient(token), levelled)


Planner = Callable[[int, Token], Way]
"""Plans a chunk after a token."""


def _crossings(
    choices: Sequence[Choices],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None,
) -> tuple[Planner, Levelled | None]:
    """Plans tokens that cross once; and how experts are levelled, if they are."""
    servers, room = arrangements[0].servers, None
    group = arrangements[0].group.told(row_bytes=arrangements[0].crossing_bytes)
    groups = [group.of_choices(chunk.experts) for chunk in choices]
    experts = arrangements[0].experts.count
    if arrangements[0].experts.drop:  # of one chunk: room for several has been shared out
        found, room, levelled = planning.find_room(choices[0], arrangements[0], groups[0])
        choices, experts = [found], 0  # all have been counted
    wanted = [
        planning.want_crossing(chunk, servers, told)
        for chunk, told in zip(choices, groups, strict=True)
    ]
    every = group.of_choices(*(chunk.experts for chunk in choices))
    counts = every.gather([tokens.counts for tokens in wanted], experts, servers.count)
    of_experts = [told[:, servers.count :] for told in counts]
    levelled = levelled or _levelled(of_experts, arrangements[0])

    def plan(chunk: int, token: Token) -> Way:
        told = wanted[chunk], counts[chunk], room, servers, groups[chunk]
        crossed = planning.plan_crossing(*told, token, levelled)
        numbers = look_up(jnp.asarray(servers.number_in_server()), choices[chunk].experts)
        return Way(*crossed, arrangements[chunk], numbers, levelled)

    return plan, levelled


def _each_choice(
    choices: Sequence[Choices],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None,
) -> tuple[Planner, Levelled | None]:
    """Plans a row for each choice; and how experts are levelled, if they are."""
    group, experts = arrangements[0].group, arrangements[0].experts
    by_expert = [routing.by_expert(chunk, experts.count) for chunk in choices]
    counts: list[Any] = [None] * len(choices)
    if experts.drop or experts.balance is not None:  # what is sent depends on all counts
        every = group.of_choices(*(chunk.experts for chunk in choices))
        counts = every.gather([one.counts for one in by_expert], experts.count)
        levelled = levelled or _levelled(counts, arrangements[0])

    def plan(chunk: int, token: Token) -> Way:
        told = group.of_choices(choices[chunk].experts)
        given = by_expert[chunk], counts[chunk], arrangements[chunk], told
        return Way(*planning.route(*given, token, levelled), arrangements[chunk])

    return plan, levelled


def _levelled(counts: Sequence[jax.Array], arrangement: Arrangement) -> Levelled | None:
    """How experts are levelled for the rows of all chunks, if they are."""
    rows = [told.sum(0, dtype=told.dtype) for told in counts]
    return level(functools.reduce(jnp.add, rows), arrangement.servers, arrangement.experts.balance)
