"""A layer of experts in chunks of tokens: one pipeline, forward and backward.

While the experts of one chunk work, rows of the next chunk travel to them and rows of the one
before travel back. All devices run one program, in which the exchanges of a chunk begin after those
of the chunk before: each is a start and an end, and the token of one start is an operand of the
next. One derivative rule holds the whole pipeline, so no token is differentiated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

from fastjax import jax_compat
from fastjax.moe import steps, types
from fastjax.moe.linear import Begun, is_moving
from fastjax.moe.planning import Way
from fastjax.moe.plans import Plans
from fastjax.moe.routing import Token
from fastjax.moe.steps import Experts, Kept, Params, Spread, Weights
from fastjax.traced.after import after
from fastjax.traced.reverse_mode import in_reverse_mode


class _Values(NamedTuple):
    """Arrays of a layer that may have derivatives: tokens and weights of each chunk, and params."""

    x: tuple[jax.Array, ...]
    weights: tuple[Weights, ...]
    params: Params


def run(
    x: Sequence[jax.Array],
    weights: Sequence[Weights],
    plans: Plans,
    experts: Experts,
    params: Params,
) -> jax.Array:
    """The results of all tokens; several chunks go through the pipeline.

    Args:
      x: tokens of each chunk.
      weights: of these, or None for each.
      plans: of all. They are made before rows of any are sent, since the messages of planning would
        wait in the network behind rows: each plan as long as NICs and switches have rows in their
        queues.
      experts: of a device; those of several chunks by `programs.closed`.
      params: of these, and then the captured values, which stay as the experts know them: the same
        on all devices, perhaps.
    """
    if len(x) == 1:
        return steps.one_chunk(x[0], weights[0], plans.ways[0], experts, params)
    params, captured = params
    values = _Values(tuple(x), tuple(weights), params)
    operands = values, tuple(plans.ways), plans.token
    values, *rest = jax_compat.vary_together(operands, plans.ways[0].arrangement.group.axes)
    values = in_reverse_mode(values._replace(params=(values.params, captured)))
    results = jax_compat.with_symbolic_zeros(functools.partial(_run, experts), values, *rest)
    return jnp.concatenate(results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    experts: Experts, values: _Values, ways: Sequence[Way], token: jax.Array
) -> tuple[jax.Array, ...]:
    results, _ = _forward(experts, values, ways, token, None)
    return results


def _run_forward(experts: Experts, *primals: Any) -> Any:
    perturbed = lambda tree: any(leaf.perturbed for leaf in jax.tree.leaves(tree))  # noqa: E731
    wanted = _Wanted(perturbed(primals[0].x), perturbed(primals[0].weights))
    values, ways, token = custom_vjp_primal_tree_values(primals)
    ordered = jax.tree.map(jax.lax.stop_gradient, values)
    results, kept = _forward(experts, ordered, ways, token, wanted)
    plain = functools.partial(_one_by_one, experts)
    results = _derived(plain, values, ways, results)
    return results, (wanted, values, ways, kept)


@jax.named_scope("moe_gradient")
def _run_backward(experts: Experts, residuals: Any, cts: Any) -> Any:
    wanted, values, ways, kept = residuals
    if not any(is_moving(kept[c][0].empty.dtype, ct) for c, ct in enumerate(cts)):
        return None, None, None
    cts = tuple(
        jnp.zeros_like(arrays.empty, shape=ct.shape) if isinstance(ct, SymbolicZero) else ct
        for (arrays, _), ct in zip(kept, cts, strict=True)
    )
    ordered = jax.tree.map(jax.lax.stop_gradient, (values, cts, kept))
    made = _backward(wanted, ordered, ways)
    plain = functools.partial(_cotangents, experts, wanted)
    return _derived(plain, (values, cts), ways, made), None, None


_run.defvjp(_run_forward, _run_backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _derived(plain: Callable[[Any, Any], Any], values: Any, constants: Any, made: Any) -> Any:
    """Results that were made in an order, which has no derivatives.

    They get the derivatives of `plain`, which makes the same of values and constants.
    """
    del plain, values, constants
    return made


def _derived_forward(plain: Any, *operands: Any) -> Any:
    return _derived(plain, *operands), operands[:2]


def _derived_backward(plain: Callable[..., Any], operands: Any, cts: Any) -> Any:
    values, constants = operands
    _, vjp = jax.vjp(lambda values: plain(values, constants), values)
    return *vjp(cts), None, None


_derived.defvjp(_derived_forward, _derived_backward)


def _one_by_one(experts: Experts, values: _Values, ways: Sequence[Way]) -> tuple[jax.Array, ...]:
    """The results, by exchanges without an order, which have all derivatives."""
    chunks = zip(values.x, values.weights, ways, strict=True)
    return tuple(steps.one_chunk(*chunk, experts, values.params) for chunk in chunks)


def _cotangents(
    experts: Experts, wanted: _Wanted, operands: tuple[_Values, Any], ways: Sequence[Way]
) -> _Values:
    """Those of `_one_by_one`, where `_backward` has any."""
    values, cts = operands
    _, vjp = jax.vjp(lambda values: _one_by_one(experts, values, ways), values)
    made = jax.tree.map(lambda ct: None if ct.dtype == jax.dtypes.float0 else ct, *vjp(cts))
    none = (None,) * len(ways)
    x, weights = made.x if wanted.x else none, made.weights if wanted.weights else none
    return made._replace(x=x, weights=weights)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Which cotangents somebody wants."""

    x: bool
    weights: bool


