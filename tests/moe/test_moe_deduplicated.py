"""Layers whose tokens cross once to each server: against a dense layer, and against today's."""

import functools
import warnings

import emulated_jax
import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from deduplicated import EXPERTS, SPREAD, P, check, dispatched, expected, layer_of, run, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_reference import same
from spmd import mesh_of

import fastjax
from fastjax import handlers, moe
from fastjax.errors import FallbackWarning


@pytest.mark.usefixtures("indexed_as")
@pytest.mark.parametrize(
    ("indexed_as", "servers", "devices", "num_experts", "top_k", "at"),
    [
        ("as CPU", 2, 4, 16, 2, "dispatch"),
        ("as CPU", 4, 2, 16, 3, "combine"),
        ("as CPU", 8, 1, 16, 5, "dispatch"),
        ("as CPU", 2, 4, 8, 8, "dispatch"),
        ("as CPU", 4, 2, 64, 1, "dispatch"),
        ("as GPU", 4, 2, 16, 3, "dispatch"),
        ("as GPU", 2, 4, 8, 8, "combine"),
    ],
    indirect=["indexed_as"],
)
def test_values_and_gradients(rng, servers, devices, num_experts, top_k, at):
    problem = reference.problem(rng, 8, 12, num_experts)
    topology = fastjax.Topology(servers, devices)
    assert check(problem, top_k, topology=topology, at=at).all()


PLACED = fastjax.Topology(2, 4, placement=(5, 2, 7, 0, 3, 6, 1, 4))
UNEVEN = fastjax.Topology(4, 2, nic_bandwidths=(50e9, 25e9, 0, 50e9, 5e9, 50e9, 50e9, 50e9))


@pytest.mark.usefixtures("indexed_as")
@pytest.mark.parametrize(
    ("indexed_as", "options"),
    [
        ("as CPU", {"topology": PLACED, "scheduler": "direct"}),
        ("as CPU", {"topology": UNEVEN, "check_vma": False}),
        ("as CPU", {"topology": fastjax.Topology(8, 1), "buffer_factor": 0.3}),
        ("as GPU", {"topology": PLACED, "check_vma": False}),
        (
            "as GPU",
            {"topology": UNEVEN, "scheduler": "fast", "buffer_factor": 0.5, "alignment": 4},
        ),
    ],
    indirect=["indexed_as"],
    ids=str,
)
def test_options(rng, options):
    check(reference.problem(rng, 8, 12, EXPERTS), 3, **options)


def test_where_no_backend_takes_indices(rng, monkeypatch):
    """As on TPUs: rows are copied first, and summed when they are back."""
    monkeypatch.setattr(handlers, "unusable", lambda platform: f"of a test ({platform})")
    with emulated_jax.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        check(reference.problem(rng, 8, 12, EXPERTS), 3)


def test_an_explicit_mesh(rng):
    check(reference.problem(rng, 8, 12, EXPERTS), 3, mesh_of(explicit=True))


