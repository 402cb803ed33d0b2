"""The two ways of tokens to their experts and back, in the steps that chunks go through."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import crossing, each_choice, inside_servers, types, wire
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.handle import Crossing
from fastjax.moe.planning import Routed
from fastjax.moe.planning_crossings import Planned, PlannedCrossing
from fastjax.moe.transit import Flight, Token, Transit, arrive, receive, token_of

Weights = jax.Array | None


class Spread(NamedTuple):
    """Rows on their way to experts.

    Attributes:
      flight: the rows.
      dtype: that they are to have.
      routed: to the experts.
      weights: of rows, on their way too; None without weights, or where they stay at their tokens.
      token: exists once the chunk has been spread.
    """

    flight: Flight | Transit
    dtype: np.dtype
    routed: Routed
    weights: Flight | None
    token: Token

    def rows(self, token: Token) -> jax.Array:
        """The rows at their experts, after `token`."""
        if isinstance(self.flight, Transit):
            return arrive(self.flight, token)[0]
        return receive(self.flight, token).astype(self.dtype)


class Kept(NamedTuple):
    """Arrays of a chunk that its backward pass needs.

    Attributes:
      planned: its plan.
      routed: of its rows to experts.
      weights: of choices, or None.
      factors: weights of rows at experts, or None.
      rows: results of experts at experts where they are summed there; of choices elsewhere. None if
        weights want no cotangents.
      empty: no rows, of the type of the experts' results.
    """

    planned: Planned
    routed: Routed
    weights: jax.Array | None
    factors: jax.Array | None
    rows: jax.Array | None
    empty: jax.Array


class Way(Protocol):
    """The steps of a chunk. Tokens are those of the exchange before, and of the chunk's own."""

    def start(self, x: jax.Array, weights: Weights, planned: Any, token: Token) -> Any:
        """Sends tokens."""
        ...

    def spread(self, sent: Any, planned: Any, token: Token) -> Spread:
        """Spreads them over the devices of their experts, once they have arrived."""
        ...

    def start_sums(
        self, made: jax.Array, spread: Spread, planned: Any, factors: Weights, token: Token
    ) -> Any:
        """Sends the results of experts, whose weights are `factors` if they came along."""
        ...

    def finish_sums(
        self, sent: Any, weights: Weights, planned: Any, token: Token
    ) -> tuple[jax.Array, jax.Array | None]:
        """The sums of tokens, received after `token`; and the rows of choices, if they came."""
        ...

    def start_cotangents(self, ct: jax.Array, kept: Kept, token: Token) -> Any:
        """Sends the cotangents of the sums."""
        ...

    def spread_cotangents(self, sent: Any, kept: Kept, token: Token) -> Spread:
        """Spreads them over the devices of the experts, once they have arrived."""
        ...

    def weigh(self, copies: jax.Array, kept: Kept) -> tuple[jax.Array, Weights]:
        """The cotangents of experts' results, and those of their weights if they came along."""
        ...

    def start_back(
        self, rows: jax.Array | None, each: Weights, kept: Kept, token: Token, inside: Token
    ) -> Any:
        """Sends the cotangents of tokens and of weights, those that are wanted.

        `inside` is the token of the last exchange inside servers.
        """
        ...

    def finish_back(self, sent: Any, kept: Kept, token: Token) -> tuple[jax.Array, Weights]:
        """The cotangents of tokens, and of weights if they came along."""
        ...

    def weights_cotangent(self, ct: jax.Array, each: Weights, kept: Kept) -> jax.Array:
        """The cotangents of weights, from those of sums or from those that came back."""
        ...


def way_of(arrangement: Arrangement) -> Way:
    """The way of a chunk that is arranged so."""
    return (_Deduplicated if arrangement.deduplicated else _EachChoice)(arrangement)


