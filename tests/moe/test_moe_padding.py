"""Experts that have no derivative at zero, in layers whose groups are padded."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from deduplicated import DEVICES, EXPERTS, SPREAD, P, dispatched, layer_on_devices
from moe_reference import same, with_gradients
from spmd import mesh_of

from fastjax import moe

TOP_K = 3


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
    """Tokens, router and experts; nothing is so near zero that small differences count."""
    x, router, _ = reference.problem(rng, DEVICES, 7, EXPERTS)
    x = np.sign(x) * (0.5 + np.abs(x))
    params = tuple(rng.normal(size=(EXPERTS, 6, 4)).astype(np.float32) for _ in range(2))
    return x.reshape(-1, 6), router, params


def dense(x, router, params, kept, rounding=None):
    weights, ids = reference.route(x, router, TOP_K)
    rows = reference.rounded(x, rounding)
    every = jax.vmap(lambda p: expert(rows, p))(params)
    chosen = jnp.take_along_axis(jnp.moveaxis(every, 0, 1), ids[..., None], axis=1)
    return (chosen * (weights * kept)[..., None]).sum(1)


def kept_by(options, x, router):
    """Which choices find room."""

    def local(x, router):
        _, ids = reference.route(x, router, TOP_K)
        only = {k: v for k, v in options.items() if k not in ("chunks", "drop")}
        return dispatched(x, ids, **only)[2].kept

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=(P("x"), P()), out_specs=P("x"))
    return jax.jit(mapped)(x, router)


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
    x, router, params = problem(rng)
    options = {"alignment": 8, **options}
    function = {"expert_fn": None} | {name: FUNCTIONS[name]}
    kept = np.asarray(kept_by(options, x, router))
    assert kept.all() == ("buffer_factor" not in options)
    got = jax.jit(with_gradients(layer_on_devices(**function, **options)))(x, router, params)
    narrow = options.get("payload_dtype")
    wanted = jax.jit(with_gradients(functools.partial(dense, kept=kept, rounding=narrow)))(
        x, router, params
    )
    same(got, wanted, 1e-4 if narrow is None else 0.05)


def test_steps(rng):
    """`grouped_map` is told which rows of a group are padding."""
    x, router, params = problem(rng)

    def local(x, router, params):
        weights, ids = reference.route(x, router, TOP_K)
        rows, sizes, handle = dispatched(x, ids, deduplicate=False, alignment=8)
        rows = moe.grouped_map(expert, rows, params, sizes, handle.group_rows)
        return moe.combine(rows, handle, weights)

    specs = (SPREAD, P(), SPREAD)
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=SPREAD)
    every = functools.partial(dense, kept=np.ones((len(x), TOP_K), bool))
    same(
        jax.jit(with_gradients(mapped))(x, router, params),
        jax.jit(with_gradients(every))(x, router, params),
        1e-4,
    )


@pytest.mark.parametrize("padded", [(128, 8), (256, 128), (136, 136)])
def test_padding_is_not_given_to_functions(rng, padded):
    sizes, without = np.array(padded), np.array([100, 1])
    rows = rng.normal(size=(400, 6)).astype(np.float32)
    in_use = np.concatenate([np.arange(n) < k for n, k in zip(padded, without, strict=True)])
    rows[: len(in_use)][~in_use] = np.nan
    params = tuple(rng.normal(size=(2, 6, 4)).astype(np.float32) for _ in range(2))
    ct = rng.normal(size=(400, 4)).astype(np.float32)
    result, back = jax.vjp(lambda r, p: moe.grouped_map(expert, r, p, sizes, without), rows, params)
    rows_ct, params_ct = back(ct)
    assert not np.any(np.asarray(result)[: len(in_use)][~in_use])
    assert not np.any(np.asarray(rows_ct)[: len(in_use)][~in_use])
    for group, start in enumerate((0, padded[0])):
        own = slice(start, start + without[group])
        of_group = jax.tree.map(lambda p, g=group: p[g], params)
        wanted, back = jax.vjp(expert, rows[own], of_group)
        wanted_cts = back(ct[own])
        of_params = jax.tree.map(lambda p, g=group: p[g], params_ct)
        same((result[own], (rows_ct[own], of_params)), (wanted, wanted_cts), 1e-4)
