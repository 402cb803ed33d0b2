"""Exchanges in operations of JAX, for platforms on which fastjax has no backend.

`jax.lax.ragged_all_to_all` moves the rows. Its own derivatives are not used: they go wrong with
groups, with empty slices and where a row was sent to several devices. What is wrong in offsets and
sizes is not looked for. Rows that indices name are copied first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, primitives

from fastjax import jax_compat
from fastjax.jax_compat import Axes
from fastjax.traced.contract import Metadata
from fastjax.traced.nonnegative import look_up
from fastjax.traced.plan import ExchangeGroup
from fastjax.traced.slices import covered, landings

# JAX's own, also while `swap_ragged_all_to_all` has ours in its place.
_ragged_all_to_all = functools.partial(Primitive.bind, primitives.ragged_all_to_all_p)


def exchange(
    operands: Mapping[str, jax.Array], group: ExchangeGroup, *, reverse: bool, drop: bool
) -> jax.Array:
    """What the primitive `fast_ragged_all_to_all_p` does, without a plan.

    Args:
      operands: of the primitive, by name; a stage table is not used.
      group: the devices that exchange.
      reverse: whether rows travel from output space to operand space, and are summed there.
      drop: whether rows out of range are dropped.
    """
    source, base = operands["source"], operands["base"]
    way: Metadata[jax.Array] = Metadata(*(operands[name] for name in Metadata._fields))
    if "indices" not in operands:
        return _exchange(source, base, way, group, reverse=reverse, drop=drop)
    if reverse:
        return _summed_by_index(operands, way, group)
    copies = source.at[operands["indices"]].get(mode="fill", fill_value=0)
    return _exchange(copies, base, way, group)


def _exchange(
    source: jax.Array,
    base: jax.Array,
    way: Metadata[jax.Array],
    group: ExchangeGroup,
    *,
    reverse: bool = False,
    drop: bool = False,
) -> jax.Array:
    """Without indices."""
    source, base, *metadata = jax_compat.vary_together([source, base, *way], group.axes)
    way = Metadata(*_of_one_type(metadata))
    if drop:
        rows = (base.shape[0], source.shape[0]) if reverse else (source.shape[0], base.shape[0])
        way = _within(way, *rows, group)
    return _backward(source, base, way, group) if reverse else _forward(source, base, way, group)


def _summed_by_index(
    operands: Mapping[str, jax.Array], way: Metadata[jax.Array], group: ExchangeGroup
) -> jax.Array:
    """Rows are returned, each for itself, and then those of one index are summed."""
    rows, base, indices = operands["source"], operands["base"], operands["indices"]
    factors, entries = operands["factors"], operands["entries"]
    rows = rows.astype(base.dtype)
    if factors.shape[0] > 0:
        rows = rows * _by_row(factors, rows).astype(base.dtype)
    each = jnp.zeros_like(base, shape=(indices.shape[0], *base.shape[1:]))
    each = _exchange(rows, each, way, group, reverse=True)
    returned = covered(way.input_offsets, way.send_sizes, indices.shape[0])
    if entries.shape[0] > 0:
        sums = look_up(each, entries, unique=True).sum(1)
        found = look_up(returned, entries, unique=True).any(1)
    else:
        at = jnp.where(returned, indices, base.shape[0])
        sums = jnp.zeros_like(base).at[at].add(each, mode="drop")
        found = jnp.zeros(base.shape[0], bool).at[at].set(True, mode="drop")
    return jnp.where(_by_row(found, base), sums, base)


def _within(
    way: Metadata[jax.Array], operand_rows: int, output_rows: int, group: ExchangeGroup
) -> Metadata[jax.Array]:
    """Slices of the rows that lie in both arrays."""
    limit = max(operand_rows, output_rows) + 1  # so that nothing overflows
    taken, sent, landing, _ = (jnp.clip(array, -limit, limit) for array in way)
    first = jnp.maximum(0, jnp.maximum(-taken, -landing))
    end = jnp.minimum(sent, jnp.minimum(operand_rows - taken, output_rows - landing))
    sizes = jnp.maximum(0, end - first)
    arriving = landings(sizes, group)
    return Metadata(taken + first, sizes, landing + first, arriving)


def _of_one_type(metadata: Sequence[jax.Array]) -> list[jax.Array]:
    """jax.lax's operation wants one type, which holds no more rows than int32 or int64 counts."""
    wide = any(array.dtype.itemsize > 4 for array in metadata)
    return [array.astype(jnp.int64 if wide else jnp.int32) for array in metadata]


