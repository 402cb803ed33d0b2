"""What layers are given: tokens with any axes in front, no experts, weights at experts, params."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusals
from spmd import mesh_of, spmd
from whole_layers import DEVICES, EXPERTS, TOP_K, TOPOLOGY, WIDTH, dense, expert, same

from fastjax import moe
from fastjax.errors import ArgumentError

P = jax.P
HERE = EXPERTS // DEVICES
USUAL = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY}


@functools.cache
def compiled(shape, deduplicate):
    """A layer in one call, in steps, and its gradients, for tokens of this shape on each device."""
    del shape
    usual = USUAL | {"deduplicate": deduplicate}

    def local(x, weights, params, ids):
        def loss(x, weights, params):
            result = moe.layer(x, ids, weights, params, expert_fn=expert, **usual)
            return (result**2).sum(), result

        (_, result), slopes = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(x, weights, params)
        rows, sizes, handle = moe.dispatch(x, ids, **usual)
        rows = moe.grouped_map(expert, rows, params, sizes)
        stepped = moe.combine(rows, handle, weights)
        return result, slopes, stepped, handle.kept

    return spmd(local)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_tokens_with_any_axes_in_front(data):
    shape = data.draw(st.sampled_from([(), (3,), (2, 1, 3)]))  # programs are compiled for
    deduplicate = bool(shape)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ids = rng.integers(-1, EXPERTS, (DEVICES, *shape, TOP_K)).astype(np.int32)
    some = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    x, weights = some(DEVICES, *shape, WIDTH), some(*ids.shape)
    params = some(DEVICES, HERE, WIDTH, 5), some(DEVICES, HERE, 5, WIDTH)
    result, slopes, stepped, kept = compiled(shape, deduplicate)(x, weights, params, ids)
    flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
    of_all = lambda a: a.reshape(EXPERTS, *a.shape[2:])  # noqa: E731
    arrays = flat(x), flat(weights), tuple(map(of_all, params))

    def loss(*arrays):
        made = dense(*arrays, flat(ids))
        return (made**2).sum(), made

    (_, wanted), wanted_slopes = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arrays)
    assert result.shape == stepped.shape == x.shape
    same((flat(result), flat(stepped)), (wanted, wanted))
    np.testing.assert_array_equal(kept, ids >= 0)
    assert jax.tree.map(jnp.shape, slopes) == jax.tree.map(np.shape, (x, weights, params))
    slopes = flat(slopes[0]), flat(slopes[1]), tuple(map(of_all, slopes[2]))
    same(slopes, wanted_slopes)


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
