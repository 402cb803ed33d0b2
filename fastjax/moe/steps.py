"""The steps of a chunk on its way to experts and back.

`dispatch` and `combine` take the steps of the way there and back without an order. Then they have
derivatives. Chunks have an order, and take their gradients' steps, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import inside_servers, linear, planning, routing, types, wire
from fastjax.moe.crossing import come_back, cross
from fastjax.moe.inside_servers import copying
from fastjax.moe.levelled import of_server
from fastjax.moe.linear import Arrays, Begun, Trip, depart, named
from fastjax.moe.planning import Way
from fastjax.moe.routing import Crossing, Route, Token

Weights = jax.Array | None
Params = Any  # a pytree of arrays
# Of rows, of each local expert's rows with padding and without, and of params.
Experts = Callable[[jax.Array, jax.Array, jax.Array, Params], jax.Array]


class Spread(NamedTuple):
    """Rows on their way to experts.

    Attributes:
      rows: waits for them; they are there after a token.
      route: to the experts.
      token: exists once the chunk has been spread.
      factors: waits for their weights; None without weights, or where these stay at tokens.
    """

    rows: Callable[[Token], jax.Array]
    route: Route
    token: Token
    factors: Callable[[Token], Weights] = lambda _: None


class Kept(NamedTuple):
    """Arrays of a chunk that its backward pass needs.

    Attributes:
      route: of its rows to experts.
      weights: of choices, or None.
      factors: weights of rows at experts, or None.
      rows: results of experts at experts where they are summed there; of choices elsewhere. None if
        weights want no cotangents.
      empty: no rows, of the type of the experts' results.
    """

    route: Route
    weights: Weights
    factors: Weights
    rows: jax.Array | None
    empty: jax.Array


def start(way: Way, x: jax.Array, weights: Weights, token: Token) -> Begun:
    """Sends tokens; their weights stay, unless tokens cross."""
    if isinstance(way.trip, Crossing):
        assert way.numbers is not None
        each = _none_of(x) if weights is None else weights
        operands = x, each.astype(types.summed_in(each.dtype)), way.numbers
    else:
        # Not x[order // k]: the transpose of that adds rows up in no certain order.
        each = jnp.broadcast_to(x[:, None], (*way.trip.kept.shape, x.shape[1]))
        operands = (way.trip.by_expert(each),)
    return _begin(_there(way.trip, way.arrangement.wire, x.dtype), operands, way.trip, token)


def spread(way: Way, sent: Begun, token: Token) -> Spread:
    """Spreads them over the devices of their experts, once they have arrived."""
    if isinstance(way.trip, Route):
        return Spread(sent.rows, way.trip, token)
    x, weights, numbers = sent.results(token)
    route = _route_inside(way, numbers, token)
    dtype = _copied_type(way, x.dtype)
    if not weights.shape[1]:
        return _copies(x, dtype, route, token)
    sent_weights = inside_servers.send_weights(weights, route, token)
    copies = _copies(x, dtype, route, sent_weights.token)
    return copies._replace(factors=sent_weights.rows)


def start_cotangents(way: Way, ct: jax.Array, kept: Kept, token: Token) -> Begun:
    """Sends the cotangents of the sums."""
    dtype = kept.empty.dtype
    if isinstance(way.trip, Crossing):
        _, _, wide = inside_servers.sum_types(kept.empty, kept.factors)
        operands = ct.astype(wide), _none_of(ct)
    else:
        each = _weights_of(kept.weights, way.trip, dtype)
        wide = types.summed_in(dtype, each.dtype)
        rows = ct[:, None].astype(wide) * each.astype(wide)[..., None]
        operands = (way.trip.by_expert(types.narrowed(rows, dtype)),)
    back = _back(way.trip, way.arrangement.payload_dtype, dtype, operands[0].dtype)
    return back.transposed.start(operands, way.trip, token)


def spread_cotangents(way: Way, sent: Begun, kept: Kept, token: Token) -> Spread:
    """Spreads them over the devices of the experts, once they have arrived."""
    if way.crossing is None:
        return spread(way, sent, token)
    summed, *_ = inside_servers.sum_types(kept.empty, kept.factors)
    cts = sent.results(token)[0].astype(summed.dtype)
    return _copies(cts, cts.dtype, kept.route, token)


def weigh(way: Way, copies: jax.Array, kept: Kept) -> tuple[jax.Array, Weights]:
    """The cotangents of experts' results, and those of their weights if they came along."""
    if way.crossing is None:
        return copies, None
    dtype = kept.empty.dtype
    rows = kept.empty if kept.rows is None else kept.rows
    rows, factors, wide = inside_servers.sum_types(rows, kept.factors)
    if kept.factors is None or factors is None:
        return types.narrowed(copies, dtype), None
    if kept.rows is None:
        return types.narrowed(copies.astype(wide) * factors[:, None].astype(wide), dtype), None
    rows_ct, factors_ct = inside_servers.weighted_cotangents(copies, rows, factors)
    return types.narrowed(rows_ct, dtype), factors_ct.astype(kept.factors.dtype)


