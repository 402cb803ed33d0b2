"""Rounds: tokens for which a device has no room yet go later, so that none is dropped.

A round takes some tokens of each device with all of their choices, as a chunk does, but which ones
is decided when the program runs, from the counts of all devices. So sums of a token do not depend
on the rounds, and a round is planned and exchanged as any tokens are. The first is a layer's
ordinary way. Further ones are a loop that ends where no device has tokens left.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import checkpoint, routing, types
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.levelled import Levelled, deal, level
from fastjax.moe.plans import Plans, plan_dispatches
from fastjax.moe.routing import Choices
from fastjax.moe.servers import Servers
from fastjax.moe.steps import Experts, one_chunk
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up, permuted, quotient
from fastjax.traced.reverse_mode import in_reverse_mode


@jax.custom_batching.custom_vmap
def batch_max(value: jax.Array) -> jax.Array:
    """The value; under `vmap`, the largest of the batch for all of it.

    A batch exchanges as one, so all of it must go through a `cond` or a loop in the same way.
    """
    return value


@batch_max.def_vmap
def _batch_max_of_batch(_size: int, _batched: Any, value: jax.Array) -> tuple[jax.Array, bool]:
    return batch_max(value.max(0)), False


class Computed(NamedTuple):
    """What devices do in rounds: int32, shape (devices,) each, by position.

    Attributes:
      rows: that each computes.
      copies: the most that it has in a round.
    """

    rows: jax.Array
    copies: jax.Array


class Rounds(NamedTuple):
    """In which rounds tokens go.

    Attributes:
      of_tokens: int32, shape (tokens,): the round of each token of each chunk, from 0.
      number: int32: how many there are, the same on all devices that exchange with each other.
      computed: in all of them.
    """

    of_tokens: list[jax.Array]
    number: jax.Array
    computed: Computed


def plan_first(
    choices: Sequence[Choices],
    arrangements: Sequence[Arrangement],
    levelled: Levelled | None = None,
) -> tuple[Plans, jax.Array, Rounds]:
    """Plans the first round of each chunk of tokens; see `plan_dispatches`.

    The devices plan for all tokens, as if there were room. Only if there is not, which all know
    from the counts that come with the plan, do they count parts of their tokens, and plan again.

    Returns:
      The plans; the rows of all rounds that all devices send to each expert, shape (num_experts,);
      and the rounds.
    """
    plans = plan_dispatches(choices, arrangements, levelled)
    expert_rows = jnp.stack([way.room.expert_rows for way in plans.ways]).sum(0, dtype=jnp.int32)
    device_rows = jnp.stack([way.room.device_rows for way in plans.ways])
    rows = device_rows.sum(0, dtype=jnp.int32)
    computed = Computed(rows, _copies(plans.levelled, arrangements[0].servers, rows))
    zeros = [jnp.zeros_like(chunk.experts[:, 0]) for chunk in choices]
    if all(arrangement.experts.drop is not False for arrangement in arrangements):
        return plans, expert_rows, Rounds(zeros, jnp.ones((), jnp.int32), computed)
    rooms = np.array([a.experts.available for a in arrangements], np.int32)
    over = batch_max((device_rows.max(-1) > rooms).any())
    at_once = plans, Rounds(zeros, jnp.ones_like(over, jnp.int32), computed)

    def in_rounds() -> tuple[Plans, Rounds]:
        rounds = _divide(choices, arrangements)
        first = [
            chunk.only(of_tokens[:, None] == 0, arrangements[0].experts.count)
            for of_tokens, chunk in zip(rounds.of_tokens, choices, strict=True)
        ]
        return plan_dispatches(first, arrangements), rounds

    plans, rounds = checkpoint.named(jax.lax.cond(over, in_rounds, lambda: at_once))
    return plans, expert_rows, rounds


def _copies(levelled: Levelled | None, servers: Servers, rows: jax.Array) -> jax.Array:
    """The copies of experts on each device, of whose `rows` these are."""
    if levelled is None:
        return jnp.zeros_like(rows)
    used = (levelled.slots >= 0).sum(-1, dtype=jnp.int32)
    return permuted(used, np.array(servers.rank_of))


def _divide(choices: Sequence[Choices], arrangements: Sequence[Arrangement]) -> Rounds:
    """Divides tokens into rounds, each of consecutive tokens of a device's chunk.

    A chunk's tokens are cut into parts that find room whatever they choose, and as many parts as
    find room together go in one round.
    """
    group, experts = arrangements[0].group, arrangements[0].experts
    devices, count = experts.devices, experts.count
    every = [chunk.experts for chunk in choices]
    top_k = every[0].shape[1]
    lengths = [max(1, a.experts.available // (devices * top_k)) for a in arrangements]
    parts = max(-(-len(chosen) // length) for chosen, length in zip(every, lengths, strict=True))
    of_parts, part_of = [], []
    for chosen, length in zip(every, lengths, strict=True):
        part = quotient(jnp.arange(len(chosen), dtype=jnp.int32), length)
        at = jnp.where(chosen < count, part[:, None] * count + chosen, parts * count)
        of_parts.append(routing.count(at, parts * count).reshape(parts, count))
        part_of.append(part)
    (gathered,) = group.gather([jnp.stack(of_parts, 1)])  # (senders, parts, chunks, experts)
    rows = gathered.sum(0, dtype=jnp.int32)

    def take(filled: _Round, rows: jax.Array) -> tuple[_Round, tuple[jax.Array, Computed]]:
        together = _fill(filled.number, filled.rows + rows, arrangements)
        alone = _fill(filled.number + 1, rows, arrangements)
        made = jax.tree.map(lambda a, b: jnp.where(together.fits, a, b), together, alone)
        return made, (made.number, made.computed)

    start = _fill(jnp.zeros_like(rows[0, 0, 0]), jnp.zeros_like(rows[0]), arrangements)
    last, (numbers, filled) = jax.lax.scan(take, start, rows)
    is_last = jnp.diff(numbers, append=last.number + 1)[:, None] > 0  # of its round
    whole = jax.tree.map(lambda each: jnp.where(is_last, each, 0), filled)
    computed = Computed(whole.rows.sum(0, dtype=jnp.int32), whole.copies.max(0))
    of_tokens = [look_up(numbers, part) for part in part_of]
    return Rounds(of_tokens, batch_max(last.number + 1), computed)


class _Round(NamedTuple):
    """A round that is filled, as far as it is.

    Attributes:
      number: its own, from 0.
      rows: of each expert, shape (chunks, num_experts).
      fits: whether they find room: all together, and in the first round those of each chunk, too.
      computed: what devices do in it.
    """

    number: jax.Array
    rows: jax.Array
    fits: jax.Array
    computed: Computed


def _fill(number: jax.Array, rows: jax.Array, arrangements: Sequence[Arrangement]) -> _Round:
    """The round of that number with these rows."""
    servers, experts = arrangements[0].servers, arrangements[0].experts
    rooms = np.array([a.experts.available for a in arrangements], np.int32)
    total = rows.sum(0, dtype=rows.dtype)
    levelled = level(total, servers, experts.balance)

    def of_devices(rows: jax.Array) -> jax.Array:
        # Whoever sends them.
        counts = jnp.zeros_like(rows, shape=(experts.devices, len(rows))).at[0].set(rows)
        return deal(counts, levelled, servers).sizes.sum((0, 2), dtype=rows.dtype)

    chunks = jnp.stack([of_devices(rows[chunk]) for chunk in range(len(rooms))])
    together, is_first = of_devices(total), number == 0
    fits = (together.max() <= int(rooms.sum())) & (~is_first | (chunks.max(-1) <= rooms).all())
    own = jnp.where(is_first, chunks.sum(0, dtype=rows.dtype), together)
    return _Round(number, rows, fits, Computed(own, _copies(levelled, servers, together)))


def arrange_further(
    whole: Arrangement, arrangements: Iterable[Arrangement], tokens: int, top_k: int
) -> Arrangement | None:
    """How tokens of all chunks go in a further round; None where all find room in the first."""
    rooms = [arrangement.experts for arrangement in arrangements]
    if all(experts.drop is not False for experts in rooms):
        return None
    available = sum(experts.available for experts in rooms)
    experts = whole.experts.with_room(available, (tokens, top_k), drop=None)
    return dataclasses.replace(whole, experts=experts)


def further(
    arrangement: Arrangement,
    rounds: Rounds,
    experts: Experts,
    chosen: jax.Array,
    values: Any,
) -> tuple[jax.Array, jax.Array]:
    """The results of tokens that go in further rounds, and zero for others.

    And the tokens, for the first round, which begins after these.

    Args:
      arrangement: by `arrange_further`.
      rounds: of the tokens.
      experts: of a device, by `programs.closed`.
      chosen: the experts of all tokens, by `routing.check`.
      values: of these, which may have derivatives: tokens, weights, params, and the captured values
        of the experts.
    """
    floats, others, joined = types.split(jax_compat.vary_together(values, ()))

    def of_round(number: jax.Array, floats: Sequence[jax.Array], constants: Any) -> jax.Array:
        of_tokens, others, chosen = constants
        x, weights, params, captured = joined(floats, others)
        every = Choices(chosen, jnp.zeros_like(chosen, shape=()))
        going = every.only((of_tokens == number)[:, None], arrangement.experts.count)
        plans = plan_dispatches([going], [arrangement])
        params = plans.params(params, arrangement), captured
        return one_chunk(x, weights, plans.ways[0], experts, params)

    constants = jnp.concatenate(rounds.of_tokens), others, chosen
    with jax.named_scope("moe_round"):
        return _summed(of_round, in_reverse_mode(floats), values[0], constants, rounds.number)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(
    function: Callable[..., Any], values: Any, later: Any, constants: Any, count: jax.Array
) -> tuple[Any, Any]:
    """The sum of `function(n, values, constants)` over n from 1 on, below a count; and `later`.

    The derivative is another such sum, so there are derivatives of any order, and nothing is kept
    for any n: the backward pass makes the results of each again.

    `later` is for what begins after the sum. Backward it is the other way round: the sum of
    cotangents begins when that of `later` is there. So the arrays that what is later keeps for the
    backward pass are never there together with those of the sum.
    """
    made = jax.eval_shape(function, count, values, constants)
    start = jax.tree.map(lambda a: jnp.zeros_like(count, a.dtype, shape=a.shape), made)

    def add(n: jax.Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, function(n, values, constants))

    total = jax.lax.fori_loop(1, count, add, start)
    return total, _after(later, total)


def _after(values: Any, earlier: Any) -> Any:
    return jax.tree.map(lambda value: after(value, *jax.tree.leaves(earlier)), values)


def _summed_forward(function: Callable[..., Any], *operands: Any) -> Any:
    values, _, *rest = operands
    return _summed(function, *operands), (values, *rest)


def _summed_backward(function: Callable[..., Any], kept: Any, cts: tuple[Any, Any]) -> Any:
    values, constants, count = kept
    ct, later_ct = cts

    def cotangents(n: jax.Array, values: Any, constants: Any) -> Any:
        values, ct = values
        _, back = jax.vjp(lambda values: function(n, values, constants), values)
        return back(ct)[0]

    values = values, _after(ct, later_ct)
    made: Any = _summed(cotangents, values, None, constants, count)
    return made[0], later_ct, None, None


_summed.defvjp(_summed_forward, _summed_backward)
