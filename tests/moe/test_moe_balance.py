"""Layers whose experts are levelled: devices of a server compute rows of each other's experts."""

import functools
import warnings

import emulated_jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spmd import mesh_of
from whole_layers import (
    BALANCED,
    DEVICES,
    EXPERTS,
    TOP_K,
    dense,
    expert,
    gradients_of_dense,
    ids_of,
    layer,
    on_devices,
    problem,
    rows_of_experts,
    same,
    scales,
    with_gradients,
)

import fastjax
from fastjax import handlers, moe
from fastjax.errors import ArgumentError, FallbackWarning

P = jax.P


@pytest.mark.parametrize(
    "options",
    [
        {"deduplicate": False},
        {"deduplicate": True},
        {"deduplicate": True, "chunks": 3, "alignment": 4, "buffer_factor": None},
        {"deduplicate": False, "chunks": 2, "buffer_factor": 0.5},
        {"deduplicate": True, "copies": 1, "topology": fastjax.Topology(1, 8)},
    ],
    ids=lambda options: ",".join(map(str, options.values())),
)
def test_no_device_of_a_server_has_more_rows_than_others(rng, options):
    options = BALANCED | options
    run = with_gradients(on_devices(**options))
    for law in ("zipf", "one device", "holes"):
        arrays = problem(rng, 33, law)
        (result, stats), gradients = run(*arrays)
        same((result, gradients), gradients_of_dense(*arrays))
        rows = rows_of_experts(stats, arrays[-1])
        servers = options["topology"].servers
        of_servers = np.asarray(stats.rows).reshape(servers, -1)
        np.testing.assert_array_equal(of_servers.sum(1), rows.reshape(servers, -1).sum(1))
        # Each part of a chunk, and each round, is rounded for itself.
        parts = options.get("chunks", 1) * stats.rounds[0]
        assert (of_servers.max(1) <= of_servers.mean(1) + 2 * parts).all()
        assert stats.copies.max() <= options.get("copies", 4)


def slowest(rows):
    """Of devices, server by server: the most rows of one, over the mean of its server."""
    return (rows.max(1) / rows.mean(1)).max()


