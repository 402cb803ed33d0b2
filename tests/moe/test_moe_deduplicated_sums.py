"""Sums of deduplicated tokens: rows of all types, and how exact and in which order they are."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from deduplicated import EXPERTS, check, dispatched, spread

import fastjax
from fastjax import moe

in_turn = functools.partial(pytest.mark.parametrize, indirect=["indexed_as"])


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "dtype"),
    [("as CPU", np.int8), ("as GPU", np.uint16), ("as CPU", np.int32), ("as GPU", bool)],
)
def test_integer_rows_with_weights(rng, dtype):
    """They are rounded once, at the end."""
    x = rng.integers(0, 2 if dtype is bool else 9, (8 * 5, 3)).astype(dtype)
    ids = rng.integers(0, EXPERTS, (8 * 5, 3)).astype(np.int32)
    weights = rng.integers(1, 8, (8 * 5, 3)).astype(np.float32) / 8

    def local(x, ids, weights, *, once):
        rows, _, handle = dispatched(
            x, ids, weights=weights, topology=fastjax.Topology(2, 4), deduplicate=once
        )
        return moe.combine(rows, handle)

    got, wanted = (
        jax.jit(spread(functools.partial(local, once=once)))(x, ids, weights)
        for once in (True, False)
    )
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "payload"),
    [("as CPU", jnp.bfloat16), ("as GPU", jnp.float16), ("as CPU", jnp.float8_e4m3fn)],
)
def test_narrow_payloads(rng, payload):
    """Rows are as exact as their type says, once for each way."""
    problem = reference.problem(rng, 8, 12, EXPERTS)
    check(
        problem,
        3,
        payload_dtype=payload,
        combined={"payload_dtype": payload},
        tolerance=(8 if np.dtype(payload).itemsize == 2 else 1) * float(jnp.finfo(payload).eps),
    )


def in_order(x, ids, weights, servers, crossing, *, by_choice):
    """Each server's sum, from 0 on by expert or choice, in float32; then those of all servers."""
    total = np.zeros(x.shape, np.float32)
    here = np.arange(len(x)) * servers // len(x)
    for server in range(servers):
        own = np.zeros(x.shape, np.float32)
        here_too = ids * servers // EXPERTS == server
        order = np.broadcast_to(np.arange(ids.shape[1]), ids.shape) if by_choice else ids.argsort(1)
        for choice in order.T:  # of each token
            token = np.flatnonzero(np.take_along_axis(here_too, choice[:, None], 1))
            expert, weight = ids[token, choice[token]], weights[token, choice[token]]
            made = (x[token] * (1 + expert[:, None]).astype(x.dtype)).astype(np.float32)
            own[token] += made * weight[:, None]
        crossed = own.astype(crossing).astype(np.float32)
        total += np.where((here == server)[:, None], own, crossed)
    return total.astype(x.dtype)


@in_turn(
    ("indexed_as", "dtype", "crossing"),
    [
        ("as CPU", jnp.bfloat16, None),
        ("as CPU", jnp.bfloat16, np.float32),
        ("as CPU", np.float16, jnp.bfloat16),
        ("as CPU", np.float32, None),
        ("as GPU", jnp.bfloat16, None),
        ("as GPU", np.float16, np.float32),
        ("as GPU", np.float32, jnp.bfloat16),
    ],
)
def test_bits_of_sums(rng, indexed_as, dtype, crossing):
    """The order of all operations is defined: on GPUs, inside servers, by choice."""
    x = rng.normal(size=(8 * 6, 40)).astype(dtype)
    ids = np.argsort(rng.random((8 * 6, EXPERTS)), 1)[:, :7].astype(np.int32)
    weights = rng.random((8 * 6, 7)).astype(np.float32)

    def local(x, ids, weights):
        rows, sizes, handle = dispatched(x, ids, weights=weights)
        rows = reference.by_number(rows, sizes, jax.lax.axis_index("x"))
        return moe.combine(rows, handle, payload_dtype=crossing)

    mapped = jax.jit(spread(local))
    got = np.asarray(mapped(x, ids, weights))
    wanted = in_order(x, ids, weights, 4, crossing or dtype, by_choice=indexed_as == "as GPU")
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "dtype"),
    [
        *(("as CPU", dtype) for dtype in (bool, np.uint16, jnp.int4, jnp.float8_e5m2)),
        *(("as GPU", dtype) for dtype in (np.int8, np.int32, jnp.int4, np.complex64)),
    ],
)
def test_rows_of_any_type(rng, dtype):
    x = rng.integers(0, 2, (8 * 5, 3)).astype(dtype)
    ids = rng.integers(0, EXPERTS, (8 * 5, 1)).astype(np.int32)

    def local(x, ids):
        rows, _, handle = dispatched(x, ids, topology=fastjax.Topology(2, 4))
        return moe.combine(rows, handle)

    mapped = jax.jit(spread(local))
    got = mapped(x, ids)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(got).astype("c8"), x.astype("c8"))
