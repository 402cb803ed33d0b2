"""Further rounds: a loop that ends where no device has tokens left.

Where all find room at first, it does nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fastjax import jax_compat
from fastjax.moe import pipeline, routing, types
from fastjax.moe.arrangement import Arrangement, room_for
from fastjax.moe.dispatching import plan_dispatches
from fastjax.moe.pipeline import Experts
from fastjax.moe.rounds import Rounds
from fastjax.traced.after import after
from fastjax.traced.reverse_mode import in_reverse_mode


def arrange_further(
    whole: Arrangement, arrangements: Iterable[Arrangement], tokens: int, top_k: int
) -> Arrangement | None:
    """How tokens of all chunks go in a further round; None where all find room in the first."""
    rooms = [arrangement.experts for arrangement in arrangements]
    if not any(experts.may_overflow for experts in rooms):
        return None
    available, devices = sum(experts.available for experts in rooms), len(whole.servers.rank_of)
    experts = room_for(whole.experts, available, (tokens, top_k), devices, drop=False)
    return dataclasses.replace(whole, experts=dataclasses.replace(experts, may_overflow=False))


def further(
    arrangement: Arrangement,
    rounds: Rounds,
    experts: Experts,
    expert_ids: jax.Array,
    values: Any,
) -> jax.Array:
    """The results of tokens that go in further rounds, and zero for others.

    Args:
      arrangement: by `arrange_further`.
      rounds: of the tokens.
      experts: of a device, by `programs.closed`.
      expert_ids: of all tokens.
      values: of these, which may have derivatives: tokens, weights, params, and the captured values
        of the experts.
    """
    leaves, structure = jax.tree.flatten(values)
    leaves = jax_compat.vary_together(leaves, ())
    floats, others, joined = types.split(jax.tree.unflatten(structure, leaves))

    def of_round(number: jax.Array, floats: Sequence[jax.Array], constants: Any) -> jax.Array:
        of_tokens, others, expert_ids = constants
        x, weights, params, captured = joined(floats, others)
        mask = (of_tokens == number)[:, None]
        ids = jnp.where(mask, expert_ids.astype(jnp.int32), routing.UNROUTED)
        plans = plan_dispatches([ids], [arrangement])
        params = plans.params(params, arrangement), captured
        return pipeline.one_chunk(x, weights, plans.planned[0], arrangement, experts, params)

    constants = rounds.of_tokens, others, expert_ids
    with jax.named_scope("moe_round"):
        return _summed(of_round, in_reverse_mode(floats), constants, rounds.number)


@jax.custom_vjp
def in_turn(made: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The results of further rounds, and the tokens for the first, which begins after these.

    Backward it is the other way round: cotangents of further rounds begin when those of the tokens
    are there. So the arrays of the first, which are kept for the backward pass, are never there
    together with those of another.
    """
    return made, after(x, made)


def _in_turn_forward(*operands: jax.Array) -> Any:
    return in_turn(*operands), None


def _in_turn_backward(_: None, cts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    made_ct, x_ct = cts
    return after(made_ct, x_ct), x_ct


in_turn.defvjp(_in_turn_forward, _in_turn_backward)


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


__all__ = ["arrange_further", "further", "in_turn"]