@pytest.mark.parametrize("deduplicate", [True, False])
def test_statistics_tell_the_load_before_and_after(rng, deduplicate):
    """By numpy, and by what the layer says that its devices compute."""
    tokens, chunks, servers = 96, 3, BALANCED["topology"].servers
    arrays = problem(rng, tokens)
    options = BALANCED | {"buffer_factor": float(DEVICES)}  # room for all, in one round
    function = on_devices(deduplicate=deduplicate, chunks=chunks, **options)
    with fastjax.collect_stats():
        fastjax.reset_stats()
        _, stats = jax.block_until_ready(jax.jit(function)(*arrays))
        sites = [site for site in fastjax.stats() if site.launches]
    (counted,) = [site for site in sites if site.operation == "gather_counts" and site.tokens]
    ids = arrays[-1].reshape(DEVICES, -1)
    at_home = [np.bincount(own // (EXPERTS // DEVICES), minlength=DEVICES) for own in ids]
    np.testing.assert_array_equal(counted.traffic, at_home)
    assert (counted.launches, counted.tokens, counted.choices) == (1, DEVICES * tokens, ids.size)
    assert (counted.rows, counted.scheduler, counted.stages) == (0, "", 0)
    before = slowest(np.sum(at_home, 0).reshape(servers, -1))
    assert counted.slowest == pytest.approx(before)
    scope = "moe_to_experts/" if deduplicate else "moe_dispatch/"
    moving = [s for s in sites if scope in s.name and s.operation == "fast_ragged_all_to_all"]
    moving = [site for site in moving if site.row_bytes > 4]  # not the weights of rows
    assert len(moving) == chunks
    after = slowest(np.asarray(stats.rows).reshape(servers, -1))
    assert before > 2
    assert max(site.slowest for site in moving) < 1.15
    assert after < 1.05
    if not deduplicate:
        rows = np.sum([site.traffic.sum(0) for site in moving], 0)
        np.testing.assert_array_equal(rows, stats.rows)


@pytest.mark.parametrize(
    ("groups", "deduplicate"),
    [([[0, 4, 1, 5], [2, 6, 3, 7]], True), ([[0, 1, 4, 5], [7, 6, 3, 2]], False)],
)
def test_groups_that_are_not_server_major(rng, groups, deduplicate):
    """The experts of a group's devices are in the order of positions, servers in any other."""
    x, weights, params, ids = problem(rng, 16)
    order = np.array(groups).ravel()
    of_groups = jax.tree.map(lambda p: np.stack([p, 2 * p]).reshape(8, -1, *p.shape[1:]), params)
    by_device = jax.tree.map(
        lambda p: np.concatenate(list(p[np.argsort(order)].reshape(8, -1, *p.shape[2:]))), of_groups
    )
    options = BALANCED | {"axis_index_groups": groups, "deduplicate": deduplicate}
    mapped = on_devices(**options)

    def dense_groups(x, weights, params, ids):
        split = lambda a: a.reshape(8, -1, *a.shape[1:])[order].reshape(2, -1, *a.shape[1:])  # noqa: E731
        made = jax.vmap(dense)(
            *(split(a) for a in (x, weights)), jax.tree.map(split, params), split(ids)
        )
        made = made.reshape(8, -1, made.shape[-1])
        return made[np.argsort(order)].reshape(x.shape)

    (result, stats), got = with_gradients(mapped)(x, weights, by_device, ids)
    same((result, got), with_gradients(dense_groups)(x, weights, by_device, ids))
    rows = np.asarray(stats.rows)[order]
    server = order // 4
    for group in (0, 1):
        for at in (0, 1):
            mine = rows[4 * group :][:4][server[4 * group :][:4] == at]
            assert mine.max() <= mine.mean() + 1


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_same_bits_with_and_without(data):
    """Where experts have no products, whose bits may depend on the rows beside a row."""
    tokens, chunks, factor = 9, 3, 0.5  # programs are compiled for
    deduplicate = data.draw(st.booleans())
    shape = DEVICES * tokens, TOP_K
    ids = data.draw(st.lists(st.integers(-1, EXPERTS - 1), min_size=3, max_size=24))
    ids = np.resize(np.array(ids, np.int32), shape)
    seeded = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, weights = seeded.normal(size=(shape[0], 4)), seeded.random(shape)
    arrays = x.astype(np.float32), weights.astype(np.float32), scales(), ids
    plain = compiled(1, None, deduplicate=deduplicate)(*arrays)
    levelled = compiled(chunks, factor, deduplicate=deduplicate, balance=True)(*arrays)
    np.testing.assert_array_equal(levelled, plain)


@functools.cache
def compiled(chunks, factor, **options):
    options |= {"chunks": chunks, "buffer_factor": factor, "topology": BALANCED["topology"]}
    local = functools.partial(layer, expert_fn=lambda rows, scale: rows * scale, **options)
    return jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x")))


@pytest.mark.parametrize("deduplicate", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_drops_what_has_no_room_after_levelling(rng, deduplicate):
    x, weights, params, ids = problem(rng, 24)
    options = BALANCED | {"deduplicate": deduplicate, "buffer_factor": 0.75}
    both = []
    for chunks in (1, 2):
        function = on_devices(drop=True, chunks=chunks, **options)
        result, stats = jax.jit(function)(x, weights, params, ids)
        both.append((result, stats.dropped))
        assert (stats.rows < np.ceil(0.75 * 24 * TOP_K) + chunks).all()
        assert (stats.rounds == 1).all()
    for one, other in zip(*both, strict=True):
        same(one, other)

    def local(x, weights, params, ids):
        usual = {"num_experts": EXPERTS, "axis_name": "x"}
        rows, sizes, handle = moe.dispatch(x, ids, **usual, **options)
        rows = moe.grouped_map(expert, rows, handle.params(params), sizes)
        return moe.combine(rows, handle, weights), handle.kept, handle.dropped[None]

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    (result, kept, dropped), got = with_gradients(mapped)(x, weights, params, ids)
    same(result, both[0][0])
    np.testing.assert_array_equal(dropped, both[0][1])
    assert dropped.sum() == (~kept).sum() > 0
    wanted = functools.partial(lambda *a: dense(a[0], a[1] * kept, *a[2:]))
    same((result, got), with_gradients(wanted)(x, weights, params, ids))


def test_functions_of_all_experts_get_params_of_copies(rng):
    """Any pytree, with leaves of any type; a slot that is not in use has no rows."""
    x, weights, (up, down), ids = problem(rng, 16, "one device")
    params = {"up": up, "down": [down.astype(jnp.bfloat16)], "half": np.arange(EXPERTS) % 2 == 0}

    def whole(rows, sizes, params):
        assert len(sizes) == len(params["half"]) == EXPERTS // DEVICES + 3
        owner = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(rows))
        made = jax.lax.ragged_dot(
            jnp.tanh(jax.lax.ragged_dot(rows, params["up"], sizes)), *down_of(params), sizes
        )
        # Of params of zeros, this is NaN, and JAX multiplies rows by params of all groups.
        norm = jnp.abs(params["up"]).sum((1, 2), keepdims=True)
        one = jax.lax.ragged_dot(jnp.ones_like(rows[:, :1]), norm / norm, sizes)
        return made * one * jnp.where(params["half"][owner], 0.5, 1.0)[:, None]

    def down_of(params):
        return [p.astype(jnp.float32) for p in params["down"]]

    def reference(x, weights, params, ids):
        scale = np.where(np.arange(EXPERTS) % 2 == 0, 0.5, 1.0)[:, None, None]
        return dense(x, weights, (params["up"], down_of(params)[0] * scale), ids)

    function = functools.partial(layer, expert_fn=None, grouped_fn=whole, copies=3, **BALANCED)
    mapped = jax.shard_map(function, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    same(jax.jit(mapped)(x, weights, params, ids), reference(x, weights, params, ids))
    loss = lambda f, floats: (f(x, weights, params | floats, ids) ** 2).sum()  # noqa: E731
    floats = {name: params[name] for name in ("up", "down")}
    got, wanted = (
        jax.jit(jax.grad(functools.partial(loss, f)))(floats) for f in (mapped, reference)
    )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            one.astype(np.float32), other.astype(np.float32), rtol=0.02, atol=0.1
        )


def test_where_axes_are_left_to_xla(rng):
    """Devices along them have the same copies."""
    x, weights, params, ids = problem(rng, 8, "one device")
    local = functools.partial(layer, topology=fastjax.Topology(2, 2), balance=True)
    mesh = mesh_of((4, 2), ("x", "d"))
    specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}}
    mapped = jax.shard_map(local, mesh=mesh, **specs)
    got = with_gradients(mapped)(x, weights, params, ids)
    same(got, gradients_of_dense(x, weights, params, ids))