def _forward(
    source: jax.Array, base: jax.Array, way: Metadata[jax.Array], group: ExchangeGroup
) -> jax.Array:
    if group.size == 1:  # TPUs refuse groups of one device
        return _alone(source, base, way)
    return _ragged_all_to_all(
        source, base, *way, axis_name=group.axes, axis_index_groups=group.groups
    )


def _alone(source: jax.Array, base: jax.Array, way: Metadata[jax.Array]) -> jax.Array:
    """The exchange of a device with itself."""
    if source.shape[0] == 0 or base.shape[0] == 0:
        return base
    rows = jnp.arange(base.shape[0])[:, None]
    sent_from, sizes, starts, _ = (array[None] for array in way)
    inside = (rows >= starts) & (rows < starts + sizes)
    taken = jnp.max(jnp.where(inside, rows - starts + sent_from, -1), axis=1)
    arrived = source.at[jnp.maximum(taken, 0)].get(mode="clip")
    return jnp.where(_by_row(taken >= 0, base), arrived, base)


def _backward(
    source: jax.Array, base: jax.Array, way: Metadata[jax.Array], group: ExchangeGroup
) -> jax.Array:
    """Returns rows to operand space, and sums those that are returned to one row."""
    back = Metadata(
        landings(way.output_offsets, group),
        way.recv_sizes,
        landings(way.input_offsets, group),
        way.send_sizes,
    )

    def apart() -> jax.Array:
        return _forward(source, base, back, group)

    def summed() -> jax.Array:
        return _slice_by_slice(source, base, way.input_offsets, back, group)

    shared = _overlap(way.input_offsets, way.send_sizes)
    return jax.lax.cond(_anywhere(shared, group.axes), summed, apart)


def _slice_by_slice(
    source: jax.Array,
    base: jax.Array,
    input_offsets: jax.Array,
    back: Metadata[jax.Array],
    group: ExchangeGroup,
) -> jax.Array:
    """As many exchanges as there are slices, each of one slice from and to every device.

    `jax.lax.ragged_all_to_all` would write rows that are returned to one place over each other.
    """
    entries = input_offsets.shape[0]
    each = entries // group.size  # slices for one peer
    numbers, me = jnp.arange(entries), group.position()
    zeros, *_ = jax_compat.vary_together((jnp.zeros_like(base), base), group.axes)

    def add(iteration: jax.Array, total: jax.Array) -> jax.Array:
        distance, update = iteration // each, iteration % each
        to = (me - distance) % group.size
        origin = (me + distance) % group.size
        one = back._replace(
            send_sizes=jnp.where(numbers == to * each + update, back.send_sizes, 0),
            recv_sizes=jnp.where(numbers == origin * each + update, back.recv_sizes, 0),
        )
        return total + _forward(source, zeros, one, group)

    total = jax.lax.fori_loop(0, entries, add, zeros)
    returned = covered(input_offsets, back.recv_sizes, base.shape[0])
    return jnp.where(_by_row(returned, base), total, base)


def _overlap(starts: jax.Array, sizes: jax.Array) -> jax.Array:
    """Whether any two slices have a row in common."""
    starts, sizes = jax.lax.sort((jnp.where(sizes > 0, starts, 0), sizes), num_keys=1)
    ends = jax.lax.cummax(starts + sizes)
    return jnp.any((starts[1:] < ends[:-1]) & (sizes[1:] > 0))


def _anywhere(here: jax.Array, axes: Axes) -> jax.Array:
    """Whether it is so on any device of the mesh: all devices take one branch."""
    everywhere = jax_compat.manual_axes(axes)
    here = jax_compat.vary_together(here.astype(jnp.int32), everywhere)
    return jax.lax.pmax(here, everywhere) > 0


def _by_row(rows: jax.Array, like: jax.Array) -> jax.Array:
    return rows.reshape((-1,) + (1,) * (like.ndim - 1))
