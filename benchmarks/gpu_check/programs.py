"""What the measurements run in JAX: exchanges one after the other, and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import reference
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from gpu_check.measurements import Timed

Exchange = Callable[..., jax.Array]


def device() -> Any:
    return jax.devices()[0]


def on_one_rank(exchange: Exchange) -> Exchange:
    """An exchange over axis "x", as that of one device with itself."""
    mesh = jax.sharding.Mesh(np.array([device()]), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


class Loop:
    """One program of `times` exchanges, each of which writes into the result of the one before.

    A step of a model has its exchanges in one program too. What it costs to start a program is
    spread over them.
    """

    def __init__(
        self, exchange: Exchange, times: int, operand: Any, output: Any, meta: Any
    ) -> None:
        def body(operand: Any, output: Any, *meta: Any) -> Any:
            return jax.lax.fori_loop(0, times, lambda _, out: exchange(operand, out, *meta), output)

        self.times = times
        self.operand = operand
        self.meta = [jax.device_put(each, device()) for each in meta]
        self.output = jnp.array(output)  # its own: each run takes the last one's
        self.program = jax.jit(body, donate_argnums=1)

    def run(self) -> None:
        self.output = self.program(self.operand, self.output, *self.meta)
        self.output.block_until_ready()

    def timed(self) -> Timed:
        return Timed(self.run, self.times)


def copies(rows: Any, times: int) -> Timed:
    """Copies of an array on its device, queued one behind the other."""
    copy = jax.jit(jnp.copy)

    def run() -> None:
        last = rows
        for _ in range(times):
            last = copy(rows)
        last.block_until_ready()

    return Timed(run, times)


def random_rows(seed: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Rows whose bits are random, but for NaNs, made where they are used."""
    key = jax.random.key(seed)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def zipf_sizes(
    rng: np.random.Generator, senders: int, entries: int, rows: int, exponent: float = 0.8
) -> np.ndarray:
    """Rows of each slice, shape (senders, entries): `rows` a sender, by popularity of the entry.

    The popularity falls as 1 / rank^exponent, alike for all senders.
    """
    weights = rng.permutation((1.0 + np.arange(entries)) ** -exponent)
    ends = np.round(np.cumsum(weights) / weights.sum() * rows).astype(np.int64)
    return np.tile(np.diff(ends, prepend=0), (senders, 1))


def shuffled(rng: np.random.Generator, sizes: np.ndarray) -> reference.Metadata:
    """Slices of one rank, side by side; they land in another order."""
    meta = reference.packed(sizes)
    order = rng.permutation(sizes.shape[1])
    meta.output_offsets[0, order] = np.cumsum(sizes[0, order]) - sizes[0, order]
    return meta


def room(meta: reference.Metadata) -> tuple[int, int]:
    """Rows of operands and outputs, one at least."""
    there, here = reference.rows_needed(meta)
    return max(there, 1), max(here, 1)
