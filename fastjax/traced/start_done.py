"""An exchange in two parts: what begins between its start and its done runs beside it.

    in_flight = start(operand, output, metadata, plan)
    ...                              # whatever does not need the rows
    rows = done(in_flight, after=[...])

A start that has another's token in `after` begins its exchange later than that one, on every
device, unless XLA calls that only once this one has ended. Neither part has derivatives: who needs
them writes the backward pass with `start` and `done`, too.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Primitive

from fastjax import config, handlers, jax_compat
from fastjax.errors import UnsupportedError
from fastjax.traced import custom_calls
from fastjax.traced import fallback as fallbacks
from fastjax.traced.after import after as wait
from fastjax.traced.after import after_p
from fastjax.traced.axes import Axes
from fastjax.traced.contract import DONE, EXCHANGE, START, Metadata
from fastjax.traced.exchange_batching import batch_exchange
from fastjax.traced.exchange_primitive import (
    ExchangeParams,
    call_operands,
    exchange_attributes,
    fast_ragged_all_to_all_p,
    operand_names,
)
from fastjax.traced.plan import TracedPlan
from fastjax.traced.planned_exchange import planned_operands

TOKEN = jax.ShapeDtypeStruct((2,), np.uint32)
"""The type of tokens."""


class InFlight(NamedTuple):
    """An exchange that has been started; a pytree.

    Attributes:
      rows: of the shape and type of the output, in flight: for `done` only.
      token: a uint32 array of shape (2,) that exists once the exchange has its place in the order.
      operands: arrays whose memory the exchange may still use, until `done`.
    """

    rows: jax.Array
    token: jax.Array
    operands: tuple[jax.Array, ...]


start_p = Primitive("start_ragged_all_to_all")
"""Operands: those of the exchange, as its parameters, which are those of
`fast_ragged_all_to_all_p`, name them; a token without meaning, which takes the place of the start's
own where its rows are not needed; and what it waits for. Results: the rows in flight, the token.
"""
start_p.multiple_results = True

done_p = Primitive("done_ragged_all_to_all")
"""Operands: rows in flight, and what it keeps or waits for. Parameters: fallback; in_line,
whether GPUs have made the exchange where it was started, in line."""


def start(
    operand: jax.Array,
    output: jax.Array,
    metadata: Metadata[jax.Array],
    plan: TracedPlan,
    *,
    after: Sequence[jax.Array] = (),
    **given: Any,
) -> InFlight:
    """Begins an exchange of operands that are known to fit each other and the plan.

    Args:
      operand: rows to send.
      output: what the result holds where no row arrives; in reverse, where none is returned. The
        rows are written into its memory.
      metadata: offsets and sizes.
      plan: of the exchange.
      after: arrays that the exchange does not begin before. Exchanges whose tokens are among them
        have begun before it.
      **given: what else `planned_operands` takes.

    Returns:
      The exchange in flight, to pass to `done` once.
    """
    operands, params, restore = planned_operands(
        operand, output, metadata, plan, started=True, **given
    )
    no_token = jnp.zeros(TOKEN.shape, TOKEN.dtype)
    count = len(operands)
    values = jax_compat.vary_together([*operands, no_token, *after], plan.axis_name)
    if values[1].dtype == output.dtype:
        rows, token = start_p.bind(*values, **params)
        return InFlight(rows, token, (values[0], *values[2:count], token))
    # The rows are not of a type that can be in flight, so they have come when this ends.
    params["started"] = False
    rows, token = _in_one(count, params, *values)
    return InFlight(restore(rows), token, ())


def done(in_flight: InFlight, *, after: Sequence[jax.Array] = ()) -> jax.Array:
    """The rows of an exchange that has been started, once they have come.

    Args:
      in_flight: what `start` returned.
      after: arrays that are to exist before it waits for the rows.
    """
    values = jax_compat.vary_together([in_flight.rows, *in_flight.operands, *after], ())
    params = {"fallback": config.current().fallback, "in_line": not in_flight.operands}
    return done_p.bind(*values, **params)


def _in_one(count: int, params: ExchangeParams, *values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An exchange in one call: all of it, unless it is started.

    Args:
      count: of the operands of the exchange.
      params: of `start_p`.
      *values: operands of `start_p`.
    """
    (source, base, *rest), (token, *after) = values[:count], values[count:]
    fallback = params["fallback"]
    waiting = wait(base, *after, fallback=fallback)
    rows = fast_ragged_all_to_all_p.bind(source, waiting, *rest, **params)
    begun = [rows] if params["started"] else [source, *rest[4:5], *after]
    return rows, wait(token, *begun, fallback=fallback)