@dataclasses.dataclass(frozen=True)
class _EachChoice:
    """A row for each choice."""

    arrangement: Arrangement

    def start(self, x: jax.Array, weights: Weights, planned: Routed, token: Token) -> Transit:
        del weights  # which stay at their tokens
        rows = each_choice.of_each_choice(x, planned.route)
        return each_choice.to_experts(rows, planned.route, self.arrangement.wire, token)

    def spread(self, sent: Transit, planned: Routed, token: Token) -> Spread:
        return Spread(sent, sent.dtype, planned, None, token)

    def start_sums(
        self, made: jax.Array, spread: Spread, planned: Routed, factors: Weights, token: Token
    ) -> Transit:
        del spread, factors
        wire_dtype = wire.check(self.arrangement.payload_dtype, made.dtype)
        return each_choice.from_experts(made, planned.route, wire_dtype, token)

    def finish_sums(
        self, sent: Transit, weights: Weights, planned: Routed, token: Token
    ) -> tuple[jax.Array, jax.Array]:
        """The sums of tokens, and the rows of their choices."""
        returned = arrive(sent, token)[0]
        choices = each_choice.by_choice(returned, planned.route)
        each = each_choice.weights_of(weights, planned.route, choices.dtype)
        return each_choice.add_up(choices, each), choices

    def start_cotangents(self, ct: jax.Array, kept: Kept, token: Token) -> Transit:
        route, dtype = kept.routed.route, kept.empty.dtype
        each = each_choice.weights_of(kept.weights, route, dtype)
        wide = types.summed_in(dtype, each.dtype)
        rows = ct[:, None].astype(wide) * each.astype(wide)[..., None]
        rows = each_choice.by_expert(types.narrowed(rows, dtype), route)
        wire_dtype = wire.check(self.arrangement.payload_dtype, dtype)
        wire_dtype = crossing.gradient_wire(wire_dtype, dtype)
        return each_choice.to_experts(rows, route, wire_dtype, token)

    def spread_cotangents(self, sent: Transit, kept: Kept, token: Token) -> Spread:
        return self.spread(sent, kept.routed, token)

    def start_back(
        self, rows: jax.Array | None, each: Weights, kept: Kept, token: Token, inside: Token
    ) -> Transit:
        del each, inside
        assert rows is not None
        wire_dtype = crossing.gradient_wire(self.arrangement.wire, rows.dtype)
        return each_choice.from_experts(rows, kept.routed.route, wire_dtype, token)

    def finish_back(self, sent: Transit, kept: Kept, token: Token) -> tuple[jax.Array, None]:
        return each_choice.by_choice(arrive(sent, token)[0], kept.routed.route).sum(1), None

    def weigh(self, copies: jax.Array, kept: Kept) -> tuple[jax.Array, None]:
        del kept
        return copies, None

    def weights_cotangent(self, ct: jax.Array, each: Weights, kept: Kept) -> jax.Array:
        del each
        assert kept.weights is not None
        assert kept.rows is not None
        wide = types.summed_in(kept.rows.dtype, kept.weights.dtype)
        each = (kept.rows.astype(wide) * ct[:, None].astype(wide)).sum(-1)
        return types.narrowed(jnp.where(kept.routed.route.kept, each, 0), kept.weights.dtype)


