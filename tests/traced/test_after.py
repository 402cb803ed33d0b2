"""A value that waits for another: it is the value, and XLA keeps the dependence."""

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastjax
from fastjax import handlers
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
    assert "fastjax_after_v2" in compiled.as_text()


def thread_of(value):
    """The thread that computes with the value: it can begin once the value is there."""
    shape = jax.ShapeDtypeStruct((), np.uint32)
    number = lambda _: np.uint32(threading.get_ident() % 2**32)  # noqa: E731
    return jax.pure_callback(number, shape, value)


@pytest.mark.every_jax
@pytest.mark.sanitize
def test_detached_work_has_another_thread(rng):
    @jax.jit
    def program(value):
        first = thread_of(value)
        detached = after(value, first, detached=True)
        return first, thread_of(detached), detached

    value = rng.normal(size=(2, 3)).astype(np.float32)
    # The other thread may end the call before XLA has looked, which then goes on by itself: on a
    # busy host, often in a hundred runs.
    runs = (program(value) for _ in range(10_000))
    assert any(first != second for first, second, _ in runs)
    *_, detached = program(value)
    np.testing.assert_array_equal(detached, value)
    ct = jax.grad(lambda v: after(v, v, detached=True).sum())(value)
    np.testing.assert_array_equal(ct, np.ones_like(value))


def lowered(platform, fallback, *, detached=False):
    function = functools.partial(after, detached=detached)
    with fastjax.options(fallback=fallback):
        traced = jax.jit(function).trace(jnp.ones(3), jnp.ones(2))
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("platform", "fallback"),
    [("cuda", "jax"), ("rocm", "error"), ("tpu", "jax"), ("tpu", "never")],
)
def test_platforms_without_a_backend_get_a_barrier(monkeypatch, platform, fallback):
    monkeypatch.setattr(handlers, "platforms_built", list)
    text = lowered(platform, fallback)
    assert "optimization_barrier" in text
    assert "fastjax" not in text


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpus_get_a_call(platform, detached):
    text = lowered(platform, "never", detached=detached)
    assert text.count("custom_call @fastjax_after_v2") == 1
    assert "optimization_barrier" not in text
