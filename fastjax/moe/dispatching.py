"""`dispatch` sends tokens to the devices of their experts, `combine` sends rows back to tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import arguments, routing, steps
from fastjax.moe.arrangement import Options, arrange
from fastjax.moe.copies import Copies
from fastjax.moe.plans import plan_dispatches
from fastjax.moe.routing import Route
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.plan import TracedPlan


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Handle:
    """What `combine` has to know of a `dispatch`: a pytree.

    Attributes:
      kept: bool, shape (..., k): which choices went to their experts; where not, `combine` adds
        nothing for them.
      dropped: int32: how many choices of this device found no room. Those of expert -1 want none.
      copies: of experts of other devices; None without `balance`.
      shape: of the dispatched tokens: that of x without its width.
    """

    kept: jax.Array
    dropped: jax.Array
    weights: jax.Array | None  # of choices, or of rows at experts where tokens cross once
    route: Route  # to experts: of this device's tokens, or of those that landed on it
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    copies: Copies | None = None

    def params(self, params: Any) -> Any:
        """Params of all groups of rows: of this device's experts, then of its copies of others.

        Args:
          params: a pytree of arrays of this device's experts, shape (experts of a device, ...).

        Returns:
          The same, shape (groups, ...). The params of copies come from their devices by an exchange
          inside the server, and their gradients go back. A copy that is not in use has no rows, and
          the params of the device's first expert.

        Raises:
          ArgumentError: an array has not one entry for each expert of the device.
        """
        return params if self.copies is None else self.copies.params(params)

    @property
    def group_rows(self) -> jax.Array:
        """Rows that arrived for each group, without padding: int32, shape (groups,)."""
        return self.route.group_rows

    @property
    def deduplicated(self) -> bool:
        """Whether tokens cross once to each server: what `deduplicate=None` decided."""
        return self.route.crossing is not None

    @property
    def plan(self) -> TracedPlan:
        """The plan of what crosses servers, and of its way back and all gradients."""
        return (self.route.crossing or self.route).plan

    @property
    def rows(self) -> int:
        """Rows of a device's buffer."""
        return self.route.rows


@arguments.with_buffer_factor
@jax.named_scope("moe_dispatch")
def dispatch(
    x: jax.Array,
    expert_ids: jax.Array,
    *,
    num_experts: int,
    axis_name: AxisName,
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    buffer_factor: float | None = None,
    alignment: int = 1,
    payload_dtype: DTypeLike | None = None,
    weights: jax.Array | None = None,
    deduplicate: bool | None = None,
    balance: bool = False,
    copies: int = 4,
    no_expert: int | None = None,
) -> tuple[jax.Array, jax.Array, Handle]:
    """Sends tokens to the devices of the experts that they chose.

    To be called inside `jax.shard_map`. Device d of the axis, or of its group, holds the experts
    from d * num_experts / devices on. Plans once: `combine` and both gradients use that plan.
    Deduplicated tokens need a second plan, inside servers.

    Args:
      x: tokens of this device, shape (..., width): any number of axes in front.
      expert_ids: experts of each token, integers, shape (..., k). -1: none, for choices that go
        nowhere. The exchange fails where there is no such expert.
      num_experts: experts of all devices together, a multiple of the devices.
      axis_name: mesh axis, or several, that experts are spread over.
      axis_index_groups: groups of axis positions, each with all experts.
      topology: the fabric; by default that of `fastjax.options` or of the processes.
      scheduler: one of `fastjax.schedulers()`; by default that of `fastjax.options`.
      buffer_factor: room for arriving rows, as a multiple of tokens * k; what a device gets if all
        devices get the same is 1. By default there is room for all that can arrive, as long as the
        choices of a token are different experts. Where more arrive, the device's most popular
        experts lose rows, and of these the senders that have most, their last tokens.
      alignment: each expert's rows are padded with zeros to a multiple of this many.
      payload_dtype: floating-point type that rows travel in, and then are x's again; by default
        x's. What it cannot hold, float16's infinities say, is lost. In a type of one byte (fp8)
        rows have a scale each, gradients are sent in x's type, and there is no forward mode.
      weights: of each token's choices, shape (..., k), for `combine`, which then needs none.
        Deduplicated tokens take them along.
      deduplicate: whether a token goes once to each server that has experts of its, and is copied
        there; what they make of it is then summed there before it comes back. By default where the
        cost model predicts that it is faster, so not on one server. There is no forward mode.
      balance: whether devices of a server compute rows of each other's popular experts, so that
        none has more than others. Groups of rows are then those of a device's own experts, and
        behind them those of its copies of others: `handle.params` has the params for these.
      copies: the most copies of experts that a device has then; no more than its server has other
        experts.
      no_expert: a number that means no expert in expert_ids, beside -1: num_experts, for instance.

    Returns:
      Three things:

      - rows: what arrived, by group and then by sender, or by the device of this server that
        it crossed to, shape (room, width); zero where nothing did. A group is a local expert, or
        with balance a copy of another.
      - group_sizes: int32, shape (groups,): rows of each with padding, for `jax.lax.ragged_dot`.
      - handle: for `combine`; it also tells what was dropped.

    Raises:
      ArgumentError: shapes or types do not fit, num_experts is no multiple of the devices, or
        an option makes no sense.
      TopologyError, OptionError, UnsupportedError, NameError, jax.errors.JaxRuntimeError: as
        `fast_ragged_all_to_all`.
    """
    resolve_axis(axis_name, axis_index_groups)  # that there is no axis comes first
    tokens = arguments.check_tokens(x, expert_ids, weights, num_experts, no_expert)
    x, expert_ids, weights, shape = tokens
    if balance is None:
        raise ArgumentError("balance must be True or False, got None.")
    options = Options(
        num_experts,
        axis_name,
        axis_index_groups,
        topology,
        scheduler,
        buffer_factor,
        alignment,
        payload_dtype,
        deduplicate,
        balance,
        copies,
    )
    arrangement = arrange(x, expert_ids, weights, options)
    x, expert_ids = jax_compat.vary_together((x, expert_ids), arrangement.group.axes)
    plans = plan_dispatches([routing.check(expert_ids, num_experts)], [arrangement])
    (way,) = plans.ways
    spread = steps.spread(way, steps.start(way, x, weights, None), None)
    if way.crossing is not None:
        weights = spread.factors(None)
    handle = Handle(
        kept=tokens.restored(way.room.kept),
        dropped=way.room.dropped,
        weights=weights,
        route=spread.route,
        shape=shape,
        copies=plans.copies(arrangement),
    )
    return spread.rows(None), spread.route.group_sizes, handle


