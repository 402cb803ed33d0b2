"""Expert-parallel layers against the same layer on one device: values and all gradients."""

import deduplicated
import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from deduplicated import expected, layer_of, run
from moe_reference import same
from spmd import mesh_of, spmd

import fastjax
from fastjax import moe


def check(problem, top_k, mesh=None, **options):
    """Each choice travels by itself, and weights stay where they are."""
    usual = {"deduplicate": False, "topology": None, "at": "combine"}
    return deduplicated.check(problem, top_k, mesh, **usual | options)


@pytest.mark.parametrize(
    ("devices", "num_experts", "top_k"),
    [
        (1, 16, 2),
        (4, 16, 3),
        (8, 16, 1),
        (8, 16, 16),
        (8, 24, 2),
        (8, 8, 3),
    ],
)
def test_values_and_gradients(rng, devices, num_experts, top_k):
    problem = reference.problem(rng, devices, 12, num_experts)
    assert check(problem, top_k, mesh_of((devices,))).all()


@pytest.mark.parametrize("top_k", [1, 2])
def test_with_grouped_dot(rng, top_k):
    problem = reference.problem(rng, 8, 12, 16)
    check(problem, top_k, dot=moe.grouped_dot, alignment=4)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("explicit", [False, True])
def test_kinds_of_meshes(rng, explicit, check_vma):
    problem = reference.problem(rng, 8, 12, 16)
    check(problem, 2, mesh_of(explicit=explicit), check_vma=check_vma)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("servers", "devices", "scheduler"),
    [(1, 8, "direct"), (2, 4, "fast"), (4, 2, "rails"), (4, 2, "auto"), (8, 1, "spreadout")],
)
def test_topologies_and_schedulers(rng, servers, devices, scheduler):
    problem = reference.problem(rng, 8, 12, 16)
    check(problem, 2, topology=fastjax.Topology(servers, devices), scheduler=scheduler)


