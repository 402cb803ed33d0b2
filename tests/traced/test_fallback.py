"""Platforms on which fastjax has no backend: `jax.lax.ragged_all_to_all` takes its place.

What rows and gradients are there, test_exchange_checks.py and test_moe_layer.py look at.
"""

import re
import warnings
from functools import partial

import emulated_jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from exchanges import exchange
from jax.sharding import PartitionSpec as P
from moe_layers import dispatched
from refusals import refusals
from spmd import mesh_of, spmd

import fastjax
from fastjax import handlers, loopback, moe
from fastjax.errors import FallbackWarning, UnsupportedError
from fastjax.traced import fallback

SIZES = jax.ShapeDtypeStruct((64,), jnp.int32)
ROWS = jax.ShapeDtypeStruct((64, 4), jnp.float32)
ARGS = (ROWS, ROWS, *[SIZES] * 4)
GROUPS = ((0, 2, 4, 6), (1, 3, 5, 7))
PLATFORMS = ["tpu", "cuda", "rocm"]


@pytest.fixture(autouse=True)
def _no_gpu_libraries(monkeypatch):
    monkeypatch.setattr(handlers, "platforms_built", list)
    monkeypatch.setattr(fallback, "_warned", set())
    warnings.simplefilter("ignore", FallbackWarning)


def planned(operand, output, *arrays):
    plan = fastjax.plan_ragged_all_to_all(arrays[1], axis_name="x")
    there = exchange(operand, output, *arrays, plan=plan)
    return exchange(there, output, *arrays, plan=plan.transpose())


def gradient(operand, output, *arrays):
    back = jax.vjp(lambda *data: exchange(*data, *arrays), operand, output)[1]
    return back(output)


def batched(operand, output, *arrays):
    stacked = [jnp.stack([a, a]) for a in (operand, output, *arrays)]
    return jax.vmap(exchange)(*stacked)[0]


def layer(x, *_):
    """MoE: there, back and their gradients, deduplicated."""
    ids = jnp.broadcast_to(jnp.arange(3, dtype=jnp.int32), (x.shape[0], 3))

    def value(x):
        rows, _, handle = dispatched(x, ids)
        return moe.combine(rows * 2, handle).sum()

    return jax.grad(value)(x)


def lowered(f, *platforms, args=ARGS):
    return jax.jit(mapped(f)).trace(*args).lower(lowering_platforms=platforms).as_text()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("f", [planned, gradient, batched, layer])
def test_lowering(platform, f):
    text = lowered(f, platform)
    assert "custom_call @ragged_all_to_all" in text
    assert "@fastjax" not in text


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_a_program_is_the_same_as_by_jax(platform, groups):
    def by(function):
        def exchange(*operands):
            return function(*operands, axis_name="x", axis_index_groups=groups)

        return lowered(exchange, platform)

    assert by(fastjax.fast_ragged_all_to_all) == by(jax.lax.ragged_all_to_all)


@pytest.mark.parametrize("f", [exchange, planned, gradient, layer])
def test_several_platforms_at_once(f):
    text = lowered(f, "cpu", *PLATFORMS)
    assert "custom_call @ragged_all_to_all" in text
    assert "@fastjax" in text
    assert set(re.findall(r'platform = "(\w+)"', text)) == {"cpu"}
    assert {"fastjax_exchange_v2", "fastjax_plan_v2"} & set(re.findall(r"@(fastjax\w+)", text))


def test_a_program_for_two_platforms_of_ours():
    with fastjax.options(fallback="never"):
        text = lowered(planned, "cpu", "cuda")
    assert set(re.findall(r'platform = "(\w+)"', text)) == {"cpu", "cuda"}
    assert "custom_call @ragged_all_to_all" not in text


def test_one_warning_for_each_platform():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for platform in PLATFORMS:
                lowered(lambda *a: exchange(*a) + 1, platform)
    texts = [str(w.message) for w in caught if w.category is FallbackWarning]
    assert [re.findall(r"programs for (\w+)", t)[0] for t in texts] == ["cuda", "rocm"]
    assert all("library for it is not installed" in text for text in texts)
    assert all("install.md" in text and "fallback='error'" in text for text in texts)


def test_a_library_that_cannot_be_loaded(monkeypatch, tmp_path):
    """ROCm's, as on every machine without ROCm; here, one that is no library."""
    from fastjax import _core

    monkeypatch.setattr(handlers, "platforms_built", lambda: ["rocm"])
    usual = str(handlers._library("rocm"))
    (tmp_path / "wrong.so").write_text("no library")
    _core.set_gpu_options("rocm", str(tmp_path / "wrong.so"), 0, [])
    try:
        with pytest.warns(FallbackWarning, match="cannot load fastjax's GPU library.*wrong.so"):
            lowered(exchange, "rocm")
    finally:
        _core.set_gpu_options("rocm", usual, 0, [])


def lowering(f, platform, fallback, args=ARGS):
    """Traces under the option, which counts there, and lowers without it."""

    def call():
        with fastjax.options(fallback=fallback):
            traced = jax.jit(f).trace(*args)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    return call


def mapped(f):
    return jax.shard_map(f, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))


RANKS = (
    *[jax.ShapeDtypeStruct((8, 4, 2), jnp.float32)] * 2,
    *[jax.ShapeDtypeStruct((8, 8), "i4")] * 4,
)
play = partial(loopback.loopback_ragged_all_to_all, topology=fastjax.Topology(2, 4))

test_refused = refusals(
    UnsupportedError,
    *(
        (lowering(mapped(f), platform, "error"), f"cannot exchange on {platform}", "'error'")
        for platform in PLATFORMS
        for f in (exchange, planned)
    ),
    (lowering(mapped(exchange), "tpu", "never"), "cannot exchange on tpu"),
    (lowering(play, "tpu", "jax", RANKS), "fastjax.loopback cannot run on tpu"),
)


def test_cpu_devices_are_never_refused():
    assert "fastjax_exchange" in lowering(mapped(exchange), "cpu", "error")()


def test_while_jax_is_swapped(rng):
    """Nor does what takes our place call us."""
    meta = reference.packed(reference.random_sizes(rng, 8, 8), gap=1)
    operand, output = reference.data(rng, meta)
    with emulated_jax.in_place_of_ours(), fastjax.swap_ragged_all_to_all():
        local = lambda *a: jax.lax.ragged_all_to_all(*a, axis_name="x")  # noqa: E731
        got = spmd(local)(operand, output, *meta.arrays())
    np.testing.assert_array_equal(got, reference.exchange(operand, output, meta))
