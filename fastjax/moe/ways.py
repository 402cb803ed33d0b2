"""The ways of tokens to their experts and back, in the steps that chunks go through.

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
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.crossing import come_back, cross
from fastjax.moe.inside_servers import copying
from fastjax.moe.levelled import Levelled, of_server
from fastjax.moe.linear import named
from fastjax.moe.planning import Room
from fastjax.moe.routing import Crossing, Route, Token
from fastjax.moe.transit import Arrays, Begun, Trip, depart

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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Way:
    """A chunk that has been planned: there is a row for each choice, or for each token and server.

    Rows that cross to servers are copied inside these.

    Attributes:
      trip: of the rows.
      room: which choices found it.
      arrangement: what has been decided of all chunks.
      numbers: where tokens cross, of each choice's expert; see `Servers.number_in_server`.
      levelled: how experts are then, if they are.
    """

    trip: Trip
    room: Room
    arrangement: Arrangement = dataclasses.field(metadata={"static": True})
    numbers: jax.Array | None = None
    levelled: Levelled | None = None

    @property
    def crossing(self) -> Crossing | None:
        """Between servers, where tokens cross."""
        return self.trip if isinstance(self.trip, Crossing) else None

    def start(self, x: jax.Array, weights: Weights, token: Token) -> Begun:
        """Sends tokens; their weights stay, unless tokens cross."""
        if isinstance(self.trip, Crossing):
            assert self.numbers is not None
            each = _none_of(x) if weights is None else weights
            operands = x, each.astype(types.summed_in(each.dtype)), self.numbers
        else:
            # Not x[order // k]: the transpose of that adds rows up in no certain order.
            each = jnp.broadcast_to(x[:, None], (*self.trip.kept.shape, x.shape[1]))
            operands = (self.trip.by_expert(each),)
        return _begin(self._there(x.dtype), operands, self.trip, token)

    def spread(self, sent: Begun, token: Token) -> Spread:
        """Spreads them over the devices of their experts, once they have arrived."""
        if isinstance(self.trip, Route):
            return Spread(sent.rows, self.trip, token)
        x, weights, numbers = sent.results(token)
        route = self._route_inside(numbers, token)
        dtype = self._copied_type(x.dtype)
        if not weights.shape[1]:
            return _copies(x, dtype, route, token)
        sent_weights = inside_servers.send_weights(weights, route, token)
        copies = _copies(x, dtype, route, sent_weights.token)
        return copies._replace(factors=sent_weights.rows)

    def start_cotangents(self, ct: jax.Array, kept: Kept, token: Token) -> Begun:
        """Sends the cotangents of the sums."""
        dtype = kept.empty.dtype
        if isinstance(self.trip, Crossing):
            _, _, wide = inside_servers.sum_types(kept.empty, kept.factors)
            operands = ct.astype(wide), _none_of(ct)
        else:
            each = _weights_of(kept.weights, self.trip, dtype)
            wide = types.summed_in(dtype, each.dtype)
            rows = ct[:, None].astype(wide) * each.astype(wide)[..., None]
            operands = (self.trip.by_expert(types.narrowed(rows, dtype)),)
        back = _back(self.trip, self.arrangement.payload_dtype, dtype, operands[0].dtype)
        return back.transposed.start(operands, self.trip, token)

    def spread_cotangents(self, sent: Begun, kept: Kept, token: Token) -> Spread:
        """Spreads them over the devices of the experts, once they have arrived."""
        if self.crossing is None:
            return self.spread(sent, token)
        summed, *_ = inside_servers.sum_types(kept.empty, kept.factors)
        cts = sent.results(token)[0].astype(summed.dtype)
        return _copies(cts, cts.dtype, kept.route, token)

    def weigh(self, copies: jax.Array, kept: Kept) -> tuple[jax.Array, Weights]:
        """The cotangents of experts' results, and those of their weights if they came along."""
        if self.crossing is None:
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
        self, rows: jax.Array | None, each: Weights, kept: Kept, token: Token, inside: Token
    ) -> Begun:
        """Sends the cotangents of tokens and of weights, those that are wanted.

        `inside` is the token of the last exchange inside servers.
        """
        route = kept.route
        if self.crossing is None:
            assert rows is not None
            return self._there(rows.dtype).transposed.start((rows,), route, token)
        sums = values = jnp.zeros((len(route.kept), 0), jnp.float32)
        if each is not None:
            returned = inside_servers.return_values(each, route, inside)
            values = route.by_choice(returned.rows()).reshape(route.kept.shape)
            inside = returned.token
        if rows is not None:
            copied = rows.astype(self._copied_type(rows.dtype))
            summed = copying(copied.dtype).transposed
            sums = summed.start((copied,), route, inside).rows()
            sums = sums.astype(copied.dtype).astype(rows.dtype)
        back = self._there(sums.dtype).transposed
        return back.start((sums, values), self.crossing, token)

    def finish_back(
        self, sent: Begun | None, ct: jax.Array, kept: Kept, token: Token
    ) -> tuple[jax.Array | None, Weights]:
        """The cotangents of tokens and of weights, from those of sums and what came back."""
        x_ct = each = None
        if sent is not None:
            x_ct, *values = sent.results(token)
            each = values[0] if values else None
            if self.crossing is None:
                x_ct = kept.route.by_choice(x_ct).sum(1)
        if kept.rows is None or kept.weights is None:
            return x_ct, None
        if each is None:  # they have stayed at their tokens
            wide = types.summed_in(kept.rows.dtype, kept.weights.dtype)
            each = (kept.rows.astype(wide) * ct[:, None].astype(wide)).sum(-1)
            each = jnp.where(kept.route.kept, each, 0)
        return x_ct, types.narrowed(each, kept.weights.dtype)

    def _there(self, dtype: np.dtype) -> linear.Map:
        return _there(self.trip, self.arrangement.wire, dtype)

    def _copied_type(self, dtype: np.dtype) -> np.dtype:
        return inside_servers.copied_type(dtype, self.arrangement.wire)

    @jax.named_scope("moe_to_experts")
    def _route_inside(self, numbers: jax.Array, token: Token) -> Route:
        """Where tokens on the devices of a server go, by the numbers that crossed with them.

        Those without room have been taken out before. The plan is made after `token`.
        """
        inside, levelled = self.arrangement.inside, self.levelled
        count, group = inside.experts.count, inside.group
        by_expert = routing.by_expert(routing.check(numbers.astype(jnp.int32) - 1, count), count)
        counts = None
        if levelled is not None:
            assert self.crossing is not None
            levelled = of_server(levelled, self.arrangement.servers, self.crossing.here)
            (counts,) = group.gather([by_expert.counts], count)
        route, _ = planning.route(by_expert, counts, inside, group, token, levelled)
        return dataclasses.replace(route, crossing=self.crossing)


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
    spread = way.spread(way.start(x, weights, None), None)
    made = experts(spread.rows(None), spread.route.group_sizes, spread.route.group_rows, params)
    made, factors = check_rows(made, spread.route.rows), spread.factors(None)
    sent = start_sums(made, factors, spread.route, way.arrangement.payload_dtype)
    return finish_sums(sent, weights, spread.route)[0].astype(made.dtype)


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
