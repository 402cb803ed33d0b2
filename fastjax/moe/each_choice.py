"""A row for each choice: to the device of its expert, and back."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import jax_compat
from fastjax.moe import linear, types, wire
from fastjax.moe.handle import Route
from fastjax.moe.linear import Arrays
from fastjax.moe.transit import Token, Transit, arrive, depart
from fastjax.traced.nonnegative import look_up


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """Rows to their experts, or back; see `linear.Map`.

    Attributes:
      dispatches: whether rows go to their experts.
      wire: type of rows on the wire.
    """

    dispatches: bool
    wire: np.dtype

    def __call__(self, operands: Arrays, constants: Route) -> Arrays:
        start = to_experts if self.dispatches else from_experts
        return (arrive(start(operands[0], constants, self.wire))[0],)

    def transposed(self, dtypes: tuple[np.dtype, ...]) -> _Exchange:
        # Types of one byte are too coarse for gradients: these are sent as if rows had not been
        # rounded.
        coarse = wire.has_scales(self.wire, dtypes[0])
        return _Exchange(not self.dispatches, dtypes[0] if coarse else self.wire)


def exchange(rows: jax.Array, route: Route, wire_dtype: np.dtype, *, dispatches: bool) -> jax.Array:
    """Rows to their experts, or back, with derivatives."""
    mapped = _Exchange(dispatches, wire_dtype)
    if wire.has_scales(wire_dtype, rows.dtype):
        return linear.apply(mapped, (rows,), route, route.plan.axis_name)[0]
    return mapped((rows,), route)[0]  # which has all derivatives that JAX finds


@jax.named_scope("moe_dispatch")
def to_experts(rows: jax.Array, route: Route, wire_dtype: np.dtype, token: Token = None) -> Transit:
    """Sends rows, one for each choice and by expert, to the experts: shape (route.rows, width)."""
    return depart(rows, (), route.rows, route.dispatch, route.plan, wire_dtype, token)


@jax.named_scope("moe_combine")
def from_experts(
    rows: jax.Array, route: Route, wire_dtype: np.dtype, token: Token = None
) -> Transit:
    """Sends rows of experts back: shape (tokens * k, width), by expert."""
    plan, count = route.plan.transpose(), route.tokens * route.top_k
    return depart(rows, (), count, route.combine, plan, wire_dtype, token)


def by_expert(choices: jax.Array, route: Route) -> jax.Array:
    """Rows of choices, shape (tokens, k, width), in the order of their experts."""
    rows = choices.reshape(route.tokens * route.top_k, choices.shape[-1])
    return look_up(rows, route.order, unique=True)


def by_choice(rows: jax.Array, route: Route) -> jax.Array:
    """Rows in the order of their experts, as those of choices: shape (tokens, k, width)."""
    placed = look_up(rows, route.place, unique=True)
    return placed.reshape(route.tokens, route.top_k, rows.shape[1])


def of_each_choice(x: jax.Array, route: Route) -> jax.Array:
    """A row for each choice, by expert."""
    # Not x[order // k]: the transpose of that adds rows up in no certain order.
    each = jnp.broadcast_to(x[:, None], (route.tokens, route.top_k, x.shape[1]))
    return by_expert(each, route)


def weights_of(weights: jax.Array | None, route: Route, dtype: np.dtype) -> jax.Array:
    """The weight of each choice; 0 of those that go nowhere, whose weights may be anything."""
    each = jnp.ones((route.tokens, route.top_k), dtype) if weights is None else weights
    each, kept = jax_compat.vary_together([each, route.kept], route.plan.axis_name)
    return jnp.where(kept, each, 0)


def add_up(choices: jax.Array, each: jax.Array) -> jax.Array:
    """Sums the rows of each token's choices, weighted, in a wide type: shape (tokens, width)."""
    wide = types.summed_in(choices.dtype, each.dtype)
    return (choices.astype(wide) * each.astype(wide)[..., None]).sum(1)


__all__ = [
    "add_up",
    "by_choice",
    "by_expert",
    "exchange",
    "from_experts",
    "of_each_choice",
    "to_experts",
    "weights_of",
]
