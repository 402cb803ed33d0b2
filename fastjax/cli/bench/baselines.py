"""What a JAX user can do without fastjax, and a plain copy to hold everything against."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.cli.shared.machine import usable_cores


def dense(axis_name: str, capacity: int) -> Callable[..., jax.Array]:
    """Exchange by a dense `jax.lax.all_to_all` with room for `capacity` rows from each to each.

    Packing takes one slice for each peer, the fastest of several ways tried on CPU; unpacking
    gathers every output row from where its sender put it. To be called in `jax.shard_map`.
    """

    def exchange(operand: jax.Array, output: jax.Array, *metadata: jax.Array) -> jax.Array:
        input_offsets, _, _, recv_sizes = metadata
        peers, rows = input_offsets.shape[0], operand.shape[0]
        # A slice that would run over the end starts earlier; its receiver has to know by how much.
        first = jnp.minimum(input_offsets, rows - capacity)
        packed = jnp.stack(
            [jax.lax.dynamic_slice_in_dim(operand, first[j], capacity) for j in range(peers)]
        )
        arrived = jax.lax.all_to_all(packed, axis_name, 0, 0)
        skipped = jax.lax.all_to_all(input_offsets - first, axis_name, 0, 0, tiled=True)
        source, place, taken = _unpack(recv_sizes, output.shape[0])
        index = source * capacity + skipped[source] + place
        return _take(arrived.reshape(-1, *operand.shape[1:]), index, taken, output)

    return exchange


def all_gather(axis_name: str) -> Callable[..., jax.Array]:
    """Exchange by giving every device all rows, of which it takes its own."""

    def exchange(operand: jax.Array, output: jax.Array, *metadata: jax.Array) -> jax.Array:
        input_offsets, _, _, recv_sizes = metadata
        everything = jax.lax.all_gather(operand, axis_name, tiled=True)
        first = jax.lax.all_to_all(input_offsets, axis_name, 0, 0, tiled=True)
        source, place, taken = _unpack(recv_sizes, output.shape[0])
        index = source * operand.shape[0] + first[source] + place
        return _take(everything, index, taken, output)

    return exchange


def _unpack(recv_sizes: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each output row: its sender, its place among that one's rows, and whether it has one."""
    ends = jnp.cumsum(recv_sizes)
    row = jnp.arange(rows, dtype=recv_sizes.dtype)
    source = jnp.minimum(jnp.searchsorted(ends, row, side="right"), recv_sizes.shape[0] - 1)
    return source, row - (ends - recv_sizes)[source], row < ends[-1]


def _take(values: jax.Array, index: jax.Array, taken: jax.Array, output: jax.Array) -> jax.Array:
    index = jnp.clip(index, 0, values.shape[0] - 1)
    rows = values.at[index].get(mode="promise_in_bounds")
    return jnp.where(taken.reshape(-1, *(1,) * (output.ndim - 1)), rows, output)


class Copy:
    """A copy of `size` bytes into a warm buffer, an equal share on each of the machine's cores."""

    def __init__(self, size: int):
        threads = usable_cores()
        self._pool = ThreadPoolExecutor(threads)
        self._shares = [
            (np.ones(share, np.uint8), np.zeros(share, np.uint8))
            for share in np.diff(np.linspace(0, size, threads + 1).astype(np.int64))
        ]

    def __call__(self) -> None:
        """Copies once."""
        for future in [self._pool.submit(np.copyto, dst, src) for src, dst in self._shares]:
            future.result()

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()
