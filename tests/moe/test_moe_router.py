"""Choices, weights and losses of routers, against programs written token by token from papers."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from refusals import refusals
from spmd import mesh_of

from fastjax import moe
from fastjax.errors import ArgumentError


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def best(values, count):
    """Indices of the largest, the best first, and of equal ones the first."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


def mixtral(scores, k):
    """arXiv 2401.04088, section 2.1: Softmax(TopK(x W_g)). gpt-oss's, too."""
    kept = np.full(len(scores), -np.inf)
    ids = best(scores, k)
    kept[ids] = scores[ids]
    return ids, softmax(kept)[ids]


def qwen3(scores, k):
    """norm_topk_prob: the chosen of a softmax, divided by their sum."""
    ids, weights = switch(scores, k)
    return ids, weights / weights.sum()


def switch(scores, k):
    """arXiv 2101.03961, section 2.1, equations 1 and 2, for more choices than one."""
    chances = softmax(scores)
    ids = best(chances, k)
    return ids, chances[ids]


def deepseek(scores, k, bias, groups=1, top_groups=1, scale=1.0):
    """arXiv 2412.19437, section 2.1.2, equations 13 to 16, and node-limited routing."""
    affinities = 1 / (1 + np.exp(-scores))
    ranked = affinities + bias
    size = len(scores) // groups
    sums = [np.sort(ranked[g * size : (g + 1) * size])[-2:].sum() for g in range(groups)]
    nodes = best(sums, top_groups)
    ids = [e for e in best(ranked, len(scores)) if e // size in nodes][:k]
    return ids, scale * affinities[ids] / affinities[ids].sum()


def by_token(one, scores, *args, **options):
    found = [one(token, *args, **options) for token in scores]
    return np.array([ids for ids, _ in found]), np.array([weights for _, weights in found])


def same(got, wanted, tolerance=1e-12):
    np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_allclose(got[1], wanted[1], rtol=tolerance)
    assert got[0].dtype == np.int32


# In one program: JAX would compile each operation for each shape.
route = jax.jit(
    moe.route,
    static_argnames=("top_k", "scoring", "normalize", "groups", "top_groups", "scale"),
)
WAYS = [(mixtral, {}), (qwen3, {}), (switch, {"normalize": False})]


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("ties", [False, True])
def test_softmax(ties, data):
    tokens, experts, k = data.draw(
        st.sampled_from([(0, 1, 1), (1, 1, 1), (2, 2, 1), (4, 9, 3), (3, 6, 6)])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    few = rng.normal(size=2 if ties else experts * max(tokens, 1)) * 3
    scores = rng.choice(few, (tokens, experts), replace=ties)
    for one, options in WAYS:
        with jax.enable_x64(True):
            got = route(scores, k, **options)
        assert got[0].shape == got[1].shape == (tokens, k)
        if tokens:
            same(got, by_token(one, scores, k))


@settings(max_examples=40)
@given(data=st.data())
def test_sigmoid_with_bias_and_groups(data):
    tokens, groups, size, top_groups, k = data.draw(
        st.sampled_from(
            [(0, 1, 1, 1, 1), (1, 4, 1, 3, 2), (2, 1, 4, 1, 3), (3, 4, 4, 2, 5), (3, 3, 2, 2, 4)]
        )
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scores = rng.normal(size=(tokens, groups * size)) * 2
    bias = rng.normal(size=groups * size) * 0.5
    options = {"groups": groups, "top_groups": top_groups, "scale": 2.5}
    with jax.enable_x64(True), jax.debug_nans(True), jax.debug_infs(True):
        got = route(scores, k, scoring="sigmoid", bias=bias, **options)
    assert got[0].shape == got[1].shape == (tokens, k)
    if tokens:
        same(got, by_token(deepseek, scores, k, bias, **options))


def test_equal_groups_and_experts_come_in_order():
    scores = np.tile(np.float32([[1, 2, 2, 1]]), (1, 3))
    ids, _ = route(scores, 3, scoring="sigmoid", groups=6, top_groups=2)
    assert ids.tolist() == [[1, 2, 0]]
    ids, weights = route(np.zeros((2, 3, 5)), 2, normalize=False)
    assert ids.tolist() == [[[0, 1]] * 3] * 2
    np.testing.assert_allclose(weights, 0.2, rtol=1e-6)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [True, False])
def test_large_scores(scoring, normalize):
    """Affinities are 0 or 1 in float32: the best are chosen, and nothing is NaN."""
    for scores in ([-900.0, -1e3, -800.0, -np.inf], [200.0, 30.0, 400.0, -np.inf]):
        run = functools.partial(route, top_k=2, scoring=scoring, normalize=normalize)
        (ids, weights), back = jax.vjp(run, jnp.float32(scores))
        assert ids.tolist() == [2, 0]
        (gradient,) = back((np.zeros(2, jax.dtypes.float0), jnp.float32([1, -1])))
        assert np.isfinite(weights).all()
        assert np.isfinite(gradient).all()
        if normalize:
            assert weights.sum() == 1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.float32])