@pytest.mark.parametrize(
    ("num_experts", "factor", "alignment"),
    [
        (8, 0.1, 1),
        (8, 8, 4),
        (16, 0.5, 1),
        (16, 1, 4),
        (16, 8, 1),
    ],
)
def test_little_room(rng, num_experts, factor, alignment):
    problem = reference.problem(rng, 8, 12, num_experts)
    local = layer_of(2, at="combine", buffer_factor=factor, alignment=alignment)
    result, kept, dropped, grads = run(problem, local)
    x, router, _ = problem
    ids = np.asarray(reference.route(x, router, 2)[1])
    local = num_experts // 8
    room = int(np.ceil(factor * 24)) + local * (alignment - 1)
    room = -(-room // alignment) * alignment
    by_hand = reference.kept_by_hand(ids, num_experts, room, alignment)
    np.testing.assert_array_equal(kept.reshape(by_hand.shape), by_hand)
    np.testing.assert_array_equal(dropped, (~by_hand).sum((1, 2)))
    assert (factor >= 8) == by_hand.all()
    same((result, grads), expected(problem, 2, kept))


@pytest.mark.parametrize(("options", "room"), [({}, 32), ({"buffer_factor": 100}, 64)])
def test_an_expert_more_than_once(rng, options, room):
    """Repeated choices may be more than there is room for; what does not fit is told."""
    x = rng.normal(size=(8, 4, 3)).astype(np.float32)
    ids = np.full((8, 4, 2), 5, np.int32)  # twice device 5's one expert

    def local(x, ids):
        rows, sizes, handle = moe.dispatch(x, ids, num_experts=8, axis_name="x", **options)
        assert rows.shape[0] == room
        return moe.combine(rows, handle), sizes, handle.kept, handle.dropped

    out, sizes, kept, dropped = spmd(local)(x, ids)
    by_hand = reference.kept_by_hand(ids, 8, room, 1)
    np.testing.assert_array_equal(kept, by_hand)
    np.testing.assert_array_equal(dropped, (~by_hand).sum((1, 2)))
    assert sizes.ravel().tolist() == [0, 0, 0, 0, 0, room, 0, 0]
    np.testing.assert_allclose(out, x * by_hand.sum(2)[..., None], rtol=1e-6)


@pytest.mark.parametrize("alignment", [1, 8])
def test_rows_lie_by_expert_then_by_sender(rng, alignment):
    tokens, top_k, num_experts = 6, 2, 16
    x = np.arange(8 * tokens, dtype=np.float32).reshape(8, tokens, 1)
    ids = rng.integers(0, num_experts, (8, tokens, top_k)).astype(np.int32)
    ids[3, :3] = -1

    def local(x, ids):
        rows, sizes, handle = moe.dispatch(
            x, ids, num_experts=num_experts, axis_name="x", alignment=alignment
        )
        return rows, sizes, handle.group_rows, handle.kept

    rows, sizes, group_rows, kept = map(np.asarray, spmd(local)(x, ids))
    np.testing.assert_array_equal(kept, ids >= 0)
    for device in range(8):
        at = 0
        for e in range(2):
            senders, which, _ = np.nonzero(ids == 2 * device + e)
            np.testing.assert_array_equal(
                rows[device, at : at + len(which), 0], senders * tokens + which
            )
            padded = -(-len(which) // alignment) * alignment
            assert (group_rows[device, e], sizes[device, e]) == (len(which), padded)
            np.testing.assert_array_equal(rows[device, at + len(which) : at + padded], 0)
            at += padded
        np.testing.assert_array_equal(rows[device, at:], 0)


def sent_and_returned(x, ids, weights=None, **options):
    """Tokens that experts leave as they are, x and ids by device."""

    def local(x, ids):
        rows, _, handle = moe.dispatch(x, ids, num_experts=8, axis_name="x", **options)
        each = None if weights is None else jnp.broadcast_to(weights, handle.kept.shape)
        return moe.combine(rows, handle, each)

    return spmd(local)(x, ids)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_narrow_tokens_are_summed_in_wide_ones(rng, dtype):
    """Weights that are lost if sums, or weights, are as narrow as the rows."""
    x = rng.normal(size=(8, 4, 3)).astype(dtype)
    ids = np.tile(np.arange(8, dtype=np.int32), (8, 4, 1))
    weights = np.array([1] + [0.02] * 7, np.float32)
    got = sent_and_returned(x, ids, weights)
    assert got.dtype == dtype
    wanted = (x.astype(np.float32) * weights.sum()).astype(dtype)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        got.astype(np.float32), wanted.astype(np.float32), rtol=1.01 * eps, atol=1e-3
    )
    assert np.mean(np.asarray(got == wanted)) > 0.9  # but for ties in rounding


@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.uint8, np.int16, np.int32, np.uint32, jnp.int4]
)
def test_integer_tokens(rng, dtype):
    """Numbers that float32 does not hold come back as they were."""
    high = 2 if dtype is bool else 8 if dtype == jnp.int4 else np.iinfo(dtype).max
    x = rng.integers(high // 2, high, (8, 4, 3)).astype(dtype)
    ids = rng.integers(0, 8, (8, 4, 1)).astype(np.int32)
    got = sent_and_returned(x, ids)
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), x)


