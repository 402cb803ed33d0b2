"""Rounds: tokens for which a device has no room yet go later, so that none is dropped.

A round takes some tokens of each device with all of their choices, as a chunk does, but which ones
is decided when the program runs, from the counts of all devices. So sums of a token do not depend
on the rounds, and a round is planned and exchanged as any tokens are. The first is a layer's
ordinary way. Further ones are a loop that ends where no device has tokens left: where all find room
at first, it does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import checkpoint, routing
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.dispatching import plan_dispatches
from fastjax.moe.planning_crossings import Planned
from fastjax.traced.batch_max import batch_max
from fastjax.traced.nonnegative import quotient


class Rounds(NamedTuple):
    """In which rounds tokens go.

    Attributes:
      of_tokens: int32, shape (tokens,): the round of each token, from 0.
      number: int32: how many there are, the same on all devices that exchange with each other.
    """

    of_tokens: jax.Array
    number: jax.Array


class First(NamedTuple):
    """The first round.

    Attributes:
      planned: of each chunk.
      token: exists after all plans; None if there is one.
      expert_rows: rows of all rounds that all devices send to each expert, shape (num_experts,).
      rounds: None where all tokens always find room.
    """

    planned: list[Planned]
    token: jax.Array | None
    expert_rows: jax.Array
    rounds: Rounds | None


def plan_first(expert_ids: Sequence[jax.Array], arrangements: Sequence[Arrangement]) -> First:
    """Plans the first round of each chunk of tokens; see `plan_dispatches`.

    The devices plan for all tokens, as if there were room. Only if there is not, which all know
    from the counts that come with the plan, do they count parts of their tokens, and plan again.
    """
    planned, token = plan_dispatches(expert_ids, arrangements)
    of_chunks = jnp.stack([plan.room.expert_rows for plan in planned])
    expert_rows = of_chunks.sum(0, dtype=jnp.int32)
    if not any(arrangement.experts.may_overflow for arrangement in arrangements):
        return First(planned, token, expert_rows, None)
    rooms = np.array([a.experts.available for a in arrangements], np.int32)
    devices = len(arrangements[0].servers.rank_of)
    over = batch_max((_fullest(of_chunks, devices) > rooms).any())
    zero = jnp.concatenate([jnp.zeros_like(ids[:, 0], jnp.int32) for ids in expert_ids])
    at_once = planned, token, Rounds(zero, jnp.ones_like(over, jnp.int32))

    def in_rounds() -> Any:
        of_chunks = _divide(expert_ids, arrangements)
        first = [
            jnp.where(of_tokens[:, None] == 0, ids.astype(jnp.int32), routing.UNROUTED)
            for of_tokens, ids in zip(of_chunks.of_tokens, expert_ids, strict=True)
        ]
        rounds = Rounds(jnp.concatenate(of_chunks.of_tokens), of_chunks.number)
        return *plan_dispatches(first, arrangements), rounds

    planned, token, rounds = checkpoint.named(jax.lax.cond(over, in_rounds, lambda: at_once))
    return First(planned, token, expert_rows, rounds)


def _fullest(expert_rows: jax.Array, devices: int) -> jax.Array:
    """Rows of the device that has most, of rows to each expert, shape (..., num_experts)."""
    here = expert_rows.shape[-1] // devices
    of_devices = expert_rows.reshape(*expert_rows.shape[:-1], devices, here)
    return of_devices.sum(-1, dtype=expert_rows.dtype).max(-1)


class _Divided(NamedTuple):
    of_tokens: list[jax.Array]  # of each chunk
    number: jax.Array


def _divide(expert_ids: Sequence[jax.Array], arrangements: Sequence[Arrangement]) -> _Divided:
    """Divides tokens into rounds, each of consecutive tokens of a device's chunk.

    A chunk's tokens are cut into parts that find room whatever they choose, and as many parts as
    find room together go in one round.
    """
    group, experts = arrangements[0].group, arrangements[0].experts
    devices = len(arrangements[0].servers.rank_of)
    here = experts.count // devices
    rooms = jnp.array([a.experts.available for a in arrangements], jnp.int32)
    top_k = expert_ids[0].shape[1]
    lengths = [max(1, a.experts.available // (devices * top_k)) for a in arrangements]
    parts = max(-(-len(ids) // length) for ids, length in zip(expert_ids, lengths, strict=True))
    of_parts, part_of = [], []
    for ids, length in zip(expert_ids, lengths, strict=True):
        part = quotient(jnp.arange(len(ids), dtype=jnp.int32), length)
        chosen = routing.check(ids, experts.count).experts
        at = part[:, None] * devices + quotient(chosen, here)
        at = jnp.where(chosen < experts.count, at, parts * devices)
        of_parts.append(routing.count(at, parts * devices).reshape(parts, devices))
        part_of.append(part)
    (gathered,) = group.gather([jnp.stack(of_parts, 1)])  # (senders, parts, chunks, devices)

    def take(state: tuple[jax.Array, jax.Array], rows: jax.Array) -> Any:
        now, number = state
        together = now + rows
        over = together.max(-1) > rooms
        number = number + over.astype(jnp.int32)
        return (jnp.where(over[:, None], rows, together), number), number

    rows = gathered.sum(0, dtype=jnp.int32)
    start = jnp.zeros_like(rows[0]), jnp.zeros_like(rows[0, :, 0])
    (_, last), rounds = jax.lax.scan(take, start, rows)
    of_tokens = [rounds[:, chunk][part] for chunk, part in enumerate(part_of)]
    return _Divided(of_tokens, batch_max(last.max() + 1))


def add_further(
    results: jax.Array,
    rounds: Rounds,
    of_round: Callable[[jax.Array, Any, Any], jax.Array],
    values: Any,
    constants: Any,
) -> jax.Array:
    """Adds the results of tokens that go in further rounds.

    Args:
      results: of those in the first; zero for others.
      rounds: of the tokens.
      of_round: the results of one round, zero for tokens of others: of a mask, bool, shape
        (tokens,), values and constants. Uses no traced values from around it.
      values: a pytree of arrays, which may have derivatives.
      constants: a pytree of arrays that have none.
    """
    leaves, structure = jax.tree.flatten(values)
    results, *leaves = jax_compat.vary_together([results, *leaves], ())
    differ = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    floats = [leaf for leaf, differs in zip(leaves, differ, strict=True) if differs]
    others = [leaf for leaf, differs in zip(leaves, differ, strict=True) if not differs]

    def one(number: jax.Array, floats: Sequence[jax.Array], constants: Any) -> jax.Array:
        of_tokens, others, constants = constants
        left, right = iter(floats), iter(others)
        leaves = [next(left if differs else right) for differs in differ]
        return of_round(of_tokens == number, jax.tree.unflatten(structure, leaves), constants)

    constants = rounds.of_tokens, others, constants
    with jax.named_scope("moe_round"):
        made: Any = _summed(one, floats, constants, rounds.number)
    return results + made


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(function: Callable[..., Any], values: Any, constants: Any, count: jax.Array) -> Any:
    """The sum of `function(n, values, constants)` over n from 1 on, below a count.

    The derivative is another such sum, so there are derivatives of any order, and nothing is kept
    for any n: the backward pass makes the results of each again.
    """
    made = jax.eval_shape(function, count, values, constants)
    start = jax.tree.map(lambda a: jnp.zeros_like(count, a.dtype, shape=a.shape), made)

    def add(n: jax.Array, total: Any) -> Any:
        return jax.tree.map(jnp.add, total, function(n, values, constants))

    return jax.lax.fori_loop(1, count, add, start)


def _summed_forward(function: Callable[..., Any], *operands: Any) -> Any:
    return _summed(function, *operands), operands


def _summed_backward(function: Callable[..., Any], operands: Any, ct: Any) -> Any:
    values, constants, count = operands

    def cotangents(n: jax.Array, values: Any, constants: Any) -> Any:
        values, ct = values
        _, back = jax.vjp(lambda values: function(n, values, constants), values)
        return back(ct)[0]

    return _summed(cotangents, (values, ct), constants, count), None, None


_summed.defvjp(_summed_forward, _summed_backward)


__all__ = ["Rounds", "add_further", "plan_first"]
