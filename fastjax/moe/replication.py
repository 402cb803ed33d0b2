"""Tokens that all devices have: in inference, and where layers are tensor-parallel.

Each device takes its part of them, and all gather the results. Or, if they are few, each has its
experts work on all tokens that chose these, which takes no exchange, and the results are summed.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fastjax import jax_compat, scheduling
from fastjax.chunking import replicating
from fastjax.errors import ReplicatedTokensWarning
from fastjax.jax_compat import Axes
from fastjax.moe import checkpoint, routing, types
from fastjax.moe.arrangement import Arrangement
from fastjax.moe.planning import sizes_to_plan
from fastjax.moe.steps import Experts, add_up, check_rows
from fastjax.topology import Topology
from fastjax.traced.after import after
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.plan_spec import PlanSpec

_warned: set[Axes] = set()


def warn_of_copies(x: jax.Array, axes: Axes) -> None:
    """Warns, once for the axes, of tokens that are known to be the same on all of the devices."""
    if not jax_compat.check_vma_enabled() or axes in _warned:
        return
    if jax.lax.axis_size(axes) > 1 and not jax_compat.vma(jax.typeof(x)).intersection(axes):
        _warned.add(axes)
        warnings.warn(
            f"all devices along {', '.join(map(repr, axes))} have the same tokens, and moe.layer "
            "has experts work on those of each. Give replicated=True, so that they work on them "
            "once; or give each device tokens of its own, by the shard_map's in_specs.",
            ReplicatedTokensWarning,
            stacklevel=5,
        )


def is_summed(whole: Arrangement, x: jax.Array, top_k: int) -> bool:
    """Whether experts work on all tokens, x, that chose them, and results are summed."""
    spec, (count, width) = whole.group.spec, x.shape
    wide = types.summed_in(x.dtype)
    result_bytes, sum_bytes = width * x.dtype.itemsize, width * wide.itemsize
    tokens = replicating.Replicated(count, top_k, spec.row_bytes, result_bytes, sum_bytes)
    return spec.topology.num_devices == 1 or replicating.summing_is_faster(
        spec.topology, tokens, spec.scheduler, jax.default_backend()
    )


def part_of(array: jax.Array, filling: int, length: int, axes: Axes) -> jax.Array:
    """This device's part, of so many rows, of an array of all tokens, filled up behind the last."""
    missing = length * jax.lax.axis_size(axes) - len(array)
    array = jnp.pad(array, ((0, missing), (0, 0)), constant_values=filling)
    array, first = jax_compat.vary_together((array, jax.lax.axis_index(axes) * length), axes)
    return jax.lax.dynamic_slice_in_dim(array, first, length)


def gathered(rows: jax.Array, tokens: int, axes: Axes) -> jax.Array:
    """The rows of all devices, so many of them, on each."""
    # Without check_vma, the transpose of the other kind would not add up the cotangents of devices.
    to = "invarying" if jax_compat.check_vma_enabled() else "varying"
    return jax.lax.all_gather(rows, axes, tiled=True, to=to)[:tokens]


def summed(
    x: jax.Array,
    expert_ids: jax.Array,
    weights: jax.Array | None,
    params: Any,
    experts: Experts,
    whole: Arrangement,
) -> tuple[jax.Array, jax.Array]:
    """The results of all tokens, and the rows that this device's experts worked on.

    Nothing is exchanged but these results. Values vary over the axes.
    """
    tokens, top_k = expert_ids.shape
    at_home = checkpoint.named(_at_home(expert_ids, whole))
    each = jnp.broadcast_to(x[:, None], (tokens, top_k, x.shape[1]))
    rows = _taken(each.reshape(tokens * top_k, x.shape[1]), at_home.choice)
    made = experts(rows, at_home.group_sizes, at_home.group_rows, params)
    made = check_rows(made, len(rows))
    returned = _taken(made, at_home.row).reshape(tokens, top_k, made.shape[1])
    factors = jnp.ones((tokens, top_k), made.dtype) if weights is None else weights
    factors = jnp.where(at_home.row.reshape(tokens, top_k) < len(rows), factors, 0)
    total = jax.lax.psum(add_up(returned, factors), whole.group.axes)
    return total.astype(made.dtype), at_home.group_rows.sum(dtype=jnp.int32)


class _AtHome(NamedTuple):
    """Rows for the experts of a device, of all tokens.

    Attributes:
      choice: int32, shape (room,): the choice, token * k + which, that each row is of.
      row: int32, shape (tokens * k,): and the row of each choice. Where there is none, either has
        numbers behind the last that differ.
      group_rows, group_sizes: rows of each expert of this device, without and with padding.
    """

    choice: jax.Array
    row: jax.Array
    group_rows: jax.Array
    group_sizes: jax.Array


def _at_home(expert_ids: jax.Array, whole: Arrangement) -> _AtHome:
    count, here, alignment = whole.experts.count, whole.experts.here, whole.experts.alignment
    choices = expert_ids.size
    chosen = routing.check(expert_ids, count)
    local = chosen.experts - whole.group.position() * here
    local = jnp.where((local >= 0) & (local < here), local, here)
    by_expert = routing.by_expert(routing.Choices(local, chosen.wrong), here)
    counts = _refused(by_expert, whole)
    only = jnp.zeros((), jnp.int32)  # the position of one device
    dispatch, _, *groups = routing.find(routing.at_home(counts[None]), only, alignment)
    room = choices + here * (alignment - 1)
    shifts = dispatch.output_offsets - dispatch.input_offsets
    number = jnp.arange(choices, dtype=jnp.int32)
    experts = look_up(local.reshape(-1), by_expert.order)
    row = number + look_up(jnp.append(shifts, jnp.int32(room)), experts)
    row = look_up(row, by_expert.place)
    choice = choices + jnp.arange(room, dtype=jnp.int32)
    choice = choice.at[row].set(
        number, mode="drop", unique_indices=True, wrap_negative_indices=False
    )
    return _AtHome(choice, row, *groups)


def _taken(rows: jax.Array, at: jax.Array) -> jax.Array:
    """The rows at different places; zero where these are behind the last."""
    return rows.at[at].get(
        mode="fill", fill_value=0, unique_indices=True, wrap_negative_indices=False
    )


def _refused(by_expert: routing.Sorted, whole: Arrangement) -> jax.Array:
    """Rows of each local expert; an error where some expert does not exist.

    It is the planner that refuses, here of an exchange of each device with itself, which is not
    made.
    """
    axes, direct = whole.group.axes, scheduling.FALLBACK
    alone = tuple((position,) for position in range(jax.lax.axis_size(axes)))
    group = ExchangeGroup(
        axes, alone, PlanSpec(Topology(1, 1), (0,), direct, whole.group.spec.row_bytes)
    )
    sizes = sizes_to_plan(by_expert.counts, by_expert.choices.wrong, None)
    return after(by_expert.counts, group.plan(sizes, whole.experts.count).table)
