"""What vmap must not hide: each element of a batch is checked by itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from spmd import spmd

import fastjax
from fastjax.errors import ArgumentError


def exchange(*args):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input_offsets", -1),
        ("input_offsets", 120),
        ("output_offsets", -1),
        ("output_offsets", 120),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_slice_that_leaves_its_element_of_a_batch_is_refused(rng, dtype, field, value, reverse):
    """Elements of a batch lie side by side: without a check its rows would be another's."""
    if value < 0 and np.dtype(dtype).kind == "u":
        value = 2**32 - 1
    meta = reference.packed(reference.random_sizes(rng, 8, 8, 2, zeros=0) + 1)
    assert max(reference.rows_needed(meta)) < 120
    operand, output = reference.data(rng, meta, spare=0)
    data = [np.stack([x, -x, x + 1], axis=1) for x in (operand, output)]
    arrays = {
        name: np.stack([a] * 3, axis=1)
        for name, a in zip(
            ("input_offsets", "send_sizes", "output_offsets", "recv_sizes"),
            meta.arrays(dtype),
            strict=True,
        )
    }

    def one(operand, output, *arrays):
        forward = lambda a: exchange(a, jnp.zeros_like(output), *arrays)  # noqa: E731
        if reverse:
            return jax.linear_transpose(forward, operand)(output)[0]
        return exchange(operand, output, *arrays)

    run = spmd(jax.vmap(one))
    jax.block_until_ready(run(*data, *arrays.values()))
    arrays[field][4, 1, 6] = value
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=rf"device 4, {field}\[19\] = -1; an offset"
    ):
        jax.block_until_ready(run(*data, *arrays.values()))


def test_offsets_beyond_int32_in_a_batch_are_refused(rng):
    meta = reference.packed(reference.random_sizes(rng, 8, 8, zeros=0) + 1)
    operand, output = reference.data(rng, meta)
    with jax.enable_x64(True):
        arrays = [np.stack([a] * 2, axis=1) for a in meta.arrays(np.int64)]
        arrays[0][1, 0, 3] += 2**32
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"device 1, input_offsets\[6\] = -1"):
            jax.block_until_ready(
                spmd(jax.vmap(exchange, in_axes=(None, None, 0, 0, 0, 0)))(operand, output, *arrays)
            )


def test_a_batch_of_more_rows_than_int32_counts_is_refused():
    def local(sizes):
        rows = jnp.zeros((2**20, 0))
        f = lambda s: exchange(rows, rows, s, s, s, s)  # noqa: E731
        return jax.vmap(f)(jnp.broadcast_to(sizes, (2**11, 8)))

    with pytest.raises(ArgumentError, match="vmap of 2048 elements makes one exchange of 2048 x 1"):
        spmd(local)(np.zeros((8, 8), np.int32))
