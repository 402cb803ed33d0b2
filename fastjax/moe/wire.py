"""The type that rows have on the wire, and how they are packed.

Rows and arrays beside them are packed into one array, so that one exchange carries both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.errors import ArgumentError

_SCALE_BYTES = 4


def check(payload_dtype: DTypeLike | None, dtype: np.dtype) -> np.dtype:
    """The type of rows on the wire: `dtype`, unless another is asked for."""
    if payload_dtype is None:
        return dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError(f"payload_dtype is for floating-point rows; these are {dtype}.")
    try:
        payload = np.dtype(payload_dtype)
    except TypeError:
        raise ArgumentError(f"payload_dtype must be a type, got {payload_dtype!r}.") from None
    signed = jnp.issubdtype(payload, jnp.floating) and float(jnp.finfo(payload).min) < 0
    if not signed or jnp.finfo(payload).bits < 8:
        raise ArgumentError(
            "payload_dtype must be a floating-point type with a sign, of a byte or more, got "
            f"{payload}."
        )
    if has_scales(payload, dtype) and dtype.itemsize > 4:
        raise ArgumentError(
            f"payload_dtype {payload} has scales in float32, whose range is not that of {dtype}; "
            "make rows float32, or take a wider payload_dtype."
        )
    return payload


def row_bytes(width: int, wire: np.dtype, dtype: np.dtype) -> int:
    """Bytes that a row of `width` elements has on the wire."""
    return width * wire.itemsize + (_SCALE_BYTES if has_scales(wire, dtype) else 0)


def has_scales(wire: np.dtype, dtype: np.dtype) -> bool:
    """Whether rows have to be made smaller or larger to fit."""
    is_float = jnp.issubdtype(wire, jnp.floating)
    return is_float and wire.itemsize == 1 and wire != dtype


def of_gradients(wire: np.dtype, dtype: np.dtype) -> np.dtype:
    """The type of gradients of rows on the wire: types of one byte are too coarse for them.

    These are sent as if rows had not been rounded.
    """
    return dtype if has_scales(wire, dtype) else wire


def layout(
    width: int, wire: np.dtype, dtype: np.dtype, beside: tuple[tuple[int, np.dtype], ...] = ()
) -> Layout:
    """How rows of `dtype` are packed with `wire` as their type, and arrays beside them."""
    scale = ((1, np.dtype(np.float32)),) if has_scales(wire, dtype) else ()
    return Layout(width, wire, (*scale, *beside))


def packed(
    rows: jax.Array, wire: np.dtype, beside: Sequence[jax.Array] = ()
) -> tuple[jax.Array, Layout]:
    """Rows in type `wire`; where that is of one byte, over a scale that its largest value fits.

    Returns:
      Unsigned integers, shape (count, words), and how they are to be unpacked.
    """
    columns = tuple((array.shape[1], array.dtype) for array in beside)
    how = layout(rows.shape[1], wire, rows.dtype, columns)
    if not has_scales(wire, rows.dtype):
        return how.pack(rows.astype(wire), beside), how
    wide = rows.astype(jnp.float32)
    largest = jnp.abs(wide).max(axis=1, keepdims=True, initial=0)
    scale = largest / float(jnp.finfo(wire).max)
    # Processors may take anything smaller for zero.
    scale = jnp.maximum(scale, float(jnp.finfo(jnp.float32).tiny))
    scale = jnp.where(jnp.isfinite(largest), scale, 1)
    return how.pack((wide / scale).astype(wire), [scale, *beside]), how


def unpacked(words: jax.Array, how: Layout, dtype: np.dtype) -> tuple[jax.Array, ...]:
    """Rows of `dtype` that were packed, and what was beside them; zero where there was none."""
    rows, beside = how.unpack(words)
    if not has_scales(how.dtype, dtype):
        return rows.astype(dtype), *beside
    scale, *beside = beside
    return (rows.astype(jnp.float32) * scale).astype(dtype), *beside


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of packed rows.

    All are unsigned integers as wide as an element of the rows, so that no copy can take one for
    a floating-point number and change its bits.

    Attributes:
      width: elements of a row.
      dtype: their type.
      beside: number and type of the columns of each array that travels with the rows.
    """

    width: int
    dtype: np.dtype
    beside: tuple[tuple[int, np.dtype], ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a packed row."""
        return self._words * self._word.itemsize

    @property
    def _carrier(self) -> np.dtype:
        return carrier(self.dtype)

    @property
    def _word(self) -> np.dtype:
        return np.dtype(f"u{min(self._carrier.itemsize, 4)}")

    @property
    def _row_words(self) -> int:
        parts = 2 if jnp.issubdtype(self.dtype, jnp.complexfloating) else 1
        return self.width * parts * self._carrier.itemsize // self._word.itemsize

    @property
    def _words(self) -> int:
        beside = sum(columns * dtype.itemsize for columns, dtype in self.beside)
        return self._row_words + -(-beside // self._word.itemsize)

    def pack(self, rows: jax.Array, beside: Sequence[jax.Array] = ()) -> jax.Array:
        """Rows of `dtype`, shape (count, width), and what is beside them, (count, columns) each."""
        count = rows.shape[0]
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            rows = jnp.concatenate([rows.real, rows.imag], 1)
        words = [_words_of(rows.astype(self._carrier), self._word)]
        # XLA's CPU compiler aborts where arrays without columns are joined (jaxlib 0.10.2).
        beside = [array for array in beside if array.shape[1]]
        if beside:
            octets = [_words_of(array, np.dtype(np.uint8)) for array in beside]
            columns = sum(array.shape[1] for array in octets)
            octets.append(jnp.zeros((count, -columns % self._word.itemsize), jnp.uint8))
            words.append(_values_of(jnp.concatenate(octets, 1), self._word))
        return jnp.concatenate(words, 1) if len(words) > 1 else words[0]

    def unpack(self, packed: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """What `pack` was given; zeros where nothing has arrived."""
        rows = _values_of(packed[:, : self._row_words], self._carrier)
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            rows = jax.lax.complex(rows[:, : self.width], rows[:, self.width :])
        octets = _words_of(packed[:, self._row_words :], np.dtype(np.uint8))
        beside, first = [], 0
        for columns, dtype in self.beside:
            last = first + columns * dtype.itemsize
            beside.append(_values_of(octets[:, first:last], dtype))
            first = last
        return rows.astype(self.dtype), beside


def carrier(dtype: np.dtype) -> np.dtype:
    """A type of whole bytes with all of this one's values."""
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(f"f{dtype.itemsize // 2}")  # of real and imaginary parts
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.int8)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8:
        return np.dtype(np.float32)
    return dtype


def _words_of(values: jax.Array, word: np.dtype) -> jax.Array:
    """The bits of values of one type, or of larger ones, as words: shape (count, more columns)."""
    if values.dtype == word:
        return values
    words = jax.lax.bitcast_convert_type(values, word)
    return words.reshape(
        values.shape[0], values.shape[1] * (values.dtype.itemsize // word.itemsize)
    )


def _values_of(words: jax.Array, dtype: np.dtype) -> jax.Array:
    """The inverse."""
    if words.dtype == dtype:
        return words
    parts = dtype.itemsize // words.dtype.itemsize
    if parts > 1:
        words = words.reshape(words.shape[0], words.shape[1] // parts, parts)
    return jax.lax.bitcast_convert_type(words, dtype)
