"""Look-ups and quotients of what is not negative, against numpy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastjax.traced.nonnegative import look_up, permuted, quotient, quotient_up, remainder

MOST = 2**31 - 1
VALUES = np.array([[0, 1, 6, 7], [8, 13, MOST - 1, MOST]], np.int32)


@pytest.mark.parametrize("divisor", [1, 2, 7, MOST])
def test_quotients(divisor):
    wide = VALUES.astype(np.int64)
    for function, wanted in (
        (quotient, wide // divisor),
        (remainder, wide % divisor),
        (quotient_up, -(-wide // divisor)),
    ):
        got = jax.jit(function, static_argnums=1)(VALUES, divisor)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, wanted)


def test_quotients_of_arrays(rng):
    divisors = rng.integers(1, 20, VALUES.shape).astype(np.int32)
    np.testing.assert_array_equal(quotient(jnp.asarray(VALUES), divisors), VALUES // divisors)
    np.testing.assert_array_equal(remainder(jnp.asarray(VALUES), divisors), VALUES % divisors)


def test_look_ups(rng):
    array = jnp.asarray(rng.normal(size=(5, 4, 3)))
    order = np.array([3, 0, 4, 1, 2])
    wanted = np.asarray(array)
    np.testing.assert_array_equal(look_up(array, order), wanted[order])
    np.testing.assert_array_equal(look_up(array, order, unique=True), wanted[order])
    np.testing.assert_array_equal(look_up(array, slice(None), jnp.int32(2)), wanted[:, 2])
    np.testing.assert_array_equal(look_up(array, jnp.int32(4)), wanted[4])
    np.testing.assert_array_equal(permuted(array, order), wanted[order])
    assert permuted(array, np.arange(5)) is array


def test_look_ups_in_a_batch_and_backward(rng):
    array = jnp.asarray(rng.normal(size=(2, 5, 3)), jnp.float32)
    indices = np.array([[4, 4, 0, 1], [2, 3, 2, 2]], np.int32)
    got, back = jax.vjp(jax.vmap(look_up), array, indices)
    np.testing.assert_array_equal(got, np.take_along_axis(np.asarray(array), indices[..., None], 1))
    ct = rng.normal(size=got.shape).astype(np.float32)
    wanted = np.zeros_like(array)
    for batch in range(2):
        np.add.at(wanted[batch], indices[batch], ct[batch])
    np.testing.assert_allclose(back(ct)[0], wanted, rtol=1e-6)