def start_back(
    way: Way, rows: jax.Array | None, each: Weights, kept: Kept, token: Token, inside: Token
) -> Begun:
    """Sends the cotangents of tokens and of weights, those that are wanted.

    `inside` is the token of the last exchange inside servers.
    """
    route, there = kept.route, functools.partial(_there, way.trip, way.arrangement.wire)
    if way.crossing is None:
        assert rows is not None
        return there(rows.dtype).transposed.start((rows,), route, token)
    sums = values = jnp.zeros((len(route.kept), 0), jnp.float32)
    if each is not None:
        returned = inside_servers.return_values(each, route, inside)
        values = route.by_choice(returned.rows()).reshape(route.kept.shape)
        inside = returned.token
    if rows is not None:
        copied = rows.astype(_copied_type(way, rows.dtype))
        summed = copying(copied.dtype).transposed
        sums = summed.start((copied,), route, inside).rows()
        sums = sums.astype(copied.dtype).astype(rows.dtype)
    return there(sums.dtype).transposed.start((sums, values), way.crossing, token)


def finish_back(
    way: Way, sent: Begun | None, ct: jax.Array, kept: Kept, token: Token
) -> tuple[jax.Array | None, Weights]:
    """The cotangents of tokens and of weights, from those of sums and what came back."""
    x_ct = each = None
    if sent is not None:
        x_ct, *values = sent.results(token)
        each = values[0] if values else None
        if way.crossing is None:
            x_ct = kept.route.by_choice(x_ct).sum(1)
    if kept.rows is None or kept.weights is None:
        return x_ct, None
    if each is None:  # they have stayed at their tokens
        wide = types.summed_in(kept.rows.dtype, kept.weights.dtype)
        each = (kept.rows.astype(wide) * ct[:, None].astype(wide)).sum(-1)
        each = jnp.where(kept.route.kept, each, 0)
    return x_ct, types.narrowed(each, kept.weights.dtype)


def _copied_type(way: Way, dtype: np.dtype) -> np.dtype:
    return inside_servers.copied_type(dtype, way.arrangement.wire)


@jax.named_scope("moe_to_experts")
def _route_inside(way: Way, numbers: jax.Array, token: Token) -> Route:
    """Where tokens on the devices of a server go, by the numbers that crossed with them.

    Those without room have been taken out before. The plan is made after `token`.
    """
    inside, levelled = way.arrangement.inside, way.levelled
    count, group = inside.experts.count, inside.group
    by_expert = routing.by_expert(routing.check(numbers.astype(jnp.int32) - 1, count), count)
    counts = None
    if levelled is not None:
        assert way.crossing is not None
        levelled = of_server(levelled, way.arrangement.servers, way.crossing.here)
        (counts,) = group.gather([by_expert.counts], count)
    route, _ = planning.route(by_expert, counts, inside, group, token, levelled)
    return dataclasses.replace(route, crossing=way.crossing)


def start_sums(
    made: jax.Array,
    factors: Weights,
    route: Route,
    payload_dtype: DTypeLike | None,
    token: Token = None,
    inside: Token = None,
) -> Begun:
    """Sends the results of experts to choices; or, where tokens crossed, their sums to tokens.

    Args:
      made: the results.
      factors: weights of rows, where tokens cross once.
      route: of rows to experts.
      payload_dtype: type that rows travel in; see `dispatch`.
      token: of the exchange before.
      inside: of that inside servers.
    """
    trip, operands = route.crossing or route, (made,)
    if route.crossing is not None:
        sums = inside_servers.add_up(made, route, factors, inside)
        operands = sums, _none_of(sums)
    mapped = _back(trip, payload_dtype, made.dtype, operands[0].dtype)
    return _begin(mapped, operands, trip, token)


