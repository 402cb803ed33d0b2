"""The primitive that exchanges, its type and how it is lowered."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NoReturn, TypedDict, Unpack

from jax.extend.core import Primitive

from fastjax import jax_compat
from fastjax.traced import automatic_axes, custom_calls, fallback, jax_exchange
from fastjax.traced.axes import Axes, Groups
from fastjax.traced.contract import EXCHANGE, PLAN_EXCHANGE, STAGE, STAGED_EXCHANGE
from fastjax.traced.plan_spec import PlanSpec


class ExchangeParams(TypedDict):
    """The parameters of `fast_ragged_all_to_all_p`.

    Attributes:
      axis_name: mesh axes.
      axis_index_groups: groups of their positions.
      spec: what the plan depends on besides the sizes.
      transposed_plan: whether the table is of the way back, and read backwards.
      reverse: whether rows travel from output space to operand space, and are summed there.
      timeout_ms: how long a device waits for the others.
      check_overlaps: whether output slices that overlap are refused.
      fallback: the option: what platforms without a backend of ours get.
      staged: whether operands are copied first, so that on CPU devices what comes later may use
        their memory, and so run, while rows travel. Only where the exchange was planned before.
      gpu_stream: the option: whether GPUs exchange beside what computes.
    """

    axis_name: Axes
    axis_index_groups: Groups
    spec: PlanSpec
    transposed_plan: bool
    reverse: bool
    timeout_ms: int
    check_overlaps: bool
    fallback: str
    staged: bool
    gpu_stream: bool


fast_ragged_all_to_all_p = Primitive("fast_ragged_all_to_all")
"""The primitive.

Operands: source, base, input_offsets, send_sizes, output_offsets, recv_sizes and, where the
exchange was planned before, the stage table. With `reverse`, rows travel from output space to
operand space along the same offsets, and those that land on each other are summed: the transpose.
"""


@fast_ragged_all_to_all_p.def_impl
def _impl(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("fast_ragged_all_to_all must be used within a mapped context, in shard_map.")


@fast_ragged_all_to_all_p.def_abstract_eval
def _abstract_eval(
    source: jax_compat.Aval,
    base: jax_compat.Aval,
    *metadata: jax_compat.Aval,
    axis_name: Axes,
    **_: object,
) -> jax_compat.Aval:
    axes = frozenset(axis_name).union(*(jax_compat.vma(a) for a in (source, base, *metadata)))
    return jax_compat.with_vma(base.update(weak_type=False), axes)


def _lowering(
    ctx: jax_compat.LoweringContext,
    *operands: jax_compat.MlirValue,
    platform: str,
    **params: Unpack[ExchangeParams],
) -> list[jax_compat.MlirValue]:
    if fallback.needed(platform, params["fallback"]):
        names = ("axis_name", "axis_index_groups", "reverse")
        exchange = functools.partial(jax_exchange.exchange, **{n: params[n] for n in names})
        return jax_compat.lower_function(ctx, exchange, *operands)
    bind = functools.partial(fast_ragged_all_to_all_p.bind, **params)
    inside = automatic_axes.lower(ctx, bind, operands, rows=2)
    if inside is not None:
        return inside
    # The transport brings every count together anyway: planning apart would have the devices wait
    # for each other twice.
    planned = len(operands) > len(PLAN_EXCHANGE.operands) - 1
    if params["staged"] and can_be_staged(ctx, platform):
        return lower_staged(ctx, operands, params)
    call = EXCHANGE if planned else PLAN_EXCHANGE
    attributes = _attributes(ctx, params, platform, planned=planned)
    on_stream = params["gpu_stream"] and platform != "cpu"
    return custom_calls.emit(ctx, call, operands, attributes, gpu_stream=on_stream)


def _attributes(
    ctx: jax_compat.LoweringContext, params: ExchangeParams, platform: str, *, planned: bool
) -> dict[str, object]:
    attributes = custom_calls.exchange_site(ctx, params, platform)
    attributes["check_overlaps"] = params["check_overlaps"]
    # Where a plan is given, statistics are told the topology.
    planning = custom_calls.planning(params["spec"])
    return attributes | ({"topology": planning["topology"]} if planned else planning)


def can_be_staged(ctx: jax_compat.LoweringContext, platform: str) -> bool:
    """Whether operands are copied first where that is asked for."""
    return platform == "cpu" and custom_calls.can_stage(ctx)


def lower_staged(
    ctx: jax_compat.LoweringContext,
    operands: Sequence[jax_compat.MlirValue],
    params: ExchangeParams,
    array: jax_compat.MlirValue | None = None,
) -> list[jax_compat.MlirValue]:
    """Emits a staged exchange of CPU devices; see `custom_calls.emit_staged`."""
    attributes = _attributes(ctx, params, "cpu", planned=True)
    return custom_calls.emit_staged(ctx, STAGE, STAGED_EXCHANGE, operands, attributes, array)


jax_compat.set_lowering(fast_ragged_all_to_all_p, _lowering)


__all__ = ["ExchangeParams", "can_be_staged", "fast_ragged_all_to_all_p", "lower_staged"]
