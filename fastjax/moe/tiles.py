"""Applies functions to rows of groups, tile by tile.

A tile is some rows, of which a run belongs to one group. All tiles of a call have one length, which
is known when the program is traced: that of groups that are all alike, or an equal part of it. So,
on CPUs, the products that a row has a part in have the same shapes wherever it lies and whatever
rows there are, in its group or in others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fastjax.moe import types
from fastjax.traced.nonnegative import look_up, quotient_up

# Of a group, at once with others. On GPUs, products of fewer hardly take less time.
_MANY_ROWS = 128
_MANY_AT_ONCE = 10_000  # rows of all groups: what lies between products of more leaves caches
# Of one tile on CPUs. Between products of fewer, XLA uses one core. The last tile of a group may be
# nearly empty, so skewed groups would pay for more.
_MOST_ROWS = 256
_PARTS = 8  # of all groups: as many tiles at once as a part has, beyond the first of each
# Of params, which loops would copy. For fewer, a program of half the size makes up for it.
_MANY_BYTES = 1 << 16

Rows = Any  # a pytree of arrays with as many rows each
Arrays = Any  # a pytree of arrays


class Params(NamedTuple):
    """Operands of a function beside rows: pytrees of arrays.

    Attributes:
      of_groups: shape (groups, ...) each; what functions get of them has one group's.
      shared: by all groups.
    """

    of_groups: Arrays
    shared: Arrays


OfTile = Callable[[Rows, Rows, Params], tuple[Rows, Params]]
Found = tuple[Rows, Params]


class Runs(NamedTuple):
    """Rows of groups, without padding: int32, shape (groups,) each."""

    starts: jax.Array
    sizes: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def over_groups(
    function: OfTile,
    mean: int,
    rows: Rows,
    masked: Rows,
    params: Params,
    runs: Runs,
) -> Found:
    """Applies a function to the rows of each group, tile by tile.

    Its derivative is another such function, of rows and cotangents, so there are derivatives of any
    order.

    Args:
      function: of a tile. Takes rows; rows that are zero where they are another group's; and what
        params have for the group. Returns new rows, and parts of sums over a group and over all,
        to which rows that are zero add nothing. It is called with tiles of `lengths`.
      mean: rows of a group of usual size.
      rows: shape (room, ...) each.
      masked: the same.
      params: integers among them have no derivatives.
      runs: of each group's rows.

    Returns:
      New rows, and the sums of each group and of all.
    """
    room, groups = rows[0].shape[0], runs.sizes.shape[0]
    of_cpus, of_others = lengths(room, mean, groups)
    some, none = jax.tree.map(lambda a: a[:of_cpus], (rows, masked))
    made, parts = jax.eval_shape(function, some, none, _of_group(params, 0))
    zeros = functools.partial(jnp.zeros_like, rows[0])
    results = jax.tree.map(lambda a: zeros(a.dtype, shape=(room, *a.shape[1:])), made)
    # Sums of many tiles: in float32 or wider.
    wide = lambda p: types.promoted(p.dtype, jnp.float32)  # noqa: E731
    each = jax.tree.map(lambda p: zeros(wide(p), shape=(groups, *p.shape)), parts.of_groups)
    of_all = jax.tree.map(lambda p: zeros(wide(p), shape=p.shape), parts.shared)
    totals = Params(each, of_all)
    if room > 0:
        work = functools.partial(_Work, function, mean, rows, masked, params)
        results, totals = jax.lax.platform_dependent(
            runs,
            (results, totals),
            cpu=work(of_cpus).one_by_one,
            default=work(of_others).in_batches,
        )
    return results, jax.tree.map(lambda t, p: t.astype(p.dtype), totals, parts)


def _forward(function: OfTile, mean: int, *operands: Any) -> Any:
    return over_groups(function, mean, *operands), operands


def _backward(function: OfTile, mean: int, operands: Any, cts: Found) -> Any:
    rows, masked, params, runs = operands
    results_ct, sums_ct = cts

    def transposed(rows: Rows, masked: Any, both: Params) -> Found:
        masked, results_ct = masked
        params, sums_ct = (Params(*of_both) for of_both in zip(*both, strict=True))
        floats, others, joined = types.split(params)
        of = lambda rows, masked, floats: function(rows, masked, joined(floats, others))  # noqa: E731
        _, back = jax.vjp(of, rows, masked, floats)
        rows_ct, masked_ct, floats_ct = back((results_ct, sums_ct))
        return (rows_ct, masked_ct), joined(floats_ct, [None] * len(others))

    both = Params(*zip(params, sums_ct, strict=True))
    made: Any = over_groups(transposed, mean, rows, (masked, results_ct), both, runs)
    (rows_ct, masked_ct), params_ct = made
    return rows_ct, masked_ct, params_ct, None


over_groups.defvjp(_forward, _backward)


def lengths(room: int, mean: int, groups: int) -> tuple[int, int]:
    """Rows of a tile, so that a group of `mean` rows needs few, full ones.

    On CPU devices it does not depend on the room, so a row has the same bits in any chunk of a
    layer. On others it is `mean`, or the group's share of a room for fewer rows: long products are
    fast there.
    """
    of_cpus = -(-mean // -(-mean // _MOST_ROWS))
    of_others = max(_MANY_ROWS, min(mean, -(-room // groups)))
    return min(room, of_cpus), min(room, of_others)


def _of_group(params: Params, group: jax.Array | int) -> Params:
    return params._replace(of_groups=_at(params.of_groups, group))


def _at(arrays: Arrays, group: jax.Array | int) -> Arrays:
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, group, keepdims=False), arrays)


class _Tile:
    """Rows, of which a run belongs to one group."""

    def __init__(self, start: jax.Array, end: jax.Array, length: int, room: int) -> None:
        self.length = length
        # The last tiles begin earlier, so that they end where there is room.
        self.first = jnp.minimum(start, room - length)
        self.rows = self.first + jnp.arange(length, dtype=jnp.int32)
        self.mine = (self.rows >= start) & (self.rows < end)
        self._begins = start - self.first

    def own(self, array: jax.Array) -> jax.Array:
        """Rows of the tile; in the place of each row of another group, one of its own again.

        Rows of other groups may hold anything, and functions need not have a derivative at zero.
        """
        rows = self.slice(array)
        one = jax.lax.dynamic_slice_in_dim(rows, self._begins, 1)
        return jnp.where(self._mask(array), rows, one)

    def own_or_zero(self, array: jax.Array) -> jax.Array:
        return jnp.where(self._mask(array), self.slice(array), 0)

    def written(self, array: jax.Array, values: jax.Array) -> jax.Array:
        """The array, with this tile's own rows changed."""
        changed = jnp.where(self._mask(array), values, self.slice(array))
        return jax.lax.dynamic_update_slice_in_dim(array, changed, self.first, 0)

    def slice(self, array: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(array, self.first, self.length)

    def _mask(self, array: jax.Array) -> jax.Array:
        return self.mine.reshape(-1, *(1,) * (array.ndim - 1))


class _Work(NamedTuple):
    """Attributes: those of `over_groups`, and how many rows a tile has."""

    function: OfTile
    mean: int
    rows: Rows
    masked: Rows
    params: Params
    length: int

    @property
    def room(self) -> int:
        return self.rows[0].shape[0]

    def one_by_one(self, runs: Runs, found: Found) -> Found:
        """A loop over groups that have rows, of loops over their tiles.

        Params of a group are copied once for all of its tiles, but that takes as long as products
        with few rows; and products of one tile keep few cores busy. So where groups usually have
        few rows, and most have some, the first tile of each goes at once, in batched products,
        which copy nothing.
        """
        groups = runs.sizes.shape[0]
        few = self.mean <= _MANY_ROWS and groups * self.mean <= _MANY_AT_ONCE
        floats, *_ = types.split(self.params.of_groups)
        if few and groups > 1 and _bytes_of(floats) > _MANY_BYTES:
            many = (runs.sizes > 0).sum() * 2 > groups
            state = runs, found
            runs, found = jax.lax.cond(many, self._first_at_once, lambda state: state, state)
        last = jnp.cumsum((runs.sizes > 0).astype(jnp.int32))

        def of_group(number: jax.Array, found: Found) -> Found:
            group = (last <= number).sum()
            start, size = (look_up(array, group) for array in runs)
            params, (results, totals) = _of_group(self.params, group), found

            def of_tile(number: jax.Array, found: Found) -> Found:
                results, sums = found
                tile = _Tile(start + number * self.length, start + size, self.length, self.room)
                values, parts = self._applied(tile, params)
                sums = jax.tree.map(lambda s, p: s + p.astype(s.dtype), sums, parts)
                return jax.tree.map(tile.written, results, values), sums

            tiles, sums = quotient_up(size, self.length), _of_group(totals, group)
            results, sums = jax.lax.fori_loop(0, tiles, of_tile, (results, sums))
            put = lambda t, s: jax.lax.dynamic_update_index_in_dim(t, s, group, 0)  # noqa: E731
            each = jax.tree.map(put, totals.of_groups, sums.of_groups)
            return results, Params(each, sums.shared)

        return jax.lax.fori_loop(0, last[-1], of_group, found)

    def _first_at_once(self, state: tuple[Runs, Found]) -> tuple[Runs, Found]:
        runs, found = state
        first = jnp.minimum(runs.sizes, self.length)
        found = self._at_once(runs.starts, runs.starts + first, found)
        return Runs(runs.starts + first, runs.sizes - first), found

    def in_batches(self, runs: Runs, found: Found) -> Found:
        """The first tile of each group at once, and a loop over the rest, some at once.

        On a GPU, a copy of a group's params takes longer than the product of a tile, and the first
        tiles do without; and the host waits for each turn of a loop of unknown length.
        """
        runs, found = self._first_at_once((runs, found))
        if self.length == self.room:
            return found
        groups = runs.sizes.shape[0]
        at_once = -(-groups // _PARTS)
        tiles = quotient_up(runs.sizes, self.length)
        last = jnp.cumsum(tiles)

        def of_batch(number: jax.Array, found: Found) -> Found:
            numbers = number * at_once + jnp.arange(at_once, dtype=jnp.int32)
            group = (last[:, None] <= numbers[None]).sum(0)
            group = jnp.minimum(group, groups - 1)
            start, size, last_tile, own_tiles = (look_up(a, group) for a in (*runs, last, tiles))
            starts = start + (numbers - last_tile + own_tiles) * self.length
            return self._at_once(starts, start + size, found, group)

        return jax.lax.fori_loop(0, quotient_up(last[-1], at_once), of_batch, found)

    def _at_once(
        self,
        starts: jax.Array,
        ends: jax.Array,
        found: Found,
        groups: jax.Array | None = None,
    ) -> Found:
        """Tiles in batched products.

        Args:
          starts: of their rows.
          ends: of their groups.
          found: results and sums so far.
          groups: of each; by default there is a tile of each group, the first.
        """
        results, totals = found
        of_groups = self.params.of_groups
        if groups is not None:
            of_groups = jax.tree.map(lambda p: look_up(p, groups), of_groups)

        def of_tile(start: jax.Array, end: jax.Array, of_group: Any) -> Any:
            # Behind a full room there are only groups without rows, which must have none here, too.
            begin = jnp.minimum(start, self.room - 1)
            tile = _Tile(begin, jnp.where(start < end, end, begin), self.length, self.room)
            values, parts = self._applied(tile, self.params._replace(of_groups=of_group))
            # What is made of rows that are not the group's may be no number.
            own = lambda p: jnp.where(start < end, p, 0)  # noqa: E731
            return tile.rows, tile.mine, values, jax.tree.map(own, parts)

        places, mine, values, parts = jax.vmap(of_tile)(starts, ends, of_groups)
        nowhere = self.room + jnp.arange(mine.size, dtype=jnp.int32).reshape(mine.shape)
        places = jnp.where(mine, places, nowhere)

        def written(array: jax.Array, values: jax.Array) -> jax.Array:
            return array.at[places].set(values, mode="drop", unique_indices=True)

        results = jax.tree.map(written, results, values)
        added = lambda t, p: t + p.sum(0, dtype=t.dtype)  # noqa: E731
        of_all = jax.tree.map(added, totals.shared, parts.shared)
        if groups is None:
            each = jax.tree.map(lambda t, p: p.astype(t.dtype), totals.of_groups, parts.of_groups)
            return results, Params(each, of_all)

        def added_to(number: jax.Array, totals: Arrays) -> Arrays:
            add = lambda t, p: t.at[groups[number]].add(p[number].astype(t.dtype))  # noqa: E731
            return jax.tree.map(add, totals, parts.of_groups)

        each = jax.lax.fori_loop(0, groups.shape[0], added_to, totals.of_groups)
        return results, Params(each, of_all)

    def _applied(self, tile: _Tile, params: Params) -> Found:
        own = jax.tree.map(tile.own, self.rows)
        or_zero = jax.tree.map(tile.own_or_zero, self.masked)
        return self.function(own, or_zero, params)


def _bytes_of(arrays: Arrays) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
