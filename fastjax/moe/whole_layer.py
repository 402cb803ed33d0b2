"""A whole layer of experts, in chunks of tokens whose exchanges and experts work side by side."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.errors import ArgumentError
from fastjax.moe import arguments, chunk_count, padding, pipeline, routing
from fastjax.moe.arrangement import Arrangement, Options, aligned, arrange
from fastjax.moe.dispatching import plan_dispatches
from fastjax.moe.groups import grouped_map
from fastjax.moe.pipeline import Experts, Params
from fastjax.moe.planning import find_room
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis


@jax.named_scope("moe_layer")
def layer(
    function: Callable[..., jax.Array],
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    params: Params,
    *,
    num_experts: int,
    axis_name: AxisName,
    chunks: int | None = None,
    seconds_per_row: float | None = None,
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    buffer_factor: float | None = None,
    alignment: int = 1,
    payload_dtype: DTypeLike | None = None,
    deduplicate: bool | None = None,
) -> jax.Array:
    """Sends tokens to their experts, has these work, and adds up what comes back.

    To be called inside `jax.shard_map`. Does what `dispatch`, the experts and `combine` do one
    after the other, in chunks of tokens: the experts of one chunk work while the rows of others
    travel. Values do not depend on the number of chunks, as long as a row's result does not depend
    on the rows beside it; gradients of params do by the order of sums only.

    Args:
      function: what an expert does. `function(rows, params)`, rows of shape (some, width) and one
        expert's params, is applied by `grouped_map`; `function(rows, group_sizes, params)`, rows of
        shape (room, width) as `dispatch` returns them and all params of this device, as it is; rows
        of padding are then not zeros, but their group's last row again. Returns a row for each.
      x: tokens of this device, shape (tokens, width).
      expert_ids: experts of each token, integers, shape (tokens, k); see `dispatch`.
      weights: of each token's choices, shape (tokens, k), or None for 1.
      params: a pytree of arrays of the experts of this device, shape (experts of a device, ...).
      num_experts: experts of all devices together, a multiple of the devices.
      axis_name: mesh axis, or several, that experts are spread over.
      chunks: how many, from 1 to tokens; one in a shard_map that leaves axes to XLA, which would
        lose their order. By default 1, or, where CPU devices of several processes
        share the experts and seconds_per_row is given, what the model of a layer predicts to be
        fastest; see docs/how_to/hide_the_exchange.md.
      seconds_per_row: what the experts of a device take for a row, forward.
      axis_index_groups: see `dispatch`.
      topology: see `dispatch`.
      scheduler: see `dispatch`.
      buffer_factor: see `dispatch`; what is dropped does not depend on the chunks.
      alignment: see `dispatch`; of each chunk's rows.
      payload_dtype: type that rows travel in, there and back; see `dispatch`.
      deduplicate: see `dispatch`; decided once for all chunks.

    Returns:
      Tokens, shape (tokens, width of what function returns), of the type of its rows.

    Raises:
      ArgumentError: shapes or types do not fit, there are not so many tokens as chunks, or function
        does not take two or three arguments.
      TopologyError, OptionError, UnsupportedError, NameError, jax.errors.JaxRuntimeError: as
        `fast_ragged_all_to_all`.
    """
    resolve_axis(axis_name, axis_index_groups)  # that there is no axis comes first
    x, expert_ids, weights = arguments.check_tokens(x, expert_ids, weights)
    tokens, top_k = expert_ids.shape
    arguments.check_chunks(chunks, tokens)
    arguments.check_seconds_per_row(seconds_per_row)
    experts = _of_rows(function, alignment)
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
    )
    whole = arrange(x, expert_ids, weights, options)
    group = whole.group
    x, expert_ids = jax_compat.vary_together([x, expert_ids], group.axes)
    if jax_compat.leaves_axes_to_xla():
        chunks = 1
    elif chunks is None:
        chunks = chunk_count.chunks_of(whole, tokens, top_k, seconds_per_row)
    group = group.described(f"{group.spec.layer}, chunks={chunks}")
    whole = dataclasses.replace(whole, group=group)
    if chunks == 1:
        (planned,), _ = plan_dispatches([expert_ids], [whole])
        return pipeline.one_chunk(x, weights, planned, whole, experts, params)
    expert_ids = _for_chunks(expert_ids, whole)
    slices, arrangements = zip(*_cut(whole, tokens, top_k, chunks), strict=True)
    parts = [
        pipeline.Chunk(x[at], expert_ids[at], None if weights is None else weights[at])
        for at in slices
    ]
    return jnp.concatenate(pipeline.run(parts, arrangements, experts, params))


def _of_rows(function: Callable[..., jax.Array], alignment: int) -> Experts:
    """The function of all experts of a device, to whose results padding adds nothing."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"function must be a function of (rows, params) or (rows, group_sizes, params), got "
            f"{function!r}: {error}."
        ) from error
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [p for p in parameters if p.kind in positional and p.default is p.empty]
    if len(wanted) == 3:
        return lambda rows, sizes, without, params: function(
            padding.filled(rows, without, sizes, alignment), sizes, params
        )
    if len(wanted) == 2:
        return lambda rows, sizes, without, params: grouped_map(
            function, rows, params, sizes, without if alignment > 1 else None
        )
    raise ArgumentError(
        "function must take two arguments, (rows, params), or three, (rows, group_sizes, params); "
        f"{getattr(function, '__name__', function)!r} takes {len(wanted)} without defaults."
    )


def _for_chunks(expert_ids: jax.Array, whole: Arrangement) -> jax.Array:
    """The choices that find room if all chunks go at once; none instead of the others.

    Where an expert that there is not was chosen, the first choice is that one: the first chunk is
    refused, before an exchange of any chunk starts.
    """
    (expert_ids,) = jax_compat.vary_together([expert_ids], whole.group.axes)
    count = whole.experts.count
    choices = routing.check(expert_ids, count)
    if whole.experts.may_drop:
        kept, _ = find_room(choices, whole.experts, whole.group)
    else:
        kept = choices.experts < count
    going = jnp.where(kept, choices.experts, routing.UNROUTED)
    wrong = jnp.where(choices.wrong < count, -choices.wrong, choices.wrong)
    # int32 does not hold 2**32 - 1.
    wrong = jnp.where(wrong == routing.UNROUTED, routing.MOST, wrong)
    return going.at[0, 0].set(jnp.where(choices.wrong > 0, wrong, going[0, 0]))


def _cut(
    whole: Arrangement, tokens: int, top_k: int, chunks: int
) -> Iterable[tuple[slice, Arrangement]]:
    """The tokens of each chunk, as many as of the others or one more, and how they go."""
    ends = np.arange(chunks + 1) * tokens // chunks
    devices = len(whole.servers.rank_of)
    here = whole.experts.count // devices
    cut = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        # Either all of the chunk that can arrive, or all that finds room of all chunks.
        most = (end - start) * top_k * devices
        rows = min(aligned(most, here, whole.experts.alignment), whole.experts.rows)
        experts = dataclasses.replace(whole.experts, rows=rows, may_drop=False)
        cut.append((slice(start, end), dataclasses.replace(whole, experts=experts)))
    return cut


__all__ = ["layer"]
