"""Derivatives of derivatives of layers and of what experts do, against layers without devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_layers import (
    BALANCED,
    dense,
    dense_groups,
    expert,
    layer,
    name_of,
    on_devices,
    problem,
    same,
)
from refusals import refused

import fastjax
from fastjax import errors, moe


def penalty(function):
    """The gradients of how steep a function's squares are, as gradient penalties have them."""
    of_squares = lambda *args: (function(*args) ** 2).sum()  # noqa: E731

    def steepness(*args):
        slopes = jax.grad(of_squares, range(len(args)))(*args)
        return sum((slope**2).sum() for slope in jax.tree.leaves(slopes))

    return lambda *args: jax.grad(steepness, range(len(args)))(*args)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("sizes", [(150, 0, 1, 40), (0, 0, 0, 0)])
def test_whole_experts(rng, sizes, jit):
    """Of functions that use values from around them, too."""
    rows, scale = rng.normal(size=(200, 3)).astype(np.float32), np.array([0.5, 2], np.float32)
    params = tuple(rng.normal(size=(4, *s)).astype(np.float32) for s in ((3, 5), (5, 2)))

    def mapped(rows, params, scale):
        scaled = lambda rows, params: expert(rows, params) * jnp.sin(scale)  # noqa: E731
        return moe.grouped_map(scaled, rows, params, np.array(sizes))

    every = lambda rows, params, scale: dense_groups(rows, params, sizes) * jnp.sin(scale)  # noqa: E731
    wanted = jax.jit(penalty(every))(rows, params, scale)
    got = penalty(mapped)
    same((jax.jit(got) if jit else got)(rows, params, scale), wanted, 1e-4)


def test_third_derivatives(rng):
    """What is not a tile's own adds nothing to sums over groups, however often it is derived."""
    rows, direction = rng.normal(size=(2, 200, 3)).astype(np.float32)
    params = tuple(rng.normal(size=(4, *s)).astype(np.float32) for s in ((3, 5), (5, 2)))
    sizes = (150, 0, 1, 40)

    def thrice(function, rows, params):
        first = jax.grad(lambda r, p: (function(r, p) ** 3).sum())
        second = jax.grad(lambda r, p: (first(r, p) * direction).sum(), 1)
        third = jax.grad(lambda r, p: sum((s**2).sum() for s in second(r, p)), (0, 1))
        return jax.jit(third)(rows, params)

    mapped = lambda rows, params: moe.grouped_map(expert, rows, params, np.array(sizes))  # noqa: E731
    every = functools.partial(dense_groups, sizes=sizes)
    same(thrice(mapped, rows, params), thrice(every, rows, params), 1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"deduplicate": False, "buffer_factor": None},
        {"deduplicate": True, "chunks": 2, "alignment": 4, "buffer_factor": None},
        pytest.param(BALANCED, marks=pytest.mark.nightly),
    ],
    ids=name_of,
)
def test_layers(rng, options):
    *floats, ids = problem(rng, 5)
    got, wanted = (
        jax.jit(penalty(lambda *floats, f=f: f(*floats, ids)))(*floats)
        for f in (on_devices(layer, **options), dense)
    )
    same(got, wanted, 1e-4 if "balance" not in options else 1e-3)


def forward_mode(function, *primals):
    """A program of tangents of all operands, lowered."""
    return lambda: jax.jit(lambda *p: jax.jvp(function, p, p)).lower(*primals)


def test_forward_mode_is_refused_in_words(rng):
    """It is where the derivatives are those of a rule, eager or not."""
    told = "no forward-mode derivatives", "jax.jacrev(jax.jacrev(f)) in place of jax.hessian(f)"
    *floats, ids = problem(rng, 5)
    rows, weights = jnp.asarray(rng.normal(size=(12, 3))), jnp.asarray(rng.normal(size=(2, 3, 4)))
    dot = lambda rows, weights: moe.grouped_dot(rows, weights, np.array([5, 7]))  # noqa: E731
    slope = jax.jacrev(lambda weights: (dot(rows, weights) ** 2).sum())
    swapped = fastjax.swap_ragged_all_to_all(ragged_dot=True)(
        lambda rows, weights: jax.lax.ragged_dot(rows, weights, jnp.array([5, 7]))
    )
    for call in (
        lambda: jax.jvp(dot, (rows, weights), (rows, weights)),
        lambda: jax.jacfwd(slope)(weights),
        lambda: jax.hessian(lambda weights: dot(rows, weights).sum())(weights),
        forward_mode(
            jax.grad(lambda w: jax.grad(lambda w: (dot(rows, w) ** 3).sum())(w).sum()), weights
        ),
        forward_mode(jax.vmap(dot, (0, None)), rows[None], weights),
        forward_mode(swapped, rows, weights),
        *(
            forward_mode(lambda *floats, o=options: on_devices(layer, **o)(*floats, ids), *floats)
            for options in (
                {"deduplicate": False},
                {"deduplicate": True, "topology": fastjax.Topology(2, 4)},
                {"chunks": 2, "buffer_factor": 8.0},
            )
        ),
    ):
        refused(errors.UnsupportedError, call, *told)
