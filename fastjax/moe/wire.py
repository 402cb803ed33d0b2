"""The type that rows have on the wire, and how they are packed.

Rows and arrays beside them are packed into one array, so that one exchange carries both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fastjax.errors import ArgumentError
from fastjax.traced.narrow_types import whole_bytes

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


def row_bytes(
    width: int, wire: np.dtype, dtype: np.dtype, beside: Sequence[tuple[int, np.dtype]] = ()
) -> int:
    """Bytes that a row has on the wire.

    Args:
      width: elements of it.
      wire: their type there.
      dtype: their type elsewhere.
      beside: number and type of the columns of each array that travels with the rows.
    """
    others = _SCALE_BYTES * has_scales(wire, dtype)
    others += sum(columns * of_columns.itemsize for columns, of_columns in beside)
    word = _word(wire).itemsize
    return word * (_row_words(width, wire) + -(-others // word))


def has_scales(wire: np.dtype, dtype: np.dtype) -> bool:
    """Whether rows have to be made smaller or larger to fit."""
    is_float = jnp.issubdtype(wire, jnp.floating)
    return is_float and wire.itemsize == 1 and wire != dtype


def of_gradients(wire: np.dtype, dtype: np.dtype) -> np.dtype:
    """The type of gradients of rows on the wire: types of one byte are too coarse for them.

    These are sent as if rows had not been rounded.
    """
    return dtype if has_scales(wire, dtype) else wire


def packed(
    rows: jax.Array, wire: np.dtype, beside: Sequence[jax.Array] = ()
) -> tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, ...]]]:
    """Rows in type `wire`, over a scale that their largest value fits where that is of one byte.

    Behind them is what is beside them. All are unsigned integers as wide as an element of the rows,
    so that no copy can take one for a floating-point number and change its bits.

    Args:
      rows: shape (count, width).
      wire: their type on the wire.
      beside: arrays that travel with the rows, shape (count, columns) each.

    Returns:
      Shape (count, words), and a function of such that returns rows of the type that these had, and
      what was beside them; zeros where nothing has arrived.
    """
    width, dtype, scaled = rows.shape[1], rows.dtype, has_scales(wire, rows.dtype)
    if scaled:
        wide = rows.astype(jnp.float32)
        largest = jnp.abs(wide).max(axis=1, keepdims=True, initial=0)
        scale = largest / float(jnp.finfo(wire).max)
        # Processors may take anything smaller for zero.
        scale = jnp.maximum(scale, float(jnp.finfo(jnp.float32).tiny))
        scale = jnp.where(jnp.isfinite(largest), scale, 1)
        rows, beside = wide / scale, [scale, *beside]
    columns = [(array.shape[1], array.dtype) for array in beside]

    def unpack(words: jax.Array) -> tuple[jax.Array, ...]:
        rows, others = _unpacked(words, width, wire, columns)
        if not scaled:
            return rows.astype(dtype), *others
        scale, *others = others
        return (rows.astype(jnp.float32) * scale).astype(dtype), *others

    return _packed(rows.astype(wire), beside), unpack


def _word(dtype: np.dtype) -> np.dtype:
    """The type of packed rows of a type."""
    return np.dtype(f"u{min(carrier(dtype).itemsize, 4)}")


def _row_words(width: int, dtype: np.dtype) -> int:
    parts = 2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1
    return width * parts * carrier(dtype).itemsize // _word(dtype).itemsize


def _packed(rows: jax.Array, beside: Sequence[jax.Array]) -> jax.Array:
    count, word, carried = rows.shape[0], _word(rows.dtype), carrier(rows.dtype)
    if jnp.issubdtype(rows.dtype, jnp.complexfloating):
        rows = jnp.concatenate([rows.real, rows.imag], 1)
    words = [_words_of(rows.astype(carried), word)]
    # XLA's CPU compiler aborts where arrays without columns are joined (jaxlib 0.10.2).
    beside = [array for array in beside if array.shape[1]]
    if beside:
        octets = [_words_of(array, np.dtype(np.uint8)) for array in beside]
        columns = sum(array.shape[1] for array in octets)
        octets.append(jnp.zeros((count, -columns % word.itemsize), jnp.uint8))
        words.append(_values_of(jnp.concatenate(octets, 1), word))
    return jnp.concatenate(words, 1) if len(words) > 1 else words[0]


def _unpacked(
    words: jax.Array, width: int, dtype: np.dtype, beside: Sequence[tuple[int, np.dtype]]
) -> tuple[jax.Array, list[jax.Array]]:
    row_words = _row_words(width, dtype)
    rows = _values_of(words[:, :row_words], carrier(dtype))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        rows = jax.lax.complex(rows[:, :width], rows[:, width:])
    octets = _words_of(words[:, row_words:], np.dtype(np.uint8))
    others, first = [], 0
    for columns, of_columns in beside:
        last = first + columns * of_columns.itemsize
        others.append(_values_of(octets[:, first:last], of_columns))
        first = last
    return rows.astype(dtype), others


def carrier(dtype: np.dtype) -> np.dtype:
    """A type of whole bytes with all of this one's values."""
    if dtype == np.bool_:
        return np.dtype(np.uint8)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(f"f{dtype.itemsize // 2}")  # of real and imaginary parts
    return whole_bytes(dtype)


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