@pytest.mark.nightly
def test_narrow_types(rng):
    dtype = jnp.bfloat16
    x, weights, params, ids = problem(rng, 16)
    narrow = lambda tree: jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)  # noqa: E731
    x, params = narrow((x, params))
    local = functools.partial(layer, payload_dtype=dtype, **BALANCED)
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    got = with_gradients(mapped)(x, weights, params, ids)
    wide = jax.tree.map(lambda a: np.asarray(a, np.float32), (x, params))
    wanted = gradients_of_dense(wide[0], weights, wide[1], ids)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        size = np.abs(other).max(initial=1)
        np.testing.assert_allclose(np.asarray(one, np.float32), other, atol=0.05 * size)


def test_one_device_a_server_has_nobody_to_share_with(rng):
    arrays = problem(rng, 9)
    function = on_devices(balance=True, topology=fastjax.Topology(8, 1))
    result, stats = jax.jit(function)(*arrays)
    same(result, dense(*arrays))
    assert not stats.copies.any()


@pytest.mark.parametrize("deduplicate", [True, False])
def test_platforms_without_a_backend(rng, monkeypatch, deduplicate):
    arrays = problem(rng, 9)
    options = BALANCED | {"deduplicate": deduplicate, "buffer_factor": 8.0}
    monkeypatch.setattr(handlers, "unusable", lambda platform: f"of a test ({platform})")
    with emulated_jax.installed(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        result, stats = jax.jit(on_devices(**options))(*arrays)
    same(result, dense(*arrays))
    assert stats.copies.any()


def test_params_without_an_entry_for_each_expert_are_refused(rng):
    x, weights, _, ids = problem(rng, 4)
    given = {"expert_fn": None, "grouped_fn": lambda rows, _, p: rows * p}
    local = functools.partial(layer, **given, **BALANCED)
    specs = {"in_specs": (P("x"), P("x"), P(), P("x")), "out_specs": P("x")}
    with pytest.raises(ArgumentError, match="2 experts of this device"):
        jax.eval_shape(
            jax.shard_map(local, mesh=mesh_of(), **specs), x, weights, np.float32(2), ids
        )


def test_ids_that_are_out_of_range_are_refused(rng):
    x, weights, params, _ = problem(rng, 4)
    ids = ids_of(rng, 4, "zipf")
    ids[5, 1] = EXPERTS + 3
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"expert {EXPERTS + 3}"):
        jax.block_until_ready(jax.jit(on_devices(chunks=2, **BALANCED))(x, weights, params, ids))