@dataclasses.dataclass(frozen=True)
class _Deduplicated:
    """A row for each token and server, and inside servers a copy for each choice."""

    arrangement: Arrangement

    def start(
        self, x: jax.Array, weights: Weights, planned: PlannedCrossing, token: Token
    ) -> crossing.Sent:
        each, wire_dtype = crossing.weights_to_send(weights, len(x)), self.arrangement.wire
        return crossing.start_there(x, each, planned.numbers, planned.crossing, wire_dtype, token)

    def spread(self, sent: crossing.Sent, planned: PlannedCrossing, token: Token) -> Spread:
        x, weights, numbers = crossing.finish_there(sent, token)
        routed = self.arrangement.route_inside(numbers, planned.levelled, token)
        each = None
        if weights.shape[1]:
            each = inside_servers.start_weights(weights, routed.route, token)
            token = token_of(each)
        rows = x.astype(inside_servers.copied_type(x.dtype, self.arrangement.wire))
        copies = inside_servers.start_copies(rows, routed.route, token)
        return Spread(copies, x.dtype, routed, each, token_of(copies))

    def start_sums(
        self,
        made: jax.Array,
        spread: Spread,
        planned: PlannedCrossing,
        factors: Weights,
        token: Token,
    ) -> crossing.Sent:
        route = spread.routed.route
        wire_dtype = wire.check(self.arrangement.payload_dtype, made.dtype)
        if jnp.issubdtype(made.dtype, jnp.inexact):
            rows, factors, wide = inside_servers.sum_types(made, factors)
            sums = receive(inside_servers.start_sums(rows, factors, route, wide, spread.token))
        else:
            sums = inside_servers.add_up(made, route, factors)
        wire_dtype, _ = crossing.sum_wires(sums.dtype, made.dtype, wire_dtype)
        return crossing.start_back(sums, _nothing(sums), planned.crossing, wire_dtype, token)

    def finish_sums(
        self, sent: crossing.Sent, weights: Weights, planned: PlannedCrossing, token: Token
    ) -> tuple[jax.Array, None]:
        del weights
        return crossing.finish_back(sent, planned.crossing, token)[0], None

    def start_cotangents(self, ct: jax.Array, kept: Kept, token: Token) -> crossing.Sent:
        way, dtype = _crossing_of(kept), kept.empty.dtype
        _, _, wide = inside_servers.sum_types(kept.empty, kept.factors)
        ct = ct.astype(wide)
        wire_dtype = wire.check(self.arrangement.payload_dtype, dtype)
        _, wire_dtype = crossing.sum_wires(wide, dtype, wire_dtype)
        numbers = crossing.no_numbers(way)
        return crossing.start_there(ct, _nothing(ct), numbers, way, wire_dtype, token)

    def spread_cotangents(self, sent: crossing.Sent, kept: Kept, token: Token) -> Spread:
        summed, *_ = inside_servers.sum_types(kept.empty, kept.factors)
        cts = crossing.finish_there(sent, token)[0].astype(summed.dtype)
        copies = inside_servers.start_copies(cts, kept.routed.route, token)
        return Spread(copies, cts.dtype, kept.routed, None, token_of(copies))

    def start_back(
        self,
        rows: jax.Array | None,
        each: Weights,
        kept: Kept,
        token: Token,
        inside: Token,
    ) -> crossing.Sent:
        route, wire_dtype = kept.routed.route, self.arrangement.wire
        values = jnp.zeros((route.tokens, 0), jnp.float32)
        if each is not None:
            flight = inside_servers.start_values(each, route, inside)
            values, inside = inside_servers.finish_values(flight, route), token_of(flight)
        if rows is None:
            sums = jnp.zeros((route.tokens, 0), jnp.float32)
            return crossing.start_back(sums, values, _crossing_of(kept), sums.dtype, token)
        copied = rows.astype(inside_servers.copied_type(rows.dtype, wire_dtype))
        summed, _, wide = inside_servers.sum_types(copied, None)
        flight = inside_servers.start_sums(summed, None, route, wide, inside)
        sums = receive(flight).astype(copied.dtype).astype(rows.dtype)
        wire_dtype = crossing.gradient_wire(wire_dtype, rows.dtype)
        return crossing.start_back(sums, values, _crossing_of(kept), wire_dtype, token)

    def weigh(self, copies: jax.Array, kept: Kept) -> tuple[jax.Array, jax.Array | None]:
        dtype = kept.empty.dtype
        rows = kept.empty if kept.rows is None else kept.rows
        rows, factors, wide = inside_servers.sum_types(rows, kept.factors)
        if kept.factors is None or factors is None:
            return types.narrowed(copies, dtype), None
        if kept.rows is None:
            return types.narrowed(copies.astype(wide) * factors[:, None].astype(wide), dtype), None
        rows_ct, factors_ct = inside_servers.weighted_cotangents(copies, rows, factors)
        return types.narrowed(rows_ct, dtype), factors_ct.astype(kept.factors.dtype)

    def weights_cotangent(self, ct: jax.Array, each: Weights, kept: Kept) -> jax.Array:
        del ct
        assert kept.weights is not None
        assert each is not None
        return each.astype(kept.weights.dtype)

    def finish_back(
        self, sent: crossing.Sent, kept: Kept, token: Token
    ) -> tuple[jax.Array, jax.Array]:
        return crossing.finish_back(sent, _crossing_of(kept), token)


def _nothing(rows: jax.Array) -> jax.Array:
    return jnp.zeros((len(rows), 0), jnp.float32)


def _crossing_of(kept: Kept) -> Crossing:
    assert isinstance(kept.planned, PlannedCrossing)
    return kept.planned.crossing


__all__ = ["Kept", "Spread", "Way", "way_of"]