@pytest.mark.parametrize(("factor", "alignment"), [(0.1, 4), (1, 4)])
def test_what_is_dropped_is_the_same(rng, factor, alignment):
    """Of repeated choices too, for which there may be less room than by default."""
    x = rng.normal(size=(8 * 12, 6)).astype(np.float32)
    ids = rng.integers(-1, EXPERTS // 4, (8 * 12, 4)).astype(np.int32)

    def local(x, ids, *, deduplicate):
        rows, sizes, handle = dispatched(
            x, ids, buffer_factor=factor, alignment=alignment, deduplicate=deduplicate
        )
        back = moe.combine(rows, handle)
        return sizes, handle.group_rows, handle.kept, handle.dropped[None], back

    one, each = (
        jax.jit(spread(functools.partial(local, deduplicate=once)))(x, ids)
        for once in (True, False)
    )
    assert factor == 1 or not np.asarray(one[2]).all()
    jax.tree.map(np.testing.assert_array_equal, one[:4], each[:4])
    np.testing.assert_allclose(one[4], each[4], rtol=1e-6)


@pytest.mark.usefixtures("indexed_as")
def test_each_row_is_at_its_expert_in_a_fixed_order(rng):
    """By the device that it landed on; within it, the device's own rows first."""
    tokens = 6
    x = np.arange(8 * tokens, dtype=np.float32)[:, None]
    ids = rng.integers(0, EXPERTS, (8 * tokens, 3)).astype(np.int32)
    ids[7] = -1

    def local(x, ids):
        rows, sizes, _ = dispatched(x, ids, topology=fastjax.Topology(2, 4))
        return rows, sizes

    mapped = jax.jit(spread(local))
    rows, sizes = map(np.asarray, mapped(x, ids))
    for device, mine in enumerate(rows.reshape(8, -1)):
        ends = np.cumsum(sizes.reshape(8, -1)[device])
        for number, group in enumerate(np.split(mine[: ends[-1]], ends[:-1])):
            expert = 2 * device + number
            wanted = np.repeat(np.arange(8 * tokens), (ids == expert).sum(1))
            np.testing.assert_array_equal(np.sort(group), wanted)
        np.testing.assert_array_equal(mine[ends[-1] :], 0)
    np.testing.assert_array_equal(mapped(x, ids)[0], rows)


def test_in_a_scan_in_a_checkpoint_and_in_a_batch(rng):
    depth = 2
    x, router, _ = reference.problem(rng, 8, 12, EXPERTS)
    each = [reference.problem(rng, 8, 12, EXPERTS)[2] for _ in range(depth)]
    experts = jax.tree.map(lambda *a: np.stack(a), *each)
    topology = fastjax.Topology(4, 2)
    one = layer_of(3, deduplicate=True, topology=topology, dot=moe.grouped_dot)

    def stack(layer, x, router, experts, parts):
        def body(x, experts):
            split = x.reshape(parts, -1, x.shape[-1])
            made = jax.vmap(lambda part: layer(part, router, experts))(split)
            return x + made.reshape(x.shape), None

        return jax.lax.scan(jax.checkpoint(body, policy=moe.save_plans), x, experts)[0]

    def loss(mapped, *args):
        return jnp.sum(mapped(*args) ** 2)

    def first(*args):
        return one(*args)[0]

    mapped = jax.shard_map(
        functools.partial(stack, first, parts=3),
        mesh=mesh_of(),
        in_specs=(SPREAD, P(), P(None, "x")),
        out_specs=SPREAD,
    )
    dense = functools.partial(
        stack, lambda x, router, experts: reference.dense(x, router, experts, 3), parts=1
    )
    flat = (x.reshape(-1, x.shape[-1]), router, experts)
    got, wanted = (
        jax.jit(jax.value_and_grad(functools.partial(loss, f), (0, 1, 2)))(*flat)
        for f in (mapped, dense)
    )
    same(got, wanted, 1e-4)


def test_several_axes(rng):
    problem = reference.problem(rng, 8, 12, EXPERTS)
    mesh = mesh_of((2, 4), ("a", "b"))
    spec = P(("a", "b"))
    local = layer_of(3, deduplicate=True, axis=("a", "b"), topology=fastjax.Topology(4, 2))
    result, _, _, grads = run(problem, local, mesh, spec=spec)
    same((result, grads), expected(problem, 3))


@pytest.mark.usefixtures("indexed_as")
def test_groups_of_an_axis(rng):
    """Each group, of two servers, has all experts."""
    x = rng.normal(size=(8 * 5, 3)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * 5, 4)).astype(np.int32)
    groups = [[0, 2, 4, 6], [7, 5, 3, 1]]

    def local(x, ids):
        rows, sizes, handle = dispatched(x, ids, axis_index_groups=groups)
        position = jnp.array([0, 3, 1, 2, 2, 1, 3, 0])[jax.lax.axis_index("x")]
        return moe.combine(reference.by_number(rows, sizes, position), handle)

    mapped = jax.jit(spread(local))
    wanted = x * (1 + ids).sum(1, keepdims=True)
    np.testing.assert_allclose(mapped(x, ids), wanted, rtol=1e-5)


ROWS = 8


@functools.cache
def oracle_programs(servers, devices, factor):
    topology = fastjax.Topology(servers, devices)

    def local(x, ids, weights):
        rows, sizes, handle = dispatched(
            x, ids, weights=weights, topology=topology, buffer_factor=factor
        )
        rows = reference.by_number(rows, sizes, jax.lax.axis_index("x"))
        return moe.combine(rows, handle), handle.kept

    oracle = functools.partial(reference.by_collectives, num_experts=EXPERTS, axis="x")
    return jax.jit(spread(local)), jax.jit(spread(oracle))


@settings(max_examples=40)
@given(
    shape_and_top_k=st.sampled_from([((2, 4), 2), ((4, 2), 5), ((8, 1), 3)]),
    factor=st.sampled_from([None, 0.4]),
    popular=st.floats(0, 4),
    holes=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_choices(shape_and_top_k, factor, popular, holes, seed):
    """Against the same in plain collectives: exactly, since all numbers are small integers."""
    shape, top_k = shape_and_top_k
    rng = np.random.default_rng(seed)
    share = np.arange(1, EXPERTS + 1) ** -popular
    ids = rng.choice(EXPERTS, (8 * ROWS, top_k), p=share / share.sum()).astype(np.int32)
    ids[rng.random(ids.shape) < holes] = -1
    x, weights = (rng.integers(-8, 9, (8 * ROWS, n)).astype(np.float32) for n in (3, top_k))
    ours, oracle = oracle_programs(*shape, factor)
    got, kept = ours(x, ids, weights)
    np.testing.assert_array_equal(got, oracle(x, ids, weights, kept))
