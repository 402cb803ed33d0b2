"""A value that waits for another: it is the value, and XLA keeps the dependence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fastjax.traced.after import after


@pytest.mark.sanitize
def test_it_is_the_value(rng):
    value, earlier = rng.normal(size=(2, 3)).astype(np.float32), np.arange(4)
    np.testing.assert_array_equal(jax.jit(after)(value, earlier), value)
    got, ct = jax.value_and_grad(lambda v: (after(v, jnp.arange(4)) ** 2).sum())(value)
    np.testing.assert_allclose(got, (value**2).sum(), rtol=1e-6)
    np.testing.assert_allclose(ct, 2 * value)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (1, 0)])
def test_vmap(rng, dims):
    value, earlier = rng.normal(size=(3, 3)).astype(np.float32), np.zeros((3, 2))
    got = jax.vmap(after, in_axes=dims)(value, earlier)
    want = {0: value, 1: value.T, None: np.broadcast_to(value, (3, 3, 3))}[dims[0]]
    np.testing.assert_array_equal(got, want)


def test_xla_keeps_the_dependence():
    compiled = jax.jit(lambda v, e: after(v + 1, e * 2)).lower(jnp.ones(3), jnp.ones(2)).compile()
    assert "fastjax_after_v1" in compiled.as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_get_a_barrier(platform):
    traced = jax.jit(after).trace(jnp.ones(3), jnp.ones(2))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "optimization_barrier" in text
    assert "fastjax" not in text