def in_order(
    chunks: Sequence[int],
    token: Token,
    start: Callable[[int, Token], Any],
    spread: Callable[[int, Any, Token], Spread],
    work: Callable[[int, Spread, Token], Any],
    start_back: Callable[[int, Spread, Any, Token], Any],
) -> tuple[list[tuple[int, Spread, Any, Any]], Token]:
    """The order of a layer's exchanges and experts, forward and backward alike.

    XLA runs collectives in one order, and its threads begin nothing while experts work on them. So
    the rows of all chunks are sent before counts are gathered inside servers and before experts
    work, and the results of one chunk are sent before experts work on the next.

    XLA gives the memory of what an exchange takes to others once its end has been, which wait for
    it then. So the results are received after the returned token, when all chunks are on their way.
    And the second chunk is spread once experts have worked on the first: otherwise these would wait
    for the rows of both, in memory that what spreads the second had before.

    Args:
      chunks: in order.
      token: of the plans.
      start: sends rows of a chunk.
      spread: spreads rows inside servers, once they have arrived.
      work: has experts work on the rows, after a token.
      start_back: sends the results.

    Returns:
      Each chunk, its rows, what experts have made of them, and that on its way back; and the token
      of the last of these.
    """
    sent = {}
    for chunk in chunks:
        sent[chunk] = start(chunk, token)
        token = sent[chunk].token
    turn = inside = token
    returning = []
    for chunk in chunks:
        rows = spread(chunk, sent[chunk], inside)
        inside = rows.token
        made = work(chunk, rows, turn)
        back = start_back(chunk, rows, made, token)
        if back is not None:
            token = turn = back.token
        returning.append((chunk, rows, made, back))
        if chunk == chunks[0]:
            inside = token
    return returning, token


def _rows(spread: Spread, turn: Token) -> jax.Array:
    """Rows for experts that begin after `turn`, on another thread than the exchange's."""
    rows = spread.rows(turn)
    return rows if turn is None else after(rows, turn, detached=True)


