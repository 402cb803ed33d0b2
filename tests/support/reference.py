"""What an exchange must do, in numpy and in one-device jax.numpy: shares no code with fastjax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass
class Metadata:
    """Offsets and sizes of all devices, stacked: shape (devices, k * group size) each."""

    input_offsets: np.ndarray
    send_sizes: np.ndarray
    output_offsets: np.ndarray
    recv_sizes: np.ndarray

    def arrays(self, dtype: object = np.int32) -> tuple[np.ndarray, ...]:
        fields = (self.input_offsets, self.send_sizes, self.output_offsets, self.recv_sizes)
        return tuple(f.astype(dtype) for f in fields)


def received(send_sizes: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """recv_sizes for send_sizes, group by group."""
    recv = np.zeros_like(send_sizes)
    for group in groups:
        k = send_sizes.shape[1] // len(group)
        for a, i in enumerate(group):
            for b, j in enumerate(group):
                recv[j, a * k : (a + 1) * k] = send_sizes[i, b * k : (b + 1) * k]
    return recv


def packed(
    send_sizes: np.ndarray, groups: Sequence[Sequence[int]] | None = None, gap: int = 0
) -> Metadata:
    """Slices one behind the other in operands and, by sender, in outputs; `gap` rows between."""
    groups = groups or [range(len(send_sizes))]
    input_offsets = np.zeros_like(send_sizes)
    output_offsets = np.zeros_like(send_sizes)
    for i, row in enumerate(send_sizes):
        input_offsets[i] = np.cumsum(row + gap) - row - gap
    for group in groups:
        k = send_sizes.shape[1] // len(group)
        for b, _ in enumerate(group):
            at = 0
            for i in group:
                for u in range(b * k, (b + 1) * k):
                    output_offsets[i, u] = at
                    at += send_sizes[i, u] + gap
    return Metadata(input_offsets, send_sizes, output_offsets, received(send_sizes, groups))


def moves(
    meta: Metadata, groups: Sequence[Sequence[int]] | None = None
) -> list[tuple[int, int, int, int, int]]:
    """(sender, first row, receiver, first row, rows) of every slice."""
    groups = groups or [range(len(meta.send_sizes))]
    found = []
    for group in groups:
        k = meta.send_sizes.shape[1] // len(group)
        for i in group:
            for u, rows in enumerate(meta.send_sizes[i]):
                if rows > 0:
                    j = group[u // k]
                    start = int(meta.input_offsets[i, u])
                    found.append((i, start, j, int(meta.output_offsets[i, u]), int(rows)))
    return found


def in_range(
    meta: Metadata,
    operand_rows: int,
    output_rows: int,
    groups: Sequence[Sequence[int]] | None = None,
) -> Metadata:
    """What is left of slices without the rows that lie in no operand, or land in no output."""
    left = Metadata(*(np.zeros_like(array) for array in meta.arrays(np.int64)))
    for at, size in np.ndenumerate(meta.send_sizes):
        start, landing = int(meta.input_offsets[at]), int(meta.output_offsets[at])
        landed = [
            row
            for row in range(output_rows)
            if 0 <= row - landing < size and 0 <= start + row - landing < operand_rows
        ]
        if landed:
            left.input_offsets[at] = start + landed[0] - landing
            left.send_sizes[at], left.output_offsets[at] = len(landed), landed[0]
    left.recv_sizes = received(left.send_sizes, groups or [range(len(left.send_sizes))])
    return left


def exchange(
    operand: np.ndarray,
    output: np.ndarray,
    meta: Metadata,
    groups: Sequence[Sequence[int]] | None = None,
) -> np.ndarray:
    """The result on every device, stacked."""
    result = np.array(output)
    for i, start, j, landing, rows in moves(meta, groups):
        result[j, landing : landing + rows] = operand[i, start : start + rows]
    return result


def exchange_in_jax(
    operand: jax.Array,
    output: jax.Array,
    meta: Metadata,
    groups: Sequence[Sequence[int]] | None = None,
) -> jax.Array:
    """The same, differentiable, on stacked arrays of one device: one gather."""
    operand, output = jnp.asarray(operand), jnp.asarray(output)
    source = np.full(output.shape[:2], -1)
    for i, start, j, landing, rows in moves(meta, groups):
        source[j, landing : landing + rows] = i * operand.shape[1] + start + np.arange(rows)
    taken = operand.reshape(-1, *operand.shape[2:])[source]
    landed = (source >= 0).reshape(*source.shape, *(1,) * (output.ndim - 2))
    return jnp.where(landed, taken, output)


def random_sizes(
    rng: np.random.Generator, devices: int, entries: int, most: int = 5, zeros: float = 0.3
) -> np.ndarray:
    """Sizes from 0 to `most`, a share of them zero."""
    sizes = rng.integers(0, most + 1, (devices, entries))
    return np.where(rng.random((devices, entries)) < zeros, 0, sizes)


def rows_needed(meta: Metadata) -> tuple[int, int]:
    """Rows that operands and outputs must have."""
    ends_in = (meta.input_offsets + meta.send_sizes)[meta.send_sizes > 0]
    ends_out = (meta.output_offsets + meta.send_sizes)[meta.send_sizes > 0]
    return int(ends_in.max(initial=0)), int(ends_out.max(initial=0))


def data(
    rng: np.random.Generator, meta: Metadata, trailing: tuple[int, ...] = (3,), spare: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """Random float32 operands and outputs large enough for `meta`, stacked."""
    devices = len(meta.send_sizes)
    n, m = rows_needed(meta)
    operand = rng.normal(size=(devices, n + spare, *trailing)).astype(np.float32)
    output = rng.normal(size=(devices, m + spare, *trailing)).astype(np.float32)
    return operand, output


def returned(
    rows: np.ndarray,
    output: np.ndarray,
    meta: Metadata,
    indices: np.ndarray | None = None,
    factors: np.ndarray | None = None,
) -> np.ndarray:
    """The way back: sums of what is returned, times its factors, by row or by the row's index.

    In the order of the operand's rows. Rows of the output that nothing returns to stay.
    """
    sums, any_returned = np.zeros_like(output), np.zeros(output.shape[:2], bool)
    for sender, start, receiver, landing, count in sorted(moves(meta)):
        back = rows[receiver, landing : landing + count]
        if factors is not None:
            back = back * factors[receiver, landing : landing + count, None]
        at = np.arange(start, start + count)
        at = at if indices is None else indices[sender, at]
        np.add.at(sums[sender], at, back)
        any_returned[sender, at] = True
    return np.where(any_returned[..., None], sums, output)