def test_computed_in_float32(rng, dtype):
    scores = jnp.asarray(rng.normal(size=(50, 16)), dtype)
    bias = rng.normal(size=16)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        got = jax.jit(lambda s, b: moe.route(s, 4, scoring="sigmoid", bias=b, scale=2.5))(
            scores, bias.astype(np.float32)
        )
        load = moe.load_balance(np.ones(16, np.int32), scores)
    wanted = by_token(deepseek, np.float64(scores), 4, bias.astype(np.float32), scale=2.5)
    same(got, wanted, 1e-5)
    assert {got[1].dtype, *(part.dtype for part in load)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients(rng, scoring, normalize):
    """Of weights by scores, against differences of values; the bias has none."""
    scores, bias = rng.normal(size=(3, 6)), rng.normal(size=6)

    def weights(scores, bias):
        options = {"scoring": scoring, "normalize": normalize, "scale": 2.5}
        return route(scores, 2, bias=bias, groups=2, **options)[1]

    with jax.enable_x64(True):
        check_grads(lambda s: weights(s, bias), (scores,), order=1)
        gradient = jax.grad(lambda b: (weights(scores, b) ** 2).sum())(bias)
    np.testing.assert_array_equal(gradient, 0)


def losses(rows, scores, scoring):
    """Switch Transformer, equations 4 to 6, DeepSeek-V3, 17 to 20, and ST-MoE, 5, by token."""
    experts, chances, squares = len(rows), [], []
    for token in scores:
        affinities = softmax(token) if scoring == "softmax" else 1 / (1 + np.exp(-token))
        chances.append(affinities / affinities.sum())
        squares.append(np.log(np.exp(token).sum()) ** 2)
    uneven = sum(experts * rows[e] / rows.sum() * np.mean(chances, 0)[e] for e in range(experts))
    return uneven, np.mean(squares), rows.max() * experts / rows.sum()


_load_balance = jax.jit(moe.load_balance, static_argnames="scoring")


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (4, 3)], ids=str)
def test_losses(rng, shape, scoring):
    experts = shape[1]
    for _ in range(10):
        scores, rows = rng.normal(size=shape) * 2, rng.integers(0, 9, experts)
        rows[rng.integers(experts)] += 1
        with jax.enable_x64(True):
            got = _load_balance(rows, scores, scoring=scoring)
        np.testing.assert_allclose(got, losses(rows, scores, scoring), rtol=1e-12)
    with jax.enable_x64(True):
        loss = lambda scores: sum(_load_balance(rows, scores, scoring=scoring)[:2])  # noqa: E731
        check_grads(loss, (scores,), order=1)


def test_losses_at_their_bounds():
    assert _load_balance(np.int32([3, 3]), np.zeros((4, 2), np.float32))[::2] == (1, 1)
    assert _load_balance(np.int32([0, 8]), np.float32([[0, 90]]))[::2] == (2, 2)
    assert _load_balance(np.zeros(3, np.int32), np.zeros((0, 3), np.float32)) == (0, 0, 0)


def test_mean_over_devices_is_of_all_tokens(rng):
    """Losses and gradients, where a layer counts the rows."""
    x, router = rng.normal(size=(8 * 5, 6)).astype(np.float32), rng.normal(size=(6, 16))
    router = router.astype(np.float32)

    def local(x, router):
        scores = x @ router
        ids, weights = moe.route(scores, 3)
        _, stats = moe.layer(
            *(x, ids, weights, jnp.ones((2, 1))),
            expert_fn=lambda rows, scale: rows * scale,
            num_experts=16,
            axis_name="x",
            return_stats=True,
        )
        return jax.lax.pmean(tuple(moe.load_balance(stats.expert_rows, scores)), "x")

    specs = {"in_specs": (P("x"), P()), "out_specs": P()}
    on_devices = jax.shard_map(local, mesh=mesh_of(), **specs)
    chosen = by_token(mixtral, np.float64(x) @ router, 3)[0]
    rows = np.bincount(chosen.ravel(), minlength=16)

    def alone(x, router):
        return tuple(moe.load_balance(rows, x @ router))

    for run in (on_devices, alone):
        got = jax.jit(run)(x, router)
        np.testing.assert_allclose(got, losses(rows, x @ router, "softmax"), rtol=1e-5)
    got, wanted = (
        jax.jit(jax.grad(lambda router, run=run: sum(run(x, router))))(router)
        for run in (on_devices, alone)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


SCORES = np.zeros((2, 6), np.float32)
ROWS = np.ones(6, np.int32)


test_refusals = refusals(
    ArgumentError,
    (lambda: moe.route(SCORES.astype(int), 2), "scores", "int", "(2, 6)"),
    (lambda: moe.route(np.float32(1), 1), "scores", "()"),
    (lambda: moe.route(SCORES, 7), "top_k", "7"),
    (lambda: moe.route(SCORES, 0), "top_k", "0"),
    (lambda: moe.route(SCORES, 1.0), "top_k", "1.0"),
    (lambda: moe.route(SCORES, 2, groups=4), "6", "4 groups"),
    (lambda: moe.route(SCORES, 2, groups=3, top_groups=4), "top_groups", "4"),
    (lambda: moe.route(SCORES, 3, groups=3), "top_k", "from 1 to 2", "3"),
    (lambda: moe.route(SCORES, 2, bias=np.zeros(5)), "bias", "6", "(5,)"),
    (lambda: moe.route(SCORES, 2, scoring="relu"), "scoring", "relu"),
    (lambda: moe.load_balance(ROWS[:5], SCORES), "expert_rows", "6", "(5,)"),
    (lambda: moe.load_balance(ROWS, SCORES > 0), "scores", "bool"),
    (lambda: moe.load_balance(ROWS, SCORES, scoring="tanh"), "scoring", "tanh"),
)
