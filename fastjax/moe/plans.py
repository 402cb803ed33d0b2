"""Plans of all chunks of a layer, or of one dispatch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fastjax.moe import planning, routing
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.copies import plan_copies
from fastjax.moe.levelled import Levelled, deal, level
from fastjax.moe.planning import Planned, Routed
from fastjax.moe.routing import Token
from fastjax.traced.after import after


class Plans(NamedTuple):
    """The plans of chunks.

    Attributes:
      planned: of each chunk.
      token: exists after all of them; None if there is one.
      levelled: how experts are, if they are.
    """

    planned: list[Planned]
    token: jax.Array | None
    levelled: Levelled | None

    def first(self) -> jax.Array:
        """Exists after the first plan, the one that is refused."""
        return _table(self.planned[0])

    def params(self, params: Any, arrangement: Arrangement) -> Any:
        """Of all groups of a device, from those of its experts."""
        if not jax.tree.leaves(params):
            return params
        copies = plan_copies(self.levelled, arrangement, self.first())
        return params if copies is None else copies.params(params)


def plan_dispatches(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None = None,
) -> Plans:
    """Plans the exchange of `dispatch` between all devices for each chunk of tokens.

    One collective gathers the counts of all chunks. A plan that is refused ends the program on all
    devices. No device may then have begun an exchange that waits for the others: so no plan is made
    before all counts are gathered, and none before the first. That is the one that is refused,
    since it gets the wrong choices of all chunks (`whole_layer`). The others are made at once, so
    plans are made in two rounds, whatever the number of chunks.

    Args:
      expert_ids: of each chunk, shape (tokens, k).
      arrangements: of each chunk, which differ in the experts' rows only.
      levelled: how experts are, if that has been decided; otherwise it is by the rows of all
        chunks.
    """
    way = _plan_crossings if arrangements[0].deduplicated else _plan_each_choice
    planned, levelled = way(expert_ids, arrangements, levelled)
    if len(planned) == 1:
        return Plans(planned, None, levelled)
    token = jnp.zeros((), jnp.float32)
    for plan in planned:
        token = after(token, _table(plan))
    return Plans(planned, jax.lax.stop_gradient(token), levelled)


def _plan_crossings(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None,
) -> tuple[list[Planned], Levelled | None]:
    """Plans for tokens that cross once; and how experts are levelled, if they are."""
    servers, group = arrangements[0].servers, arrangements[0].crossing
    groups = [group.of_choices(ids) for ids in expert_ids]
    wanted = [
        planning.want_crossing(ids, a.experts, servers, told)
        for ids, a, told in zip(expert_ids, arrangements, groups, strict=True)
    ]
    # Of those that find room. Where some may not, all have been counted before.
    experts = arrangements[0].experts.count if wanted[0].room is None else 0
    every = group.of_choices(*expert_ids)
    counts = every.gather([tokens.counts for tokens in wanted], experts, servers.count)
    if levelled is None:
        of_experts = [told[:, servers.count :] for told in counts]
        levelled = wanted[0].levelled or _levelled(of_experts, arrangements[0])

    def plan(chunk: int, token: Token) -> Planned:
        tokens = wanted[chunk], counts[chunk]
        return planning.plan_crossing(*tokens, servers, groups[chunk], token, levelled)

    return _in_two_rounds(plan, len(wanted)), levelled


def _plan_each_choice(
    expert_ids: Sequence[jax.Array],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None,
) -> tuple[list[Planned], Levelled | None]:
    """Plans for a row for each choice; and how experts are levelled, if they are."""
    group, experts = arrangements[0].group, arrangements[0].experts
    choices = [
        routing.by_expert(routing.check(i, experts.count), experts.count) for i in expert_ids
    ]
    counts: list[Any] = [None] * len(choices)
    dealing = None
    if experts.may_drop or experts.balance is not None:  # what is sent depends on all counts
        every = group.of_choices(*expert_ids)
        counts = every.gather([one.counts for one in choices], experts.count)
    if experts.balance is not None:
        levelled = levelled or _levelled(counts, arrangements[0])
        dealing = functools.partial(deal, levelled=levelled, servers=arrangements[0].servers)

    def plan(chunk: int, token: Token) -> Planned:
        told, experts = group.of_choices(expert_ids[chunk]), arrangements[chunk].experts
        return planning.route(choices[chunk], counts[chunk], experts, told, token, dealing)

    return _in_two_rounds(plan, len(choices)), levelled


def _levelled(counts: Sequence[jax.Array], arrangement: Arrangement) -> Levelled | None:
    """How experts are levelled for the rows of all chunks, if they are."""
    rows = [told.sum(0, dtype=told.dtype) for told in counts]
    return level(functools.reduce(jnp.add, rows), arrangement.servers, arrangement.experts.balance)


def _in_two_rounds(plan: Callable[[int, Token], Planned], chunks: int) -> list[Planned]:
    """A plan of each chunk, all but the first after the first."""
    first = plan(0, None)
    return [first, *(plan(chunk, _table(first)) for chunk in range(1, chunks))]


def _table(planned: Planned) -> jax.Array:
    way = planned.route if isinstance(planned, Routed) else planned.crossing
    return way.plan.table