@jax.named_scope("moe_combine")
def combine(
    rows: jax.Array,
    handle: Handle,
    weights: jax.Array | None = None,
    *,
    payload_dtype: DTypeLike | None = None,
) -> jax.Array:
    """Returns what experts made of tokens, weighted and added up for each token.

    Undoes `dispatch`, along its plan, which was made for rows as wide as those dispatched. Sums are
    made in float32 or wider, or in integers where all are, in a fixed order, so they come out the
    same every time. Choices that were dropped count as zero. Where `dispatch` deduplicated tokens,
    each server's part is summed there, and rounded once, to rows' type or payload_dtype.

    Args:
      rows: one for each that `dispatch` returned, in the same place, shape (room, any width).
      handle: that of the `dispatch`, or of `take_weights`.
      weights: of each token's choices, shape (..., k); if left out those that `dispatch` was
        given, or 1.
      payload_dtype: type that rows travel in; see `dispatch`.

    Returns:
      Tokens, shape (..., width) with the axes in front that x had, of rows' type.

    Raises:
      ArgumentError: shapes or types do not fit the handle.
    """
    _check_handle(handle)
    rows = steps.check_rows(rows, handle.route.rows)
    factors = handle.weights
    if weights is not None:
        factors = arguments.check_weights(weights, (*handle.shape, handle.kept.shape[-1]))
        if handle.deduplicated:
            arguments.check_travelling(factors, True)
            factors = steps.factors_at_experts(factors, handle.route)
    sent = steps.start_sums(rows, factors, handle.route, payload_dtype)
    tokens, _ = steps.finish_sums(sent, factors, handle.route)
    return tokens.astype(rows.dtype).reshape(*handle.shape, tokens.shape[1])


@jax.named_scope("moe_weights")
def take_weights(handle: Handle) -> tuple[jax.Array, Handle]:
    """The weights of rows at their experts, for experts that multiply by them themselves.

    For instance before the second product, where rows are narrower. Deduplicated tokens have
    brought them along; for others this is an exchange of one column, along the plan. Gradients flow
    to the weights that `dispatch` was given.

    Args:
      handle: that of the `dispatch`, which had `weights`.

    Returns:
      Weights, in float32 or wider, shape (room,): of each row that `dispatch` returned, and 0 where
      there is none. And a handle by which `combine` adds rows up as they are.

    Raises:
      ArgumentError: the handle has no weights.
    """
    _check_handle(handle)
    weights = handle.weights
    if weights is None:
        raise ArgumentError(
            "this handle has no weights: give them to fastjax.moe.dispatch, weights=..., and take "
            "them once."
        )
    if not handle.deduplicated:
        weights = steps.factors_at_experts(weights, handle.route)
    return weights.reshape(-1), dataclasses.replace(handle, weights=None)


def _check_handle(handle: object) -> None:
    if not isinstance(handle, Handle):
        raise ArgumentError(
            f"handle must come from fastjax.moe.dispatch, got {type(handle).__name__}."
        )
