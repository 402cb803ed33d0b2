"""Rows with what belongs to them: no bit is lost in an exchange."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastjax.moe import wire

DTYPES = ("bool", "int4", "int8", "uint16", "bfloat16", "float8_e4m3fn", "float32", "complex64")


@settings(max_examples=20)  # JAX compiles for each shape
@given(
    dtype=st.sampled_from(DTYPES),
    width=st.integers(0, 5),
    beside=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(("uint8", "uint16", "int32", "float32"))),
        max_size=3,
    ),
    rows=st.sampled_from([0, 3]),
    seed=st.integers(0, 2**32 - 1),
)
@example(dtype="int8", width=1, beside=[(0, "uint8")], rows=3, seed=0)  # XLA aborted
@example(dtype="int4", width=5, beside=[(0, "uint8")], rows=3, seed=0)
def test_comes_back_as_it_was(dtype, width, beside, rows, seed):
    rng = np.random.default_rng(seed)
    dtype, columns = jnp.dtype(dtype), [(n, np.dtype(name)) for n, name in beside]
    draw = lambda n, name: jnp.asarray(rng.integers(0, 2, (rows, n))).astype(name)  # noqa: E731
    data, others = draw(width, dtype), [draw(*each) for each in beside]

    def out_and_back(data, others):
        packed, unpack = wire.packed(data, dtype, others)
        each = wire.row_bytes(width, dtype, dtype, columns)
        assert packed.shape[1] * packed.dtype.itemsize == each
        return unpack(packed)

    got = jax.jit(out_and_back)(data, others)
    for one, other in zip(got, [data, *others], strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_not_a_number_keeps_its_bits(dtype):
    bits = np.array([[0x7F81, 0xFFC1, 0x7F80]], np.uint16)
    if dtype == jnp.float32:
        bits = bits.astype(np.uint32) << 16 | 1
    rows = jax.lax.bitcast_convert_type(jnp.asarray(bits), dtype)
    packed = jax.jit(lambda rows: wire.packed(rows, rows.dtype)[0])(rows)
    np.testing.assert_array_equal(packed, bits)


def test_as_few_bytes_as_will_do():
    octet, number, dtype = map(np.dtype, (np.uint8, np.float32, jnp.bfloat16))
    assert wire.row_bytes(2048, dtype, dtype, [(8, octet), (8, number)]) == 4096 + 8 + 32
    assert wire.row_bytes(3, dtype, dtype, [(1, octet)]) == 8
