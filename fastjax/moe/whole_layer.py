"""A whole layer of experts, in chunks of tokens whose exchanges and experts work side by side."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax import jax_compat
from fastjax.moe import arguments, pipeline, programs, replication, routing
from fastjax.moe.arrangement import ROUND_FACTOR, Arrangement, Options, arrange, chunks_of
from fastjax.moe.groups import grouped_map, padded
from fastjax.moe.planning import find_room
from fastjax.moe.rounds import arrange_further, further, plan_first
from fastjax.moe.steps import Experts, Params
from fastjax.topology import AxisName, Topology
from fastjax.traced.axes import resolve_axis
from fastjax.traced.nonnegative import look_up


@arguments.with_buffer_factor
@jax.named_scope("moe_layer")
def layer(
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    params: Params,
    *,
    expert_fn: Callable[[jax.Array, Any], jax.Array] | None = None,
    grouped_fn: Callable[[jax.Array, jax.Array, Any], jax.Array] | None = None,
    num_experts: int,
    axis_name: AxisName,
    chunks: int | None = None,
    seconds_per_row: float | None = None,
    axis_index_groups: Iterable[Iterable[int]] | None = None,
    topology: Topology | None = None,
    scheduler: str | None = None,
    buffer_factor: float | None = None,
    drop: bool = False,
    alignment: int = 1,
    payload_dtype: DTypeLike | None = None,
    deduplicate: bool | None = None,
    balance: bool | None = None,
    copies: int = 4,
    no_expert: int | None = None,
    replicated: bool = False,
    return_stats: bool = False,
) -> Any:
    """Sends tokens to their experts, has these work, and adds up what comes back.

    To be called inside `jax.shard_map`. Does what `dispatch`, the experts and `combine` do one
    after the other, in chunks of tokens: the experts of one chunk work while the rows of others
    travel. On CPUs values do not depend on the number of chunks, as long as a row's result does not
    depend on the rows beside it; gradients of params do by the order of sums only.

    Args:
      x: tokens of this device, shape (..., width): any number of axes in front.
      expert_ids: experts of each token, integers, shape (..., k); see `dispatch`.
      weights: of each token's choices, shape (..., k), or None for 1.
      params: a pytree of arrays of the experts of this device, shape (experts of a device, ...).
      expert_fn: what one expert does: `expert_fn(rows, params)`, rows of shape (some, width) and
        one expert's params, returns a row for each. Applied by `grouped_map`.
      grouped_fn: instead of expert_fn, what a device's experts do together:
        `grouped_fn(rows, group_sizes, params)`, rows of shape (room, width) and group_sizes as
        `dispatch` returns them, and all params of this device, returns a row for each. Rows of
        padding are not zeros, but their group's last row again.
      num_experts: experts of all devices together, a multiple of the devices.
      axis_name: mesh axis, or several, that experts are spread over.
      chunks: how many, from 1 to tokens; one in a shard_map that leaves axes to XLA, which would
        lose their order. By default 1, or, where CPU devices of several processes share the
        experts and seconds_per_row is given, the number that the model of a layer predicts to be
        fastest; see docs/how_to/hide_the_exchange.md.
      seconds_per_row: time of a device's experts for a row, forward.
      axis_index_groups: see `dispatch`.
      topology: see `dispatch`.
      scheduler: see `dispatch`.
      buffer_factor: room of a device for arriving rows, as a multiple of tokens * k, what a device
        gets if all devices get the same; at least what one token of each device may need. Where
        more arrive, tokens go in further rounds, so nothing is dropped: a further round takes as
        long as a layer of its tokens, in one chunk, and has no forward mode. By default 1.25, or as
        many as can arrive where these take no more than a MiB.
      drop: whether rows without room are dropped instead, as `dispatch` does; which are does not
        depend on the chunks. Then there is by default room for all.
      alignment: see `dispatch`; of each chunk's rows.
      payload_dtype: type that rows travel in, there and back; see `dispatch`.
      deduplicate: see `dispatch`; decided once for all chunks.
      balance: whether rows of popular experts are computed by other devices of the server, too,
        which get their params for this step; grouped_fn gets params with as many leading entries as
        group_sizes then, see `Handle.params`, and leaves that all experts share cannot be among
        them. By default only with expert_fn, where CPU devices of several processes share the
        experts, seconds_per_row is given, and the model of a layer predicts a gain for skewed
        popularity and hardly a loss for even; see docs/how_to/balance_experts.md.
      copies: the most copies of experts that a device has then; see `dispatch`.
      no_expert: see `dispatch`.
      replicated: whether all devices have the same tokens; then all get all results, which do not
        vary over the axis. Either each device takes its part of the tokens, of any number, in so
        many chunks. Or each has its experts work on all tokens that chose these, and results are
        summed: nothing is exchanged before, and nothing dropped. The cost model decides, by
        start-ups and bytes; with one device nothing is exchanged at all.
      return_stats: whether to return `LayerStats`, too.

    Returns:
      Tokens, shape (..., width of what the function returns), of the type of its rows; or these
      and what the layer did.

    Raises:
      ArgumentError: shapes or types do not fit, there are not so many tokens as chunks, or neither
        function or both are given, or one that takes other arguments.
      TopologyError, OptionError, UnsupportedError, NameError, jax.errors.JaxRuntimeError: as
        `fast_ragged_all_to_all`.
    """
    axes, groups, devices = resolve_axis(axis_name, axis_index_groups)  # refused first
    tokens = arguments.check_tokens(x, expert_ids, weights, num_experts, no_expert)
    arguments.check_replicated(replicated, groups)
    arguments.check_chunks(chunks, -(-len(tokens.x) // (devices if replicated else 1)))
    arguments.check_experts(num_experts, devices)
    arguments.check_functions(expert_fn, grouped_fn)
    params = jax.tree.map(jnp.asarray, params)
    # Of an expert, which all chunks and rounds, and copies, must have alike: tiles have as many.
    choices = tokens.expert_ids.size * (1 if replicated else devices)
    usual_rows = math.ceil(ROUND_FACTOR * choices / num_experts)
    experts = _of_rows(expert_fn, grouped_fn, alignment, usual_rows)
    if expert_fn is not None:
        arguments.check_params(params, num_experts // devices)
    elif balance is None:
        balance = False  # a grouped_fn has to know of copies
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
        drop,
        chunks,
        seconds_per_row,
        _bytes_of_one(params),
    )
    if not replicated and groups is None:
        replication.warn_of_copies(tokens.x, axes)
    run = _run_replicated if replicated else _run
    result, stats = run(options, experts, tokens.x, tokens.expert_ids, tokens.weights, params)
    result = tokens.restored(result)
    return (result, stats) if return_stats else result


class LayerStats(NamedTuple):
    """Outcome of a layer on a device: a pytree of int32.

    Attributes:
      expert_rows: shape (num_experts,): rows that all devices sent to each expert, or would have if
        there had been room; the same on all devices that exchange with each other. Replicated
        tokens count once.
      rows: rows that this device's experts worked on.
      dropped: choices of this device's tokens that found no room, or of all devices' if these have
        the same; 0 unless `drop` is given.
      copies: experts of other devices that this one computed for, the most in a round.
      rounds: 1, or more where not all tokens found room at once.
    """

    expert_rows: jax.Array
    rows: jax.Array
    dropped: jax.Array
    copies: jax.Array
    rounds: jax.Array


def _run(
    options: Options,
    experts: Experts,
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    params: Params,
) -> tuple[jax.Array, LayerStats]:
    tokens, top_k = expert_ids.shape
    whole = arrange(x, expert_ids, weights, options)
    given = x, expert_ids, weights, params
    x, expert_ids, weights, params = jax_compat.vary_together(given, whole.group.axes)
    chunks = options.chunks
    if jax_compat.leaves_axes_to_xla():
        chunks = 1
    elif chunks is None:
        chunks = chunks_of(whole, tokens, top_k, options.seconds_per_row)
    group = whole.group.told(layer=f"{whole.group.spec.layer}, chunks={chunks}")
    whole = dataclasses.replace(whole, group=group)
    slices, arrangements = zip(*_cut(whole, tokens, top_k, chunks, options), strict=True)
    later = arrange_further(whole, arrangements, tokens, top_k)
    given, captured = experts, None
    if chunks > 1 or later is not None:
        every = [*arrangements] if later is None else [*arrangements, later]
        experts, captured, effects = programs.closed(experts, params, x, every)
        over = {jax_compat.vma(jax.typeof(v)) for v in [x, *jax.tree.leaves(captured)]}
        if later is not None and (effects or len(over) > 1):
            # Devices that do not exchange with each other may have other numbers of rounds. So a
            # round has no collectives, nor values that devices share, whose cotangents are summed.
            fit = dataclasses.replace(options, buffer_factor=float(whole.experts.devices))
            return _run(fit, given, x, expert_ids, weights, params)
    choices, room, levelled = routing.check(expert_ids, whole.experts.count), None, None
    if chunks > 1 and whole.experts.drop:
        choices, room, levelled = find_room(choices, whole, whole.group)
    # The first chunk is refused for all, before an exchange of any chunk starts.
    wrong = [choices.wrong, *[jnp.zeros_like(choices.wrong)] * (chunks - 1)]
    of_chunks = [
        routing.Choices(choices.experts[at], w) for at, w in zip(slices, wrong, strict=True)
    ]
    plans, expert_rows, rounds = plan_first(of_chunks, arrangements, levelled)
    copied = plans.params(params, whole)
    if captured is not None:
        copied = copied, captured
    made = None
    if later is not None:
        values = x, weights, params, captured
        made, x = further(later, rounds, experts, choices.experts, values)
    each = [None if weights is None else weights[at] for at in slices]
    result = pipeline.run([x[at] for at in slices], each, plans, experts, copied)
    if made is not None:
        result += made
    dropped = plans.ways[0].room.dropped
    if room is not None:  # of all chunks
        expert_rows, dropped = room.expert_rows, room.dropped
    rows, copies = (look_up(array, group.position()) for array in rounds.computed)
    stats = LayerStats(expert_rows, rows, dropped, copies, rounds.number)
    return result, jax_compat.vary_together(stats, group.axes)


def _run_replicated(
    options: Options,
    experts: Experts,
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    params: Params,
) -> tuple[jax.Array, LayerStats]:
    """The same for tokens that all devices have."""
    axes, _, devices = resolve_axis(options.axis_name, None)
    expert_ids = arguments.in_int32(expert_ids)
    part_of = functools.partial(replication.part_of, length=-(-len(x) // devices), axes=axes)
    own = None if weights is None else part_of(weights, 0)
    part = part_of(x, 0), part_of(expert_ids, routing.UNROUTED), own
    whole = arrange(*part, options)
    count = whole.experts.count
    expert_rows = routing.count(routing.check(expert_ids, count).experts, count)
    if replication.is_summed(whole, x, expert_ids.shape[1]):
        given = jax_compat.vary_together((x, expert_ids, weights, params), axes)
        result, rows = replication.summed(*given, experts=experts, whole=whole)
        copies, nothing = jnp.zeros_like(rows), jnp.zeros((), jnp.int32)
        stats = LayerStats(rows, rows, nothing, copies, copies + 1)
    else:
        result, stats = _run(options, experts, *part, params)
        result = replication.gathered(result, len(x), axes)
        stats = stats._replace(dropped=jax.lax.psum(stats.dropped, axes))
    return result, stats._replace(expert_rows=expert_rows)


def _bytes_of_one(params: Params) -> int:
    """Bytes of the params of an expert."""
    sizes = [math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)]
    return max(1, sum(sizes))


def _of_rows(
    expert_fn: Callable[..., jax.Array] | None,
    grouped_fn: Callable[..., jax.Array] | None,
    alignment: int,
    usual_rows: int,
) -> Experts:
    """The function of all experts of a device, to whose results padding adds nothing.

    One expert usually has so many rows.
    """
    if grouped_fn is not None:
        return lambda rows, sizes, without, params: grouped_fn(
            padded(rows, without, sizes, alignment), sizes, params
        )
    assert expert_fn is not None
    return lambda rows, sizes, without, params: grouped_map(
        *(expert_fn, rows, params, sizes, without if alignment > 1 else None),
        usual_rows=usual_rows or None,
    )


def _cut(
    whole: Arrangement, tokens: int, top_k: int, chunks: int, options: Options
) -> Iterable[tuple[slice, Arrangement]]:
    """The tokens of each chunk, as many as of the others or one more, and how they go."""
    if chunks == 1:
        return [(slice(None), whole)]
    ends = np.arange(chunks + 1) * tokens // chunks
    devices = whole.experts.devices
    drop = None if options.drop else False  # room for all chunks is shared out before
    cut = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        each = end - start, top_k
        if whole.experts.drop is False:
            factor = options.buffer_factor or ROUND_FACTOR
            available = arguments.room_of(*each, whole.experts.here, devices, factor)
        else:
            # Either all of the chunk that can arrive, or all that finds room of all chunks.
            available = whole.experts.available
            if whole.experts.balance is not None:
                # A chunk's shares of the rows of experts are rounded.
                available += 2 * whole.experts.groups + (devices * each[0] * top_k >> 12)
            available = min(devices * each[0] * top_k, available)
        experts = whole.experts.with_room(available, each, drop=drop)
        cut.append((slice(start, end), dataclasses.replace(whole, experts=experts)))
    return cut
