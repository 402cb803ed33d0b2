"""The primitive that exchanges, its type and how it is lowered."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Unpack

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from fastjax import config, handlers, jax_compat
from fastjax.traced import automatic_axes, custom_calls, fallback, jax_exchange
from fastjax.traced.axes import Axes, Groups
from fastjax.traced.contract import EXCHANGE
from fastjax.traced.custom_calls import CallParams
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.plan_spec import PlanSpec


class ExchangeParams(CallParams):
    """The parameters of `fast_ragged_all_to_all_p`.

    Attributes:
      operands: the names of those that it has besides those that each exchange has.
      transposed_plan: whether the table is of the way back, and read backwards.
      reverse: whether rows travel from output space to operand space, and are summed there.
      check_overlaps: whether output slices that overlap are refused.
      drop: whether rows out of range are dropped, not refused. Such an exchange plans itself.
      started: whether GPUs go on beside the exchange, whose result is for a done.
    """

    operands: tuple[str, ...]
    transposed_plan: bool
    reverse: bool
    check_overlaps: bool
    drop: bool
    started: bool


PLANNED = ("table",)
"""The names of the operands, besides those of all, of an exchange that was planned before."""

INDEXED = ("table", "indices", "factors", "entries")
"""And of one whose rows are named by indices."""

fast_ragged_all_to_all_p = Primitive("fast_ragged_all_to_all")
"""The primitive.

Operands: source, base, input_offsets, send_sizes, output_offsets, recv_sizes and, as the parameter
`operands` names them: the stage table, where the exchange was planned before; indices, factors and
entries, where indices name rows of operand space; in the place of entries, starts, for GPUs (see
`contract.EXCHANGE`). With `reverse`, rows travel from output space to operand space along the same
offsets, and those that land on each other are summed: the transpose.
"""


def params_now(
    axes: Axes,
    groups: Groups,
    spec: PlanSpec,
    *,
    operands: tuple[str, ...],
    transposed_plan: bool = False,
    reverse: bool = False,
    started: bool = False,
) -> ExchangeParams:
    """The parameters of an exchange that is traced now, by the options."""
    now = config.current()
    return {
        "operands": operands,
        "axis_name": axes,
        "axis_index_groups": groups,
        "spec": spec,
        "transposed_plan": transposed_plan,
        "reverse": reverse,
        "timeout_ms": now.timeout_ms,
        "check_overlaps": operands != INDEXED and now.check_overlaps,
        "drop": not operands and now.overflow == "drop",
        "fallback": now.fallback,
        "started": started,
    }


def group_of(params: ExchangeParams) -> ExchangeGroup:
    """The devices that exchange."""
    return ExchangeGroup(params["axis_name"], params["axis_index_groups"], params["spec"])


def operand_names(params: ExchangeParams) -> tuple[str, ...]:
    """The names of all operands."""
    return (*EXCHANGE.operands, *params["operands"])


@fast_ragged_all_to_all_p.def_abstract_eval
def _abstract_eval(
    source: jax_compat.Aval,
    base: jax_compat.Aval,
    *others: jax_compat.Aval,
    axis_name: Axes,
    **_: object,
) -> jax_compat.Aval:
    jax_compat.refuse_forbidden_axes(axis_name, fast_ragged_all_to_all_p.name)
    axes = frozenset(axis_name).union(*(jax_compat.vma(a) for a in (source, base, *others)))
    return jax_compat.with_vma(base.update(weak_type=False), axes)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *values: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[ExchangeParams],
) -> list[jax_compat.MlirValue]:
    if fallback.needed(platform, params["fallback"]):
        return jax_compat.lower_function(ctx, functools.partial(_in_jax, params), *values)
    bind = functools.partial(fast_ragged_all_to_all_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, values, rows=2)
    if inside is not None:
        return inside
    if "entries" in params["operands"] and not handlers.are_cpus(platform):
        return jax_compat.lower_function(ctx, functools.partial(_on_gpus, params), *values)
    operands = call_operands(ctx, values, params)
    attributes = exchange_attributes(ctx, params, platform)
    if params["started"]:
        attributes["started"] = True
    return [custom_calls.emit(ctx, EXCHANGE, operands, attributes)]


def call_operands(
    ctx: jax_compat.LoweringContext,
    values: Sequence[jax_compat.MlirValue],
    params: ExchangeParams,
) -> dict[str, custom_calls.Operand]:
    """The operands of the call: those of the primitive but `entries`, which CPUs do not need."""
    names = operand_names(params)
    named = zip(names, custom_calls.operands_of(ctx, values[: len(names)]), strict=True)
    taken = {name: operand for name, operand in named if name != "entries"}
    return taken | custom_calls.partition()


def exchange_attributes(
    ctx: jax_compat.LoweringContext, params: ExchangeParams, platform: str
) -> dict[str, object]:
    """The attributes of the call.

    The transport brings all counts together anyway, so an exchange without a table plans itself:
    planning apart would have the devices wait for each other twice. Where there is a table,
    statistics are told the topology.
    """
    name = fast_ragged_all_to_all_p.name
    attributes = custom_calls.mesh_call_site(ctx, name, params, platform)
    attributes |= {
        "reverse": params["reverse"],
        "transposed_table": params["transposed_plan"],
        "check_overlaps": params["check_overlaps"],
        "drop": params["drop"] or None,
    }
    planning = custom_calls.planning(params["spec"])
    planned = "table" in params["operands"]
    return attributes | ({"topology": planning["topology"]} if planned else planning)


def _in_jax(params: ExchangeParams, *operands: jax.Array) -> jax.Array:
    """The same on other platforms."""
    given = dict(zip(operand_names(params), operands, strict=True))
    options = {"reverse": params["reverse"], "drop": params["drop"]}
    return jax_exchange.exchange(given, group_of(params), **options)


def _on_gpus(params: ExchangeParams, *operands: jax.Array) -> jax.Array:
    """The same by the call of GPUs: sums are made row by row, so they take each row's entries."""
    given = dict(zip(operand_names(params), operands, strict=True))
    entries = given.pop("entries")
    given["starts"] = jnp.zeros(0, jnp.int32)
    if params["reverse"]:
        rows = given["base"].shape[0]
        given["indices"], given["starts"] = _by_row(given["indices"], entries, rows)
    names = tuple(name for name in given if name not in EXCHANGE.operands)
    values = jax_compat.vary_together([*given.values()], params["axis_name"])
    return fast_ragged_all_to_all_p.bind(*values, **params | {"operands": names})


def _by_row(indices: jax.Array, entries: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The entries of each row, one row behind the other, and where those of each row begin."""
    if entries.shape[0] > 0:
        return entries.reshape(-1), entries.shape[1] * jnp.arange(rows + 1, dtype=jnp.int32)
    # What is the index of no row comes last, and belongs to none.
    row = jnp.where((indices >= 0) & (indices < rows), indices, rows)
    counts = jnp.zeros(rows + 2, jnp.int32).at[row + 1].add(1)
    return jnp.argsort(row, stable=True).astype(jnp.int32), jnp.cumsum(counts)[: rows + 1]


jax_compat.refuse_outside(fast_ragged_all_to_all_p)
jax_compat.set_lowering(fast_ragged_all_to_all_p, _lowering)