def finish_sums(
    sent: Begun, weights: Weights, route: Route, token: Token = None
) -> tuple[jax.Array, jax.Array | None]:
    """The sums of tokens, received after `token`; and the rows of choices, if they came."""
    returned = sent.rows(token)
    if route.crossing is not None:
        return returned, None
    choices = route.by_choice(returned)
    return add_up(choices, _weights_of(weights, route, choices.dtype)), choices


def factors_at_experts(weights: jax.Array, route: Route) -> jax.Array:
    """The weights of choices at the rows of their experts: shape (route.rows, 1)."""
    weights = weights.astype(types.summed_in(weights.dtype))
    if route.crossing is not None:  # after their tokens
        nothing = jnp.zeros((len(weights), 0), jnp.uint32)
        mapped = _there(route.crossing, nothing.dtype, nothing.dtype)
        _, weights = linear.apply(mapped, (nothing, weights), route.crossing)
    return inside_servers.send_weights(weights, route).rows()


def one_chunk(
    x: jax.Array,
    weights: Weights,
    way: Way,
    experts: Experts,
    params: Params,
) -> jax.Array:
    """The results of tokens, without an order: dispatch, experts and combine."""
    there = spread(way, start(way, x, weights, None), None)
    made = experts(there.rows(None), there.route.group_sizes, there.route.group_rows, params)
    made, factors = check_rows(made, there.route.rows), there.factors(None)
    sent = start_sums(made, factors, there.route, way.arrangement.payload_dtype)
    return finish_sums(sent, weights, there.route)[0].astype(made.dtype)


def check_rows(rows: jax.Array, room: int) -> jax.Array:
    """The rows of experts, one for each that was dispatched."""
    rows = jnp.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != room:
        raise ArgumentError(
            f"rows must have the shape ({room}, width) of what was dispatched, got {rows.shape}."
        )
    return rows


# What sends a row for each choice, by expert, and its transpose; and for each token and server.
_OF_CHOICES = (
    named("moe_dispatch", depart),
    named("moe_combine", functools.partial(depart, back=True)),
)
_OF_TOKENS = named("moe_cross", cross), named("moe_return", come_back)


def _there(trip: Trip, wire_dtype: np.dtype, dtype: np.dtype) -> linear.Map:
    """That of rows of `dtype`, with `wire_dtype` on the wire."""
    starts = _OF_TOKENS if isinstance(trip, Crossing) else _OF_CHOICES
    return linear.Map(*starts, wire_dtype, wire.of_gradients(wire_dtype, dtype))


def _back(
    trip: Trip, payload_dtype: DTypeLike | None, dtype: np.dtype, wide: np.dtype
) -> linear.Map:
    """That of results of `dtype`, or of their sums in a wide type, which are rounded if floats."""
    wire_dtype = wire.check(payload_dtype, dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        wire_dtype = dtype = wide
    there = _there(trip, wire_dtype, dtype)
    return dataclasses.replace(there, there=there.back, back=there.there)


def _begin(mapped: linear.Map, operands: Arrays, trip: Trip, token: Token) -> Begun:
    """Begins it after a token; or makes it, with derivatives."""
    if isinstance(trip, Crossing) or wire.has_scales(mapped.dtype, operands[0].dtype):
        return linear.begin(mapped, operands, trip, token)
    return mapped.start(operands, trip, token)  # has all derivatives that JAX finds


def add_up(choices: jax.Array, each: jax.Array) -> jax.Array:
    """Sums the rows of each token's choices, weighted, in a wide type: shape (tokens, width)."""
    wide = types.summed_in(choices.dtype, each.dtype)
    return (choices.astype(wide) * each.astype(wide)[..., None]).sum(1)


def _weights_of(weights: Weights, route: Route, dtype: np.dtype) -> jax.Array:
    """The weight of each choice; 0 of those that go nowhere, whose weights may be anything."""
    each = jnp.ones(route.kept.shape, dtype) if weights is None else weights
    each, kept = jax_compat.vary_together((each, route.kept), route.plan.axis_name)
    return jnp.where(kept, each, 0)


def _copies(x: jax.Array, dtype: np.dtype, route: Route, token: Token) -> Spread:
    """Tokens on the devices of a server, which go to their experts in another type."""
    begun = linear.begin(copying(dtype), (x.astype(dtype),), route, token)
    return Spread(lambda token: begun.rows(token).astype(x.dtype), route, begun.token)


def _none_of(rows: jax.Array) -> jax.Array:
    return jnp.zeros((len(rows), 0), jnp.float32)
