"""Experts that have no derivative at zero, in layers whose groups are padded."""

import functools

import jax
import jax.numpy as jnp
import moe_layers
import numpy as np
import pytest
from moe_layers import (
    EXPERTS,
    WIDTH,
    dense_with_gradients,
    dispatched,
    layer,
    on_devices,
    same,
    with_gradients,
)

from fastjax import moe


def expert(rows, params):
    """A normalised row and logarithms, times matrices: at zero NaN, and so are all derivatives."""
    normed = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    return normed @ params[0] + jnp.log(jnp.abs(rows)) @ params[1]


def all_experts(rows, sizes, params):
    """The same of all experts of a device, by products of which JAX masks what is in no group."""
    normed = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    logarithms = jnp.log(jnp.abs(rows))
    in_use = jnp.arange(len(rows))[:, None] < sizes.sum()
    normed, logarithms = jnp.where(in_use, normed, 0), jnp.where(in_use, logarithms, 0)
    products = functools.partial(jax.lax.ragged_dot, group_sizes=sizes)
    return products(normed, params[0]) + products(logarithms, params[1])


FUNCTIONS = {"expert_fn": expert, "grouped_fn": all_experts}


def problem(rng):
    """Nothing is so near zero that small differences count."""
    x, weights, _, ids = moe_layers.problem(rng, 7)
    params = tuple(rng.normal(size=(EXPERTS, WIDTH, 4)).astype(np.float32) for _ in range(2))
    return np.sign(x) * (0.5 + np.abs(x)), weights, params, ids


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("expert_fn", {"deduplicate": False}),
        ("expert_fn", {"deduplicate": True, "chunks": 2, "buffer_factor": 0.8, "drop": True}),
        ("expert_fn", {"deduplicate": False, "payload_dtype": jnp.float8_e4m3fn}),
        ("grouped_fn", {"deduplicate": True}),
        ("grouped_fn", {"deduplicate": False, "chunks": 2, "buffer_factor": 0.8, "drop": True}),
        ("grouped_fn", {"deduplicate": True, "payload_dtype": jnp.bfloat16}),
    ],
    ids=lambda value: ",".join(map(str, value.values())) if isinstance(value, dict) else None,
)
def test_padding_reaches_neither_values_nor_gradients(rng, options, name):
    x, _, _, ids = arrays = problem(rng)
    options = {"alignment": 8, "buffer_factor": None, **options}
    function = {"expert_fn": None} | {name: FUNCTIONS[name]}
    only = {name: options[name] for name in ("deduplicate", "alignment", "buffer_factor")}
    kept = jax.jit(on_devices(lambda x, ids: dispatched(x, ids, **only)[2].kept))(x, ids)
    assert kept.all() == (options["buffer_factor"] is None)
    got = with_gradients(on_devices(layer, **function, **options))(*arrays)
    narrow = options.get("payload_dtype")
    wanted = dense_with_gradients(arrays, np.asarray(kept), expert=expert, rounding=(narrow, None))
    same(got, wanted, 1e-4 if narrow is None else 0.05)


@pytest.mark.parametrize("padded", [(128, 8), (256, 128), (136, 136)])
def test_padding_is_not_given_to_functions(rng, padded):
    sizes, without = np.array(padded), np.array([100, 1])
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    in_use = np.concatenate([np.arange(n) < k for n, k in zip(padded, without, strict=True)])
    rows[: len(in_use)][~in_use] = np.nan
    params = tuple(rng.normal(size=(2, 6, 4)).astype(np.float32) for _ in range(2))
    ct = rng.normal(size=(400, 4)).astype(np.float32)

    @jax.jit
    def made_and_cotangents(rows, params):
        mapped = lambda rows, params: moe.grouped_map(expert, rows, params, sizes, without)  # noqa: E731
        result, back = jax.vjp(mapped, rows, params)
        return result, *back(ct)

    result, rows_ct, params_ct = made_and_cotangents(rows, params)
    assert not np.any(np.asarray(result)[: len(in_use)][~in_use])
    assert not np.any(np.asarray(rows_ct)[: len(in_use)][~in_use])
    for group, start in enumerate((0, padded[0])):
        own = slice(start, start + without[group])
        of_group = jax.tree.map(lambda p, g=group: p[g], params)
        wanted, back = jax.vjp(expert, rows[own], of_group)
        wanted_cts = back(ct[own])
        of_params = jax.tree.map(lambda p, g=group: p[g], params_ct)
        same((result[own], (rows_ct[own], of_params)), (wanted, wanted_cts), 1e-4)
