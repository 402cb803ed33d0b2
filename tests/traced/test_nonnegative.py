"""Look-ups and quotients of what is not negative, against numpy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastjax.traced.nonnegative import quotient, quotient_up, remainder

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
