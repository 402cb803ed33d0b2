"""Layers that take tokens in rounds where a device has too little room for all: none is dropped."""

import functools

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
    TOPOLOGY,
    WIDTH,
    dense,
    expert,
    gradients_of_dense,
    layer,
    on_devices,
    problem,
    rows_of_experts,
    same,
    scales,
    with_gradients,
)

import fastjax
from fastjax import moe

P = jax.P


@pytest.mark.parametrize(
    "options",
    [
        {"deduplicate": False},
        pytest.param({"deduplicate": True}, marks=pytest.mark.nightly),
        {"deduplicate": True, "chunks": 3, "alignment": 4},
        {"deduplicate": False, "chunks": 2, "buffer_factor": 0.5},
    ],
    ids=lambda options: ",".join(map(str, options.values())),
)
def test_nothing_is_dropped(rng, options):
    run = with_gradients(on_devices(**options))
    for law in ("zipf", "one device", "one expert", "holes"):
        arrays = problem(rng, 17, law)
        (result, stats), gradients = run(*arrays)
        same((result, gradients), gradients_of_dense(*arrays))
        rows = rows_of_experts(stats, arrays[-1])
        np.testing.assert_array_equal(stats.rows, rows.reshape(DEVICES, -1).sum(1))
        assert len({*stats.rounds.tolist()}) == 1
        assert stats.rounds[0] > 1


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_rounds_of_any_tokens(data):
    """Rounds have as many rows as there is room, and no more rounds than that needs parts."""
    tokens = data.draw(st.sampled_from([1, 9]))  # programs are compiled for
    factor = data.draw(st.sampled_from([0.25, 1.25]))
    shape = DEVICES * tokens, TOP_K
    ids = data.draw(st.lists(st.integers(-1, EXPERTS - 1), min_size=shape[0] * shape[1]))
    ids = np.resize(np.array(ids, np.int32), shape)
    run = compiled(tokens, factor)
    x = np.arange(shape[0] * WIDTH, dtype=np.float32).reshape(-1, WIDTH)
    result, rounds = run(x, np.ones(shape, np.float32), scales(), ids)
    number = np.where(ids < 0, 0, ids + 1).sum(1, keepdims=True)
    np.testing.assert_array_equal(result, x * number)
    most = np.bincount(ids[ids >= 0], minlength=EXPERTS).reshape(DEVICES, -1).sum(1).max()
    room = max(int(np.ceil(factor * tokens * TOP_K)), DEVICES * TOP_K)
    part = max(1, room // (DEVICES * TOP_K))
    assert -(-most // room) <= max(1, rounds[0]) <= -(-tokens // part)
    assert rounds[0] == 1 or most > room


@functools.cache
def compiled(tokens, factor):
    def local(x, weights, params, ids):
        result, stats = moe.layer(
            *(x, ids, weights, params),
            expert_fn=lambda rows, scale: rows * scale,
            num_experts=EXPERTS,
            axis_name="x",
            buffer_factor=factor,
            return_stats=True,
        )
        return result, stats.rounds[None]

    del tokens
    return jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x")))


def test_same_sums_in_rounds_and_at_once(rng):
    """To the bit, where experts have no products, which may depend on the rows beside a row."""
    x, weights, _, ids = problem(rng, 20, "one device")
    for deduplicate in (True, False):
        results = []
        for factor in (DEVICES, 1.25):
            options = {"deduplicate": deduplicate, "buffer_factor": factor}
            function = on_devices(lambda rows, scale: rows * scale, **options)
            results.append(jax.jit(function)(x, weights, scales(), ids))
        (at_once, once), (in_rounds, stats) = results
        np.testing.assert_array_equal(at_once, in_rounds)
        assert stats.rounds[0] > once.rounds[0]


@pytest.mark.parametrize(
    ("check_vma", "balance"), [pytest.param(True, False, marks=pytest.mark.nightly), (False, True)]
)
def test_other_rounds_in_each_line_of_a_mesh(rng, check_vma, balance):
    """Lines of devices do not exchange with each other, and params are the same in all.

    With balance, lines have other copies of experts, too.
    """
    mesh = mesh_of((2, 4), ("d", "x"))
    x, weights, params, ids = problem(rng, 16)
    ids[: len(ids) // 2] = np.arange(len(ids) // 2 * TOP_K).reshape(-1, TOP_K) % EXPERTS
    ids[len(ids) // 2 :] = 3

    def local(x, weights, params, ids):
        options = {"topology": fastjax.Topology(2, 2), "return_stats": True, "balance": balance}
        result, stats = layer(x, weights, params, ids, **options)
        return result, stats.rounds[None], stats.copies[None]

    spread = P(("d", "x"))
    specs = {"in_specs": (spread, spread, P("x"), spread), "out_specs": spread}
    mapped = jax.shard_map(local, mesh=mesh, check_vma=check_vma, **specs)
    (result, rounds, copies), got = with_gradients(mapped)(x, weights, params, ids)
    same((result, got), gradients_of_dense(x, weights, params, ids))
    assert rounds[0] == 1 < rounds[-1]
    assert copies.any() == balance


def test_values_around_the_function(rng):
    """The gradients of values that devices share are summed over all, however many rounds."""
    x, weights, _, ids = problem(rng, 9, "one device")

    def loss(scale, x):
        def local(x, ids, weights, scale):
            def function(rows, sizes, params):
                del sizes, params
                return rows * scale

            usual = {"num_experts": EXPERTS, "axis_name": "x", "buffer_factor": 1.25}
            return moe.layer(x, ids, weights, (), grouped_fn=function, **usual)

        specs = (P("x"), P("x"), P("x"), P())
        mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=P("x"))
        return (mapped(x, ids, weights, scale) ** 2).sum()

    dense_loss = lambda scale, x: ((x * scale * weights.sum(1, keepdims=True)) ** 2).sum()  # noqa: E731
    got = jax.jit(jax.grad(loss, (0, 1)))(jnp.float32(1.5), x)
    same(got, jax.grad(dense_loss, (0, 1))(jnp.float32(1.5), x))


@pytest.mark.parametrize("check_vma", [True, False])
def test_collectives_of_the_function(rng, check_vma):
    """Lines of the mesh, which share parts of params, have different numbers of rounds."""
    mesh = mesh_of((2, 4), ("d", "x"))
    x, weights, (up, down), ids = problem(rng, 16)
    ids[: len(ids) // 2] = np.arange(len(ids) // 2 * TOP_K).reshape(-1, TOP_K) % EXPERTS
    ids[len(ids) // 2 :] = 3
    params = np.pad(up, ((0, 0), (0, 0), (0, 1))), np.pad(down, ((0, 0), (0, 1), (0, 0)))

    def gathered(rows, sizes, params):
        whole = (jax.lax.all_gather(params[0], "d", axis=2, tiled=True), params[1])
        return moe.grouped_map(expert, rows, whole, sizes)

    local = functools.partial(
        layer, expert_fn=None, grouped_fn=gathered, topology=fastjax.Topology(2, 2)
    )
    spread = P(("d", "x"))
    split = P("x", None, "d"), P("x")
    specs = {"in_specs": (spread, spread, split, spread), "out_specs": spread}
    mapped = jax.shard_map(local, mesh=mesh, check_vma=check_vma, **specs)
    got = with_gradients(mapped)(x, weights, params, ids)
    same(got, gradients_of_dense(x, weights, params, ids))


@pytest.mark.parametrize(
    "wide", ["x", "weights", pytest.param("params", marks=pytest.mark.nightly)]
)
def test_arrays_that_vary_over_other_axes_too(rng, wide):
    """What does not is the same in both lines of the mesh."""
    mesh = mesh_of((2, 4), ("d", "x"))
    x, weights, params, ids = problem(rng, 16, "one device")
    half = len(x) // 2
    both = lambda name, array: array if name == wide else np.concatenate([array[:half]] * 2)  # noqa: E731
    arrays = both("x", x), both("weights", weights), params, np.concatenate([ids[:half]] * 2)
    spread = {True: P(("d", "x")), False: P("x")}
    given = tuple(a if n == wide else a[:half] for n, a in (("x", x), ("weights", weights)))
    of_lines = jax.tree.map(lambda p: np.concatenate([p, p]), params)
    given = (*given, of_lines if wide == "params" else params, ids[:half])
    specs = (*(spread[wide == name] for name in ("x", "weights", "params")), P("x"))
    local = functools.partial(layer, topology=fastjax.Topology(2, 2))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(("d", "x")))
    at = ("x", "weights", "params").index(wide)
    (result, got), (wanted_result, wanted) = (
        with_gradients(f)(*a) for f, a in ((mapped, given), (dense, arrays))
    )
    same(result, wanted_result)
    got, wanted = got[at], wanted[at]
    if wide == "params":  # those of both lines are one array in the dense layer
        got = jax.tree.map(lambda g: g.reshape(2, EXPERTS, *g.shape[1:]).sum(0), got)
    same(got, wanted)


@pytest.mark.parametrize(
    ("policy", "options"),
    [pytest.param(None, {}, marks=pytest.mark.nightly), (moe.save_plans, BALANCED)],
    ids=["home", "levelled, plans saved"],
)
def test_layers_in_a_scan_and_checkpointed(rng, policy, options):
    x, weights, params, ids = problem(rng, 9, "one device")

    def twice(layer, x, weights, params, ids):
        body = jax.checkpoint(lambda x: layer(x, weights, params, ids), policy=policy)
        return jax.lax.scan(lambda x, _: (x + body(x), None), x, None, 2)[0]

    local = functools.partial(twice, functools.partial(layer, **options))
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    got = with_gradients(mapped)(x, weights, params, ids)
    same(got, with_gradients(functools.partial(twice, dense))(x, weights, params, ids))


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param(BALANCED | {"chunks": 2}, marks=pytest.mark.nightly)],
    ids=["home", "levelled in chunks"],
)
def test_vmap_over_microbatches(rng, options):
    problems = [problem(rng, 8, law) for law in ("zipf", "one device", "holes")]
    params = problems[0][2]
    x, weights, ids = (jnp.stack([p[i] for p in problems]) for i in (0, 1, 3))
    batched = functools.partial(jax.vmap, in_axes=(0, 0, None, 0))
    specs = (P(None, "x"), P(None, "x"), P("x"), P(None, "x"))
    local = batched(functools.partial(layer, **options))
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=P(None, "x"))
    got = with_gradients(mapped)(x, weights, params, ids)
    same(got, with_gradients(batched(dense))(x, weights, params, ids))


@pytest.mark.nightly
def test_second_derivatives(rng):
    x, weights, params, ids = problem(rng, 3, "one expert")
    local = functools.partial(layer, **BALANCED)
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))

    def of_gradient(function):
        loss = lambda x, w, p: (function(x, w, p, ids) ** 2).sum()  # noqa: E731
        squared = lambda *a: sum(  # noqa: E731
            (g**2).sum() for g in jax.tree.leaves(jax.grad(loss, (0, 1, 2))(*a))
        )
        return jax.jit(jax.grad(squared, (0, 1, 2)))(x, weights, params)

    for got, wanted in zip(
        jax.tree.leaves(of_gradient(mapped)), jax.tree.leaves(of_gradient(dense)), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(("deduplicate", "chunks"), [(True, 1), (False, 2)])
def test_drops_if_asked_to(rng, deduplicate, chunks):
    """What is dropped is that of `dispatch`, and counted."""
    x, weights, params, ids = problem(rng, 12)
    options = {"deduplicate": deduplicate, "buffer_factor": 1.25}
    function = on_devices(drop=True, chunks=chunks, **options)
    result, stats = jax.jit(function)(x, weights, params, ids)

    def local(x, ids):
        usual = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY}
        _, _, handle = moe.dispatch(x, ids, **usual, **options)
        return handle.kept, handle.dropped[None], handle.group_rows

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=P("x"), out_specs=P("x"))
    kept, dropped, rows = jax.jit(mapped)(x, ids)
    same(result, dense(x, weights * kept, params, ids))
    assert dropped.any()
    np.testing.assert_array_equal(stats.dropped, dropped)
    np.testing.assert_array_equal(stats.rows, rows.reshape(DEVICES, -1).sum(1))
    np.testing.assert_array_equal(stats.expert_rows[0], np.bincount(ids.ravel(), minlength=EXPERTS))
    assert (stats.rounds == 1).all()


def test_room_is_what_was_asked_for():
    """Of a program, forward and backward: most of the memory is room for rows that seldom come."""
    shapes = (
        jax.ShapeDtypeStruct((DEVICES * 256, 64), jnp.float32),
        jax.ShapeDtypeStruct((DEVICES * 256, TOP_K), jnp.float32),
        tuple(jax.ShapeDtypeStruct((EXPERTS, 64, 64), jnp.float32) for _ in range(2)),
        jax.ShapeDtypeStruct((DEVICES * 256, TOP_K), jnp.int32),
    )
    bytes_of = lambda **options: (  # noqa: E731
        with_gradients(on_devices(**options))
        .lower(*shapes)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )
    default = bytes_of(deduplicate=False, buffer_factor=None)
    assert default < 0.4 * bytes_of(deduplicate=False, buffer_factor=DEVICES)
