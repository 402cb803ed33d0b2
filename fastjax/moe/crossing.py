"""One row for each token and other server that has experts of its, there and back.

A token's row crosses once to each of those servers, with the numbers of its experts there and its
weights in the same message. It lands where NICs are balanced (`landing`), is copied to its experts
inside the server (`to_experts`), and what they made of it is added up there before one row goes
back. The gradients take the same ways, and add up in the same order: nothing is scattered. Those
that nobody wants stay where they are, and so do those that are known to be zero.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

from fastjax import jax_compat
from fastjax.moe import landing, ordering, payload, types
from fastjax.moe.handle import Crossing, Way
from fastjax.moe.packing import Layout
from fastjax.moe.servers import Servers
from fastjax.moe.to_experts import Over, refusing
from fastjax.traced.axes import position
from fastjax.traced.nonnegative import is_identity, look_up, permuted, quotient, remainder
from fastjax.traced.plan import plan_sizes

# In the names that statistics and profiles have for what is there only where tokens cross once.
_SCOPE = "moe_cross"


class Landed(NamedTuple):
    """What is on a device of a token's server: its own tokens, then those that crossed.

    Attributes:
      x: rows, shape (tokens + landing, width).
      expert_ids: int32, shape (tokens + landing, k): as the server numbers its experts; -1 where a
        choice is of another server.
      weights: shape (tokens + landing, k), or None.
    """

    x: jax.Array
    expert_ids: jax.Array
    weights: jax.Array | None


class Destinations(NamedTuple):
    """To which servers a device's tokens go.

    Attributes:
      chosen: int32, shape (tokens, k): the server of each choice; `servers.count` for none.
      goes: bool, shape (tokens, servers): whether a token crosses to a server.
      counts: int32, shape (servers,): how many do.
    """

    chosen: jax.Array
    goes: jax.Array
    counts: jax.Array


def find_destinations(experts: jax.Array, servers: Servers, over: Over) -> Destinations:
    """The servers that tokens cross to.

    Args:
      experts: int32, shape (tokens, k), varying over the axes; num_experts where a choice goes
        nowhere.
      servers: where experts are.
      over: the devices.
    """
    here = quotient(_rank(servers, over), servers.devices)
    chosen = look_up(jnp.asarray(servers.server_of_expert()), experts)
    every = jnp.arange(servers.count, dtype=jnp.int32)
    goes = (chosen[:, :, None] == every[None, None]).any(1) & (every != here)[None]
    return Destinations(chosen, goes, goes.sum(0, dtype=jnp.int32))


@jax.named_scope(_SCOPE)
def find_crossing(
    destinations: Destinations,
    counts: jax.Array,
    wrong: jax.Array,
    servers: Servers,
    over: Over,
    plan_dependency: ordering.Dependency = None,
) -> Crossing:
    """Where the tokens of all devices land, and the plan of their exchange.

    Args:
      destinations: of this device's tokens.
      counts: of all devices, by position, shape (devices, servers).
      wrong: an expert that there is not, or 0.
      servers: where experts are.
      over: the devices.
      plan_dependency: what the plan waits for.
    """
    chosen, goes, wanted = destinations
    tokens, top_k = chosen.shape
    rank = _rank(servers, over)
    sent = landing.rows_to_devices(permuted(counts, servers.position_at), servers)
    there, back = _ways(sent, rank, np.array(servers.rank_of))
    counted = goes.astype(jnp.int32)
    first = jnp.cumsum(wanted, dtype=jnp.int32) - wanted
    entry = first[None] + jnp.cumsum(counted, axis=0, dtype=jnp.int32) - counted
    entry = jnp.where(goes, entry, 0)
    sizes = ordering.wait(refusing(there.send_sizes, wrong), plan_dependency)
    token, server = _list(goes, entry, min(top_k, servers.count - 1))
    return Crossing(
        plan=plan_sizes(sizes, over.axes, over.groups, over.spec, servers.num_experts),
        there=there,
        back=back,
        token=token,
        server=server,
        entry=entry,
        goes=goes,
        chosen=chosen,
        here=quotient(rank, servers.devices),
        landing=landing.room(tokens, servers),
    )


def _rank(servers: Servers, over: Over) -> jax.Array:
    """The rank of this device: its number, server by server."""
    own, rank_of = position(over.axes, over.groups), np.array(servers.rank_of, np.int32)
    return own if is_identity(rank_of) else look_up(jnp.asarray(rank_of), own)


def _ways(sent: jax.Array, rank: jax.Array, rank_of: np.ndarray) -> tuple[Way, Way]:
    """Offsets and sizes of this device, by position, of what is `sent`, by rank.

    Rows lie in lists, by server and so by rank, and land by the rank that they come from.
    """
    listed = jnp.cumsum(sent, axis=1, dtype=sent.dtype) - sent
    landed = jnp.cumsum(sent, axis=0, dtype=sent.dtype) - sent
    of_row = lambda array: permuted(look_up(array, rank), rank_of)  # noqa: E731
    of_column = lambda array: permuted(look_up(array, slice(None), rank), rank_of)  # noqa: E731
    to_each, from_each = of_row(sent), of_column(sent)
    there = Way(of_row(listed), to_each, of_row(landed), from_each)
    return there, Way(of_column(landed), from_each, of_column(listed), to_each)


def _list(goes: jax.Array, entry: jax.Array, each: int) -> tuple[jax.Array, jax.Array]:
    """Tokens and servers of all entries; of those that are not in use, the first of each.

    Args:
      goes: see `Crossing`.
      entry: see `Crossing`.
      each: the most entries of a token.
    """
    tokens, servers = goes.shape
    number = jnp.arange(tokens * servers, dtype=jnp.int32).reshape(goes.shape)
    at = jnp.where(goes, entry, tokens * each)
    listed = jnp.zeros_like(entry, shape=tokens * each).at[at]
    listed = listed.set(number, mode="drop", wrap_negative_indices=False)
    return quotient(listed, servers), remainder(listed, servers)


class InFlight(NamedTuple):
    """Tokens whose exchange has begun, for `land`.

    Attributes:
      own: rows, weights and numbers of this device's own tokens.
      words: what arrives, packed.
      cotangents: zeros of the shape of what lands, rows and weights; nobody reads them, but the
        cotangents of what lands are theirs.
      how: words are packed.
      weighted: whether there are weights.
    """

    own: tuple[jax.Array, jax.Array, jax.Array]
    words: jax.Array
    cotangents: tuple[jax.Array, jax.Array]
    how: Layout
    weighted: bool


@jax.named_scope(_SCOPE)
def cross(
    x: jax.Array,
    weights: jax.Array | None,
    numbers: tuple[jax.Array, jax.Array],
    crossing: Crossing,
    travels_in: np.dtype,
    dependency: ordering.Dependency = None,
) -> tuple[InFlight, ordering.Dependency]:
    """Sends tokens to the other servers that have experts of theirs.

    Args:
      x: tokens, shape (tokens, width).
      weights: of each choice, shape (tokens, k); None if they do not travel with the tokens.
      numbers: see `numbers_of`; of no columns if they need not travel.
      crossing: the way.
      travels_in: the type that rows travel in.
      dependency: what the exchange waits for.

    Returns:
      What is in flight, and a dependency on the beginning of the exchange.
    """
    each = jnp.zeros((x.shape[0], 0), jnp.float32) if weights is None else weights
    values = (x, each.astype(types.summed_in(each.dtype)), *numbers, crossing, dependency)
    leaves, structure = jax.tree.flatten(values)
    leaves = jax_compat.vary_together(leaves, crossing.plan.axis_name)
    varied: Any = jax.tree.unflatten(structure, leaves)
    made: Any = _cross(travels_in, *varied)
    own, words, cotangents, dependency = made
    return InFlight(own, words, cotangents, _how(travels_in, own), weights is not None), dependency


def _how(travels_in: np.dtype, own: tuple[jax.Array, jax.Array, jax.Array]) -> Layout:
    rows, *beside = own
    columns = tuple((array.shape[1], array.dtype) for array in beside)
    return payload.layout(rows.shape[1], travels_in, rows.dtype, columns)


def land(in_flight: InFlight, landing_dependency: ordering.Dependency = None) -> Landed:
    """Unpacks what `cross` sent, after it has arrived and after `landing_dependency`.

    XLA's CPU backend reuses memory in the order of its program. The dependency puts everything that
    is done with landed rows after what it stands for.
    """
    words = ordering.wait(in_flight.words, landing_dependency)
    made: Any = _land(in_flight.how, in_flight.own, words, in_flight.cotangents)
    rows, each, ids = made
    return Landed(rows, ids.astype(jnp.int32) - 1, each if in_flight.weighted else None)


def cross_weights(weights: jax.Array, crossing: Crossing) -> jax.Array:
    """Sends the weights of tokens after them: shape (tokens + landing, k)."""
    nothing = jnp.zeros((weights.shape[0], 0), jnp.uint32)
    numbers = nothing.astype(jnp.uint8), jnp.zeros((len(crossing.token), 0), jnp.uint8)
    in_flight, _ = cross(nothing, weights, numbers, crossing, nothing.dtype)
    landed = land(in_flight)
    assert landed.weights is not None
    return landed.weights


def numbers_of(
    experts: jax.Array, crossing: Crossing, servers: Servers
) -> tuple[jax.Array, jax.Array]:
    """The numbers that experts have in the own server, and in that of each entry; 0 for none.

    One more than they are, so that rows that nobody wrote have none, in as few bytes as will do.

    Args:
      experts: int32, shape (tokens, k); num_experts where a choice goes nowhere.
      crossing: the way.
      servers: where experts are.
    """
    numbers = jnp.asarray((servers.number_in_server() + 1).astype(number_type(servers)))
    number = look_up(numbers, experts)
    of = lambda number, chosen, server: jnp.where(chosen == server, number, 0)  # noqa: E731
    token = crossing.token
    own = of(number, crossing.chosen, crossing.here)
    chosen = look_up(crossing.chosen, token)
    there = of(look_up(number, token), chosen, crossing.server[:, None])
    return own.astype(number.dtype), there.astype(number.dtype)


def number_type(servers: Servers) -> np.dtype:
    """The type that the numbers of a server's experts travel in."""
    return np.min_scalar_type(servers.experts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cross(
    travels_in: np.dtype,
    x: jax.Array,
    weights: jax.Array,
    own_numbers: jax.Array,
    numbers: jax.Array,
    crossing: Crossing,
    dependency: ordering.Dependency,
) -> Any:
    own_weights, listed_weights = _by_server(weights, crossing)
    listed = look_up(x, crossing.token)
    words, _ = payload.packed(listed, travels_in, (listed_weights, numbers))
    words, dependency = exchange_there(words, crossing, dependency)
    own = x, own_weights, own_numbers
    rows = x.shape[0] + words.shape[0]
    zero = words[:1, :1].sum() * 0  # of a batch as words are, or cotangents would be summed over it
    cotangents = tuple(jnp.full((rows, a.shape[1]), zero, a.dtype) for a in own[:2])
    return own, words, cotangents, dependency


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _land(how: Layout, own: Any, words: jax.Array, cotangents: Any) -> Any:
    del cotangents
    rows, beside = payload.unpacked(words, how, own[0].dtype)
    return tuple(jnp.concatenate(pair) for pair in zip(own, (rows, *beside), strict=True))


def _land_forward(how: Layout, *primals: Any) -> Any:
    return _land(how, *custom_vjp_primal_tree_values(primals)), None


def _land_backward(how: Layout, _: None, cts: Any) -> Any:
    del how
    rows, each, _numbers = cts
    zero = lambda ct: None if isinstance(ct, SymbolicZero) else ct  # noqa: E731
    return None, None, (zero(rows), zero(each))


_land.defvjp(_land_forward, _land_backward, symbolic_zeros=True)


def _by_server(weights: jax.Array, crossing: Crossing) -> tuple[jax.Array, jax.Array]:
    """Weights of this server's choices, and for each entry those of its server's; 0 elsewhere."""
    if weights.shape[1] == 0:
        return weights, jnp.zeros_like(weights, shape=(crossing.token.shape[0], 0))
    chosen, token = crossing.chosen, crossing.token
    own = jnp.where(chosen == crossing.here, weights, 0)
    chosen = look_up(chosen, token)
    return own, jnp.where(chosen == crossing.server[:, None], look_up(weights, token), 0)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    """Whose derivatives somebody wants: those of rows, and of what is beside them."""

    rows: bool
    each: bool


def _perturbed(rows: Any, each: Any) -> _Wanted:
    return _Wanted(rows.perturbed, each.perturbed)


def _moves(like: jax.Array, ct: Any) -> bool:
    """Whether there is a cotangent of such an array: zeros that JAX knows of are none."""
    is_zero = isinstance(ct, SymbolicZero)
    return jnp.issubdtype(like.dtype, jnp.inexact) and like.shape[1] > 0 and not is_zero


def _cross_forward(travels_in: np.dtype, *primals: Any) -> Any:
    wanted = _perturbed(*primals[:2])
    values = custom_vjp_primal_tree_values(primals)
    x, weights, *_, crossing, _ = values
    return _cross(travels_in, *values), (x[:0], weights[:0], wanted, crossing)


def _cross_backward(travels_in: np.dtype, residuals: Any, cts: Any) -> Any:
    x, weights, wanted, crossing = residuals
    _, _, (x_ct, weights_ct), dependency_ct = cts
    dependency_ct = ordering.of_cotangent(dependency_ct)
    tokens = crossing.goes.shape[0]
    moved = wanted.rows and _moves(x, x_ct)
    weighted = wanted.each and _moves(weights, weights_ct)
    if not (moved or weighted):
        return None, None, None, None, None, None
    empty = jnp.zeros((tokens + crossing.landing, 0), jnp.float32)
    rows, each = x_ct if moved else empty, weights_ct if weighted else empty
    # Types of one byte are too coarse for gradients.
    coarse = payload.has_scales(travels_in, x.dtype)
    back_in = rows.dtype if coarse or not moved else travels_in
    returned: Any = _return(back_in, rows, each, crossing, dependency_ct)
    rows_back, each_back, dependency = returned
    return (
        rows_back.astype(x.dtype) if moved else None,
        each_back if weighted else None,
        *(None, None, None),
        dependency,
    )


_cross.defvjp(_cross_forward, _cross_backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _return(
    travels_in: np.dtype,
    rows: jax.Array,
    each: jax.Array,
    crossing: Crossing,
    dependency: ordering.Dependency,
) -> Any:
    """The transpose of `_cross`: at their origin rows are added up and weights are picked."""
    tokens = crossing.goes.shape[0]
    words, how = payload.packed(rows[tokens:], travels_in, (each[tokens:],))
    words, dependency = exchange_back(words, crossing, dependency)
    back, (each_back,) = payload.unpacked(words, how, rows.dtype)
    added = added_up(rows[:tokens], back, crossing)
    return added, _of_choices(each[:tokens], each_back, crossing), dependency


def _return_forward(travels_in: np.dtype, *primals: Any) -> Any:
    wanted = _perturbed(*primals[:2])
    values = custom_vjp_primal_tree_values(primals)
    rows, each, crossing, _ = values
    return _return(travels_in, *values), (rows[:0], each[:0], wanted, crossing)


def _return_backward(travels_in: np.dtype, residuals: Any, cts: Any) -> Any:
    rows, each, wanted, crossing = residuals
    rows_ct, each_ct, dependency_ct = cts
    moved = wanted.rows and _moves(rows, rows_ct)
    weighted = wanted.each and _moves(each, each_ct)
    if not (moved or weighted):
        return None, None, None, None
    tokens = crossing.goes.shape[0]
    numbers = [jnp.zeros((n, 0), jnp.uint8) for n in (tokens, len(crossing.token))]
    empty = jnp.zeros((tokens, 0), jnp.float32)
    there_in = travels_in if moved else empty.dtype
    crossed: Any = _cross(
        there_in,
        rows_ct.astype(rows.dtype) if moved else empty,
        each_ct if weighted else empty,
        *numbers,
        crossing,
        ordering.of_cotangent(dependency_ct),
    )
    own, words, cotangents, dependency = crossed
    landed: Any = _land(_how(there_in, own), own, words, cotangents)
    rows_back, each_back, _ = landed
    return rows_back if moved else None, each_back if weighted else None, None, dependency


_return.defvjp(_return_forward, _return_backward, symbolic_zeros=True)


def exchange_there(
    words: jax.Array, crossing: Crossing, dependency: ordering.Dependency
) -> tuple[jax.Array, ordering.Dependency]:
    """The words of each entry, to its server, after `dependency`.

    Returns:
      Shape (landing, words), and a dependency on the beginning of the exchange.
    """
    way, plan = crossing.there, crossing.plan
    return payload.exchange_in_order(words, crossing.landing, way, plan, dependency)


def exchange_back(
    words: jax.Array, crossing: Crossing, dependency: ordering.Dependency
) -> tuple[jax.Array, ordering.Dependency]:
    """The words of each row that landed, to its entry, after `dependency`.

    Returns:
      Shape (entries, words), and a dependency on the beginning of the exchange.
    """
    entries = crossing.token.shape[0]
    plan = crossing.plan.transpose()
    return payload.exchange_in_order(words, entries, crossing.back, plan, dependency)


def added_up(own: jax.Array, entries: jax.Array, crossing: Crossing) -> jax.Array:
    """The parts of each token, summed wide in the order of servers: its own, and those entries."""
    wide = types.summed_in(own.dtype)
    total = jnp.zeros_like(own, wide)
    for server in range(crossing.servers):
        there = look_up(entries, crossing.entry[:, server])
        there = jnp.where(crossing.goes[:, server, None], there, 0)
        total += jnp.where(crossing.here == server, own, there).astype(wide)
    return total


def _of_choices(own: jax.Array, entries: jax.Array, crossing: Crossing) -> jax.Array:
    """The value of each choice, from the choice's server: shape (tokens, k)."""
    server = jnp.minimum(crossing.chosen, crossing.servers - 1)
    of_choice = functools.partial(jnp.take_along_axis, mode="promise_in_bounds")
    entry = of_choice(crossing.entry, server, 1)
    columns = own.shape[1]
    if columns == 0:
        return own
    at = entry * columns + jnp.arange(columns, dtype=jnp.int32)[None]
    there = jnp.where(of_choice(crossing.goes, server, 1), look_up(entries.reshape(-1), at), 0)
    exists = crossing.chosen < crossing.servers
    return jnp.where(exists, jnp.where(crossing.chosen == crossing.here, own, there), 0)


__all__ = [
    "Destinations",
    "InFlight",
    "Landed",
    "added_up",
    "cross",
    "cross_weights",
    "exchange_back",
    "exchange_there",
    "find_crossing",
    "find_destinations",
    "land",
    "number_type",
    "numbers_of",
]