@start_p.def_abstract_eval
def _start_type(*operands: jax_compat.Aval, axis_name: Axes, **_: object) -> list[jax_compat.Aval]:
    jax_compat.refuse_forbidden_axes(axis_name, start_p.name)
    axes = frozenset(axis_name).union(*map(jax_compat.vma, operands))
    rows = operands[1].update(weak_type=False)
    token = rows.update(shape=TOKEN.shape, dtype=TOKEN.dtype)
    return [jax_compat.with_vma(aval, axes) for aval in (rows, token)]


@done_p.def_abstract_eval
def _done_type(*operands: jax_compat.Aval, **_: object) -> jax_compat.Aval:
    axes = frozenset().union(*map(jax_compat.vma, operands))
    return jax_compat.with_vma(operands[0].update(weak_type=False), axes)


def _start_lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[ExchangeParams],
) -> list[jax_compat.MlirValue]:
    count = len(operand_names(params))
    in_two = _is_in_two(ctx, platform, params["fallback"])
    if not in_two or not handlers.are_cpus(platform):
        params["started"] &= in_two
        return jax_compat.lower_function(ctx, functools.partial(_in_one, count, params), *values)
    token_type = ctx.avals_out[1]
    # The token exists only once the operands do: so none of them can need what is started later.
    waited = custom_calls.operands_of(ctx, values)
    del waited[count], waited[1]
    number = {"channel": jax_compat.new_channel(ctx)}
    token = custom_calls.emit_unnamed(ctx, START, waited, token_type, number, keep=True)
    operands = call_operands(ctx, values, params)
    operands["token"] = custom_calls.Operand(token, token_type)
    attributes = exchange_attributes(ctx, params, platform)
    # Others wait for the exchange, so XLA must not remove it alone.
    rows = custom_calls.emit(ctx, EXCHANGE, operands, attributes, keep=True)
    return [rows, token]


def _is_in_two(ctx: jax_compat.LoweringContext, platform: str, fallback: str) -> bool:
    """Whether start and done are lowered as two parts.

    Otherwise the exchange is one call of JAX's or ours, where it is started.
    """
    return not jax_compat.automatic_axes(ctx) and not fallbacks.needed(platform, fallback)


def _done_lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    fallback: str,
    in_line: bool,
) -> list[jax_compat.MlirValue]:
    if _is_in_two(ctx, platform, fallback) and (not in_line or handlers.are_cpus(platform)):
        # XLA gives away the memory of all else that the exchange takes; its new owner would wait.
        operands = [*custom_calls.operands_of(ctx, values), *custom_calls.partition().values()]
        return [custom_calls.emit_unnamed(ctx, DONE, operands, ctx.avals_out[0], {}, keep=True)]
    return jax_compat.lower_function(ctx, functools.partial(wait, fallback=fallback), *values)


def _start_batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Unpack[ExchangeParams],
) -> tuple[tuple[jax.Array, jax.Array], tuple[int | None, None]]:
    """One exchange of the batch, as those in one part are batched. There is one token."""
    count = len(operand_names(params))
    others = values[count:]
    # The done does not know the operands that are made here, so XLA may not keep them on GPUs.
    params["started"] &= all(dim is None for dim in dims[:count])

    def begin(*operands: jax.Array, **given: Any) -> tuple[jax.Array, ...]:
        return tuple(start_p.bind(*operands, *others, **given))

    def whole(*operands: jax.Array, **given: Unpack[ExchangeParams]) -> tuple[jax.Array, ...]:
        given["started"] = False
        return _in_one(count, given, *operands, *others)

    (rows, token), dim = batch_exchange(
        begin, axis_data, values[:count], dims[:count], params, whole
    )
    return (rows, token), (dim, None)


def _done_batcher(
    axis_data: Any,
    values: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[jax.Array, int | None]:
    del axis_data
    params["in_line"] |= dims[0] is not None
    return done_p.bind(*values, **params), dims[0]


def _without_rows(eqn: JaxprEqn) -> JaxprEqn:
    """Of an exchange whose rows nobody needs only the order is left: it is not made."""
    count = len(EXCHANGE.operands) + len(eqn.params["operands"])
    token, *after = eqn.invars[count:]
    operands = [token, eqn.invars[0], *after]
    params = {"detached": False, "fallback": eqn.params["fallback"]}
    return eqn.replace(primitive=after_p, invars=operands, outvars=eqn.outvars[1:], params=params)


def _no_derivative(*_: object, **__: object) -> NoReturn:
    raise UnsupportedError(
        "an exchange in two parts has no derivatives: define a rule around its start and its done."
    )


for _primitive in (start_p, done_p):
    jax_compat.refuse_outside(_primitive)
    jax_compat.set_jvp(_primitive, _no_derivative)
jax_compat.set_lowering(start_p, _start_lowering)
jax_compat.set_lowering(done_p, _done_lowering)
jax_compat.set_batcher(start_p, _start_batcher)
jax_compat.set_batcher(done_p, _done_batcher)
jax_compat.replace_if_unused(start_p, 0, _without_rows)