@pytest.mark.parametrize(
    ("payload", "ways"),
    [
        (jnp.bfloat16, "there"),  # of two bytes
        (jnp.bfloat16, "back"),
        (jnp.bfloat16, "both"),
        (jnp.float16, "both"),
        (jnp.float8_e4m3fn, "there"),  # of one, with scales
        (jnp.float8_e4m3fn, "back"),
        (jnp.float8_e4m3fn, "both"),
        (jnp.float8_e5m2, "both"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_narrow_payloads(rng, payload, ways):
    """Rows are rounded as the type says, once for each way, and by nothing else."""
    problem = reference.problem(rng, 8, 12, 16)
    there, back = (payload if ways in (way, "both") else None for way in ("there", "back"))
    local = layer_of(2, at="combine", combined={"payload_dtype": back}, payload_dtype=there)
    result, _, _, grads = run(problem, local)
    wanted, wanted_grads = expected(problem, 2, rounding=(there, back))
    # What rounds differently after sums in another order shows in the second way.
    same(result, wanted, 1e-5 if ways == "there" else 0.1 * float(jnp.finfo(payload).eps) + 1e-5)
    # Gradients travel in the type too, unless it is of one byte.
    rounds_gradients = np.dtype(payload).itemsize == 2
    same(grads, wanted_grads, 2 * float(jnp.finfo(payload).eps) if rounds_gradients else 0.02)


def test_rows_of_any_scale_travel_in_one_byte(rng):
    """Each row has its own scale: no row is lost beside a larger one, and none is made infinite."""
    exponents = rng.integers(-45, 38, (8, 16, 1)).astype(np.float64)
    exponents[0, :4, 0] = (-33, -34, -36, 38)
    x = (rng.uniform(0.5, 1, size=(8, 16, 4)) * 10.0**exponents).astype(np.float32)
    x[0, 5] = 0
    ids = rng.integers(0, 8, (8, 16, 1)).astype(np.int32)
    for payload in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        got = np.asarray(sent_and_returned(x, ids, payload_dtype=payload), np.float64)
        largest = np.abs(x).max(2).astype(np.float64)
        # Smaller rows lose precision, as they do in float32.
        least = 2 * float(jnp.finfo(payload).max) * float(np.finfo(np.float32).tiny)
        error = np.abs(got - x).max(2) / np.maximum(largest, least)
        assert error.max() < float(jnp.finfo(payload).eps)
        np.testing.assert_array_equal(got[0, 5], 0)


def test_not_finite_rows_stay_so_and_harm_no_others(rng):
    x = rng.normal(size=(8, 4, 3)).astype(np.float32)
    x[2, 1, 0], x[5, 0, 2] = np.inf, np.nan
    ids = rng.integers(0, 8, (8, 4, 1)).astype(np.int32)
    got = sent_and_returned(x, ids, payload_dtype=jnp.float8_e5m2)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(x))


def test_weights_of_choices_that_go_nowhere_may_be_anything(rng):
    x = rng.normal(size=(8, 6, 4)).astype(np.float32)
    ids = rng.integers(0, 8, (8, 6, 2)).astype(np.int32)
    ids[:, 0], ids[:, 1, 1] = -1, -1
    weights = np.where(ids < 0, np.nan, 0.5).astype(np.float32)

    def local(x, weights, ids):
        def loss(x, weights):
            rows, _, handle = moe.dispatch(x, ids, num_experts=8, axis_name="x")
            result = moe.combine(rows, handle, weights)
            return result.sum(), result

        return jax.grad(loss, (0, 1), has_aux=True)(x, weights)

    gradients, result = spmd(local)(x, weights, ids)
    np.testing.assert_allclose(result, x * (0.5 * (ids >= 0).sum(-1, keepdims=True)), rtol=1e-6)
    assert all(np.isfinite(each).all() for each in gradients)


@pytest.mark.parametrize(("tokens", "width"), [(0, 3), (6, 0)])
def test_no_tokens_or_of_no_width(tokens, width):
    def local(x, ids):
        rows, sizes, handle = moe.dispatch(x, ids, num_experts=8, axis_name="x")
        return sizes, moe.combine(rows, handle)

    x = np.zeros((8, tokens, width), np.float32)
    ids = np.arange(8 * tokens * 2, dtype=np.int32).reshape(8, tokens, 2) % 8
    sizes, result = spmd(local)(x, ids)
    assert (sizes.sum(), result.shape) == (ids.size, x.shape)
