"""What vmap must not hide: each element of a batch is checked by itself."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from refusals import refused
from spmd import spmd

import fastjax
from fastjax.errors import ArgumentError


def exchange(*args):
    return fastjax.fast_ragged_all_to_all(*args, axis_name="x")


META = reference.packed(np.full((8, 8), 3))
OPERAND, OUTPUT = reference.data(np.random.default_rng(0), META, spare=0)


@cache
def batched(reverse):
    """Three elements, side by side: without a check the rows of one would be another's."""

    def one(operand, output, *arrays):
        forward = lambda a: exchange(a, jnp.zeros_like(output), *arrays)  # noqa: E731
        if reverse:
            return jax.linear_transpose(forward, operand)(output)[0]
        return exchange(operand, output, *arrays)

    return spmd(jax.vmap(one))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32])
@pytest.mark.parametrize("field", ["input_offsets", "output_offsets"])
@pytest.mark.parametrize("offset", [-1, 22, 120])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_slice_that_leaves_its_element_of_a_batch_is_refused(dtype, field, offset, reverse):
    data = [np.stack([x, -x, x + 1], axis=1) for x in (OPERAND, OUTPUT)]
    arrays = {name: np.stack([a] * 3, axis=1) for name, a in vars(META).items()}

    def launch():
        typed = [a.astype(dtype) for a in arrays.values()]
        jax.block_until_ready(batched(reverse)(*data, *typed))

    launch()
    arrays[field][4, 1, 6] = offset
    refused(jax.errors.JaxRuntimeError, launch, f"device 4, {field}[19] = -1; an offset")


def test_offsets_beyond_int32_in_a_batch_are_refused():
    with jax.enable_x64(True):
        arrays = [np.stack([a] * 2, axis=1) for a in META.arrays(np.int64)]
        arrays[0][1, 0, 3] += 2**32
        run = spmd(jax.vmap(exchange, in_axes=(None, None, 0, 0, 0, 0)))
        launch = lambda: jax.block_until_ready(run(OPERAND, OUTPUT, *arrays))  # noqa: E731
        refused(jax.errors.JaxRuntimeError, launch, "device 1, input_offsets[6] = -1")


def test_a_batch_of_more_rows_than_int32_counts_is_refused():
    """Whether or not there is something in the rows."""

    def elements(count, width=1):
        rows = jax.ShapeDtypeStruct((8, count, 2**20, width), jnp.float32)
        sizes = jax.ShapeDtypeStruct((8, count, 8), jnp.int32)
        return lambda: jax.eval_shape(spmd(jax.vmap(exchange)).mapped, rows, rows, *[sizes] * 4)

    for width in (0, 1):
        elements(2**11 - 1, width)()
    refused(ArgumentError, elements(2**11), "vmap of 2048 elements makes one exchange of 2048 x 1")
