"""What layers are given: tokens with any axes in front, no experts, weights at experts, params."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_layers import (
    BALANCED,
    DEVICES,
    EXPERTS,
    TOP_K,
    USUAL,
    WIDTH,
    P,
    dense,
    expert,
    same,
)
from refusals import refusals
from spmd import mesh_of, spmd

from fastjax import moe
from fastjax.errors import ArgumentError

HERE = EXPERTS // DEVICES


@dataclasses.dataclass(frozen=True)
class Way:
    """A layer: the shape of its tokens, how their choices say "none", and its options."""

    shape: tuple[int, ...]
    no_expert: int = -1
    in_steps: bool = False
    options: Any = dataclasses.field(default_factory=dict, hash=False)


WAYS = [  # each is a program
    Way((DEVICES,), options={"deduplicate": False}),
    Way((3 * DEVICES,), 2**30, options={"deduplicate": True, "chunks": 2}),
    Way((2, DEVICES, 3), EXPERTS, options=BALANCED | {"buffer_factor": 0.5, "copies": 2}),
    Way((DEVICES, 3), -9, in_steps=True, options=BALANCED | {"deduplicate": True}),
    Way((13, 1), options={"replicated": True}),
]


@functools.cache
def compiled(way):
    """A layer, and its gradients."""
    tokens = P(*("x" if size % DEVICES == 0 else None for size in way.shape))

    def local(x, weights, params, shift, narrow, ids):
        def with_shift(rows, params):
            """Its values from around it are traced, and its integers have no gradients."""
            floats, narrow = params
            return expert(rows, floats) * narrow.astype(rows.dtype) + jnp.sin(shift)

        options, params = USUAL | {"no_expert": way.no_expert} | way.options, (params, narrow)
        if not way.in_steps:
            return moe.layer(x, ids, weights, params, expert_fn=with_shift, **options)
        rows, sizes, handle = moe.dispatch(x, ids, weights=weights, **options)
        each, unweighted = moe.take_weights(handle)
        rows = moe.grouped_map(with_shift, rows, handle.params(params), sizes)
        return moe.combine(rows * each[:, None], unweighted)

    specs = tokens, tokens, P("x"), P(), P("x"), tokens
    return value_and_slopes(jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=tokens))


def value_and_slopes(function):
    def loss(*arrays):
        made = function(*arrays)
        return (made**2).sum(), made

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))


@value_and_slopes
def wanted_of(x, weights, params, shift, narrow, ids):
    up, down = params
    made = dense(x, weights, (up, down * narrow[:, None]), ids)
    return made + jnp.where(ids < 0, 0, weights).sum(1, keepdims=True) * jnp.sin(shift)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_layers_of_any_tokens(data):
    """Any axes in front, any choices, functions of one expert as people write them, any way."""
    way = data.draw(st.sampled_from(WAYS))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    popular = data.draw(st.integers(1, EXPERTS))
    ids = rng.integers(-1, popular, (*way.shape, TOP_K)).astype(np.int32)
    some = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    x, weights, shift = some(*way.shape, WIDTH), some(*ids.shape), some(WIDTH)
    params = some(EXPERTS, WIDTH, 5), some(EXPERTS, 5, WIDTH)
    narrow = rng.integers(-9, 9, (EXPERTS, WIDTH)).astype(np.int8)
    given_ids = np.where(ids < 0, way.no_expert, ids).astype(np.int32)
    (_, result), slopes = compiled(way)(x, weights, params, shift, narrow, given_ids)
    flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    (_, wanted), wanted_slopes = wanted_of(flat(x), flat(weights), params, shift, narrow, flat(ids))
    assert jax.tree.map(jnp.shape, (result, *slopes[:2])) == (x.shape, x.shape, weights.shape)
    same((flat(result), flat(slopes[0]), flat(slopes[1])), (wanted, *wanted_slopes[:2]), 5e-5)
    same(slopes[2:], wanted_slopes[2:], 5e-5)


@pytest.mark.parametrize("deduplicate", [True, False])
def test_weights_of_rows(rng, deduplicate):
    """Of choices whose tokens are told by their first number, and experts by the groups of rows."""
    tokens = 5
    choose = lambda: rng.permutation(EXPERTS)[:TOP_K]  # noqa: E731
    ids = np.array([[choose() for _ in range(tokens)] for _ in range(DEVICES)], np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    weights = rng.normal(size=ids.shape).astype(np.float32)
    weights[ids < 0] = np.nan
    x = np.arange(1.0, 1 + DEVICES * tokens, dtype=np.float32).reshape(DEVICES, tokens, 1)

    def local(x, weights, ids):
        def loss(weights):
            options = USUAL | {"deduplicate": deduplicate, "weights": weights, "alignment": 4}
            rows, sizes, handle = moe.dispatch(x, ids, **options)
            each, unweighted = moe.take_weights(handle)
            sums = moe.combine(rows * each[:, None], unweighted)
            return (rows[:, 0] * each).sum(), (rows[:, 0], each, sizes, handle.group_rows, sums)

        return jax.grad(loss, has_aux=True)(weights)

    slopes, (rows, each, sizes, group_rows, sums) = spmd(local)(x, weights, ids)
    np.testing.assert_allclose(slopes, np.where(ids < 0, 0, x), rtol=1e-6)
    wanted = (x * np.where(ids < 0, 0, weights)).sum(-1, keepdims=True)
    np.testing.assert_allclose(sums, wanted, rtol=1e-5, atol=1e-4)
    for device in range(DEVICES):
        found, start = np.zeros(rows.shape[1], np.float32), 0
        for group in range(HERE):
            for at in range(start, start + group_rows[device, group]):
                token = divmod(int(rows[device, at]) - 1, tokens)
                chosen = ids[token].tolist().index(device * HERE + group)
                found[at] = weights[token][chosen]
            start += sizes[device, group]
        np.testing.assert_array_equal(each[device], found)


def refused(expert_fn=expert, take=False, **changed):
    """A trace of a layer, or of dispatch, with something wrong."""
    ids = np.zeros((2 * DEVICES, TOP_K), changed.pop("dtype", np.int32))
    x = np.zeros((2 * DEVICES, WIDTH), np.float32)
    params = {"up": np.zeros((EXPERTS, WIDTH, 5)), "down": [np.zeros((EXPERTS, 5, WIDTH))]}
    spec = changed.pop("spec", P("x"))

    def local(x, ids, params):
        if take:
            return moe.take_weights(moe.dispatch(x, ids, **USUAL)[2])[0]
        return moe.layer(x, ids, None, params, expert_fn=expert_fn, **USUAL, **changed)

    specs = {"in_specs": (P("x"), P("x"), spec), "out_specs": P("x")}
    return lambda: jax.eval_shape(jax.shard_map(local, mesh=mesh_of(), **specs), x, ids, params)


test_refused_when_traced = refusals(
    ArgumentError,
    (refused(spec=P()), "params['down'][0] has shape (16, 5, 6)", "2 experts", "in_specs"),
    (refused(expert_fn=functools.partial(expert, params=1)), "expert_fn=partial takes"),
    (refused(take=True), "this handle has no weights"),
    (refused(no_expert=3), "no_expert must be an integer", "an expert, 0 to 15; got 3"),
    (refused(no_expert=True), "no_expert must be an integer", "got True"),
    (refused(no_expert=2**30, dtype=np.int8), "which are int8; got 1073741824"),
)


@pytest.mark.parametrize(
    ("no_expert", "dtype"), [(EXPERTS, np.int32), (2**30, np.uint32), (-7, np.int8)]
)
def test_another_number_for_no_expert(rng, no_expert, dtype):
    ids = rng.integers(-1, EXPERTS, (DEVICES, 4, TOP_K))
    ids[:, 0] = -1
    given = np.where(ids < 0, no_expert, ids).astype(dtype)
    if np.issubdtype(dtype, np.signedinteger):
        given[3] = ids[3]  # -1 is none, too
    x = rng.normal(size=(DEVICES, 4, 3)).astype(np.float32)

    def local(x, ids):
        rows, _, handle = moe.dispatch(x, ids, no_expert=no_expert, **USUAL)
        return moe.combine(rows, handle), handle.dropped

    result, dropped = spmd(local)(x, given)
    np.testing.assert_allclose(result, x * (ids >= 0).sum(-1, keepdims=True), rtol=1e-6)
    assert not dropped.any()