def _forward(
    experts: Experts,
    values: _Values,
    ways: Sequence[Way],
    token: jax.Array,
    wanted: _Wanted | None,
) -> tuple[tuple[jax.Array, ...], list[tuple[Kept, Any]]]:
    """The results; and, where cotangents are wanted, arrays for the backward pass."""

    def work(_: int, spread: Spread, turn: Token) -> Any:
        rows, factors, route = _rows(spread, turn), spread.factors(turn), spread.route
        floats, others, joined = types.split(values.params)

        def of(rows: jax.Array, floats: Sequence[jax.Array]) -> jax.Array:
            params = joined(floats, others)
            return experts(rows, route.group_sizes, route.group_rows, params)

        if wanted is None:
            made, vjp = of(rows, floats), None
        elif jnp.issubdtype(rows.dtype, jnp.inexact):
            made, vjp = jax.vjp(of, rows, floats)
        else:
            made, vjp = jax.vjp(functools.partial(of, rows), floats)
        return steps.check_rows(made, route.rows), factors, vjp

    def start_back(chunk: int, spread: Spread, made: Any, token: Token) -> Begun:
        rows, factors, _ = made
        payload_dtype = ways[chunk].arrangement.payload_dtype
        return steps.start_sums(rows, factors, spread.route, payload_dtype, token, spread.token)

    returning, last = in_order(
        range(len(ways)),
        token,
        lambda c, token: steps.start(ways[c], values.x[c], values.weights[c], token),
        lambda c, sent, token: steps.spread(ways[c], sent, token),
        work,
        start_back,
    )
    results, kept = [], []
    for chunk, spread, (made, factors, vjp), sent in returning:
        sums, choices = steps.finish_sums(sent, values.weights[chunk], spread.route, last)
        results.append(sums.astype(made.dtype))
        if wanted is None:
            continue
        rows = None
        if wanted.weights:
            rows = made if choices is None else choices
        kept.append((Kept(spread.route, values.weights[chunk], factors, rows, made[:0]), vjp))
    return tuple(results), kept


def _backward(
    wanted: _Wanted,
    operands: tuple[_Values, Sequence[jax.Array], Sequence[tuple[Kept, Any]]],
    ways: Sequence[Way],
) -> _Values:
    """The cotangents of tokens, weights and params, the last chunk's first."""
    values, cts, kept = operands
    x_cts: list[Any] = [None] * len(kept)
    weights_cts: list[Any] = [None] * len(kept)
    params_ct: list[jax.Array] = []

    def work(chunk: int, spread: Spread, turn: Token) -> tuple[jax.Array | None, jax.Array | None]:
        nonlocal params_ct
        arrays, vjp = kept[chunk]
        made_ct, factors_ct = steps.weigh(ways[chunk], _rows(spread, turn), arrays)
        *rows_ct, of_chunk = vjp(made_ct)
        params_ct = list(map(jnp.add, params_ct, of_chunk)) if params_ct else of_chunk
        return rows_ct[0] if wanted.x else None, factors_ct

    def start_back(chunk: int, spread: Spread, made: Any, token: Token) -> Any:
        rows, each = made
        if rows is None and each is None:
            return None
        return steps.start_back(ways[chunk], rows, each, kept[chunk][0], token, spread.token)

    returning, last = in_order(
        range(len(kept) - 1, -1, -1),
        jnp.zeros((), jnp.float32),
        lambda c, token: steps.start_cotangents(ways[c], cts[c], kept[c][0], token),
        lambda c, sent, token: steps.spread_cotangents(ways[c], sent, kept[c][0], token),
        work,
        start_back,
    )
    for chunk, _, _, sent in returning:
        rows, each = steps.finish_back(ways[chunk], sent, cts[chunk], kept[chunk][0], last)
        if wanted.x:
            assert rows is not None
            x_cts[chunk] = rows.astype(values.x[chunk].dtype)
        if wanted.weights:
            weights_cts[chunk] = each
    _, others, joined = types.split(values.params)
    params = joined(params_ct, [None] * len(others))
    return _Values(tuple(x_cts), tuple(weights_cts), params)
