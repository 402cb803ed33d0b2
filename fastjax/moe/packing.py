"""Packs rows and what travels with them into one array, so that one exchange carries both."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fastjax.moe import types


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
        if self.beside:
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
        return types.real(dtype)
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


__all__ = ["Layout", "carrier"]
