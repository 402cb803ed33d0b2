"""`moe.layer` against the same on one device: in rounds, in chunks, and with levelled experts.

Where a device has too little room for all, tokens are taken in rounds, and none is dropped. Where
experts are levelled, devices of a server compute rows of each other's.
"""

import functools
import re

import emulated_jax
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
    SPREAD,
    TOP_K,
    WIDTH,
    P,
    all_experts,
    dense,
    dense_with_gradients,
    expert,
    layer,
    name_of,
    on_devices,
    problem,
    rows_of_experts,
    same,
    scaled,
    scales,
    steps,
    with_gradients,
    with_stats,
)
from spmd import mesh_of

import fastjax
from fastjax import Topology, moe
from fastjax.errors import ArgumentError
from fastjax.traced.after import after
from fastjax.traced.contract import DEAL, LEVEL

EACH, ONCE = {"deduplicate": False}, {"deduplicate": True}
AT_ONCE = {"buffer_factor": float(DEVICES)}  # there is room for all, in one round
LINES = {"topology": Topology(2, 2)}  # of the meshes of two lines, along "x"


def experts_that_wait(rows, sizes, params):
    """That waits for no other device, so there are rounds as of other experts."""
    return all_experts(after(rows, sizes), sizes, params)


@pytest.mark.parametrize(
    "options",
    [
        EACH,
        ONCE | {"chunks": 3, "alignment": 4},
        EACH | {"chunks": 2, "buffer_factor": 0.5},
        pytest.param(
            ONCE | {"chunks": 2, "expert_fn": None, "grouped_fn": experts_that_wait},
            marks=pytest.mark.sanitize,
        ),
        BALANCED | EACH,
        BALANCED | ONCE,
        BALANCED | ONCE | {"chunks": 2, "alignment": 4, "buffer_factor": None},
        BALANCED | EACH | {"chunks": 2, "buffer_factor": 0.5},
        BALANCED | ONCE | {"copies": 1, "topology": Topology(1, 8)},
    ],
    ids=name_of,
)
def test_values_and_gradients(rng, options):
    """And no device of a server has more rows than others, if they are levelled."""
    run = with_gradients(on_devices(with_stats, **options))
    for law in ("zipf", "one device", "one expert", "holes"):
        arrays = problem(rng, 17, law)
        (result, stats), slopes = run(*arrays)
        same((result, slopes), dense_with_gradients(arrays), 2e-5)
        rows = rows_of_experts(stats, arrays[-1])
        if "balance" not in options:
            np.testing.assert_array_equal(stats.rows, rows.reshape(DEVICES, -1).sum(1))
            assert len({*stats.rounds.tolist()}) == 1
            assert stats.rounds[0] > 1
            continue
        servers = options["topology"].servers
        of_servers = np.asarray(stats.rows).reshape(servers, -1)
        np.testing.assert_array_equal(of_servers.sum(1), rows.reshape(servers, -1).sum(1))
        # Each part of a chunk, and each round, is rounded for itself.
        parts = options.get("chunks", 1) * stats.rounds[0]
        assert (of_servers.max(1) <= of_servers.mean(1) + 2 * parts).all()
        assert stats.copies.max() <= options.get("copies", 4)


@pytest.mark.parametrize(
    "options",
    [
        ONCE | {"buffer_factor": 1.25},
        EACH | {"buffer_factor": 1.25, "chunks": 2},
        BALANCED | ONCE | {"buffer_factor": 0.75, "chunks": 2},
        pytest.param(BALANCED | EACH | {"buffer_factor": 0.75}, marks=pytest.mark.nightly),
    ],
    ids=name_of,
)
def test_drops_if_asked_to(rng, options):
    """What is dropped is that of `dispatch`, and counted, in any number of chunks."""
    arrays = problem(rng, 24)
    ids = arrays[-1]
    result, stats = jax.jit(on_devices(with_stats, drop=True, **options))(*arrays)
    options = {name: value for name, value in options.items() if name != "chunks"}
    (in_steps, kept, dropped), slopes = with_gradients(on_devices(steps, **options))(*arrays)
    same((in_steps, slopes), dense_with_gradients(arrays, np.asarray(kept)))
    same(result, in_steps)
    assert dropped.sum() == (~kept).sum() > 0
    np.testing.assert_array_equal(stats.dropped, dropped)
    np.testing.assert_array_equal(stats.expert_rows[0], np.bincount(ids.ravel(), minlength=EXPERTS))
    assert (stats.rounds == 1).all()
    assert stats.rows.sum() == kept.sum()
    if "balance" not in options:
        of_devices = np.bincount(ids[kept] // (EXPERTS // DEVICES), minlength=DEVICES)
        np.testing.assert_array_equal(stats.rows, of_devices)


IN_ROUNDS = [  # each is a program: tokens, and options
    (9, EACH | {"buffer_factor": 1.25}),
    (1, EACH | {"buffer_factor": 0.25}),
    (9, ONCE | {"buffer_factor": 0.25}),
    (9, BALANCED | EACH | {"buffer_factor": 0.5, "chunks": 3}),
    (9, BALANCED | ONCE | {"buffer_factor": 0.5, "chunks": 3}),
]


@functools.cache
def program(**options):
    """Of experts without products."""
    usual = {"expert_fn": scaled, "topology": Topology(2, 4)}
    return jax.jit(on_devices(with_stats, **usual | options))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_same_bits_in_rounds_and_at_once(data):
    """Rounds have as many rows as there is room, and no more rounds than that needs parts."""
    tokens, options = data.draw(st.sampled_from(IN_ROUNDS))
    shape = DEVICES * tokens, TOP_K
    ids = data.draw(st.lists(st.integers(-1, EXPERTS - 1), min_size=3, max_size=24))
    ids = np.resize(np.array(ids, np.int32), shape)
    seeded = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, weights = seeded.normal(size=(shape[0], WIDTH)), seeded.random(shape)
    arrays = x.astype(np.float32), weights.astype(np.float32), scales(), ids
    result, stats = program(**options)(*arrays)
    at_once, once = program(deduplicate=options["deduplicate"], **AT_ONCE)(*arrays)
    np.testing.assert_array_equal(result, at_once)
    same(result, dense(*arrays, expert=scaled))
    assert (once.rounds <= 1).all()
    if options["deduplicate"] or "balance" in options:
        return
    most = np.bincount(ids[ids >= 0], minlength=EXPERTS).reshape(DEVICES, -1).sum(1).max()
    room = max(int(np.ceil(options["buffer_factor"] * tokens * TOP_K)), DEVICES * TOP_K)
    part = max(1, room // (DEVICES * TOP_K))
    assert -(-most // room) <= max(1, stats.rounds[0]) <= -(-tokens // part)
    assert stats.rounds[0] == 1 or most > room


# ---- meshes of more axes than the layer's, and groups


def two_lines(rng):
    """A problem of which one half of the devices needs a round, and the other more."""
    x, weights, params, ids = problem(rng, 16)
    ids[: len(ids) // 2] = np.arange(len(ids) // 2 * TOP_K).reshape(-1, TOP_K) % EXPERTS
    ids[len(ids) // 2 :] = 3
    return x, weights, params, ids


BOTH = P(("d", "x"))


@pytest.mark.parametrize(
    ("check_vma", "balance"), [pytest.param(True, False, marks=pytest.mark.nightly), (False, True)]
)
def test_other_rounds_in_each_line_of_a_mesh(rng, check_vma, balance):
    """Lines of devices do not exchange with each other, and params are the same in all.

    With balance, lines have other copies of experts, too.
    """
    arrays = two_lines(rng)
    run = lambda *arrays, **options: _told(with_stats(*arrays, **options))  # noqa: E731
    mapped = jax.shard_map(
        functools.partial(run, balance=balance, **LINES),
        mesh=mesh_of((2, 4), ("d", "x")),
        in_specs=(BOTH, BOTH, SPREAD, BOTH),
        out_specs=BOTH,
        check_vma=check_vma,
    )
    (result, rounds, copies), slopes = with_gradients(mapped)(*arrays)
    same((result, slopes), dense_with_gradients(arrays))
    assert rounds[0] == 1 < rounds[-1]
    assert copies.any() == balance


def _told(made):
    result, stats = made
    return result, stats.rounds, stats.copies


@pytest.mark.parametrize("check_vma", [True, False])
def test_collectives_of_the_function(rng, check_vma):
    """Lines of the mesh, which share parts of params, have different numbers of rounds."""
    x, weights, (up, down), ids = two_lines(rng)

    def gathered(rows, sizes, params):
        whole = (jax.lax.all_gather(params[0], "d", axis=2, tiled=True), params[1])
        return moe.grouped_map(expert, rows, whole, sizes)

    mapped = jax.shard_map(
        functools.partial(layer, expert_fn=None, grouped_fn=gathered, **LINES),
        mesh=mesh_of((2, 4), ("d", "x")),
        in_specs=(BOTH, BOTH, (P("x", None, "d"), SPREAD), BOTH),
        out_specs=BOTH,
        check_vma=check_vma,
    )
    arrays = x, weights, (up, down), ids
    same(with_gradients(mapped)(*arrays), dense_with_gradients(arrays))


@pytest.mark.parametrize(
    "wide", ["x", "weights", pytest.param("params", marks=pytest.mark.nightly)]
)
def test_arrays_that_vary_over_other_axes_too(rng, wide):
    """What does not is the same in both lines of the mesh."""
    x, weights, params, ids = problem(rng, 16, "one device")
    half = len(x) // 2
    both = lambda name, array: array if name == wide else np.concatenate([array[:half]] * 2)  # noqa: E731
    arrays = both("x", x), both("weights", weights), params, np.concatenate([ids[:half]] * 2)
    spread = {True: BOTH, False: SPREAD}
    given = tuple(a if n == wide else a[:half] for n, a in (("x", x), ("weights", weights)))
    of_lines = jax.tree.map(lambda p: np.concatenate([p, p]), params)
    given = (*given, of_lines if wide == "params" else params, ids[:half])
    specs = (*(spread[wide == name] for name in ("x", "weights", "params")), SPREAD)
    mapped = jax.shard_map(
        functools.partial(layer, **LINES),
        mesh=mesh_of((2, 4), ("d", "x")),
        in_specs=specs,
        out_specs=BOTH,
    )
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
    "options",
    [{"balance": True}, EACH | AT_ONCE | {"check_vma": False}, ONCE | AT_ONCE],
    ids=name_of,
)
def test_where_axes_are_left_to_xla(rng, options):
    """Devices along them have the same copies."""
    arrays = problem(rng, 8, "one device")
    mesh = mesh_of((4, 2), ("x", "d"))
    mapped = on_devices(layer, mesh, axis_names={"x"}, **LINES | options)
    same(with_gradients(mapped)(*arrays), dense_with_gradients(arrays))


@pytest.mark.parametrize(
    ("function", "groups", "options"),
    [
        (steps, [[0, 2, 4, 6], [7, 5, 3, 1]], EACH),
        (steps, [[0, 2, 4, 6], [7, 5, 3, 1]], ONCE),
        (with_stats, [[0, 4, 1, 5], [2, 6, 3, 7]], BALANCED | ONCE | AT_ONCE),
        (with_stats, [[0, 1, 4, 5], [7, 6, 3, 2]], BALANCED | EACH | AT_ONCE),
    ],
)
def test_groups_of_an_axis(rng, function, groups, options):
    """Each has all experts, in the order of its positions; servers may be in any other."""
    x, weights, params, ids = problem(rng, 16)
    order = np.array(groups).ravel()
    of_groups = jax.tree.map(lambda p: np.stack([p, 2 * p]).reshape(8, -1, *p.shape[1:]), params)
    by_device = jax.tree.map(
        lambda p: np.concatenate(list(p[np.argsort(order)].reshape(8, -1, *p.shape[2:]))), of_groups
    )
    mapped = on_devices(function, axis_index_groups=groups, num_experts=EXPERTS, **options)

    def dense_groups(x, weights, params, ids):
        split = lambda a: a.reshape(8, -1, *a.shape[1:])[order].reshape(2, -1, *a.shape[1:])  # noqa: E731
        made = jax.vmap(dense)(
            *(split(a) for a in (x, weights)), jax.tree.map(split, params), split(ids)
        )
        made = made.reshape(8, -1, made.shape[-1])
        return made[np.argsort(order)].reshape(x.shape)

    (result, *told), slopes = with_gradients(mapped)(x, weights, by_device, ids)
    same((result, slopes), with_gradients(dense_groups)(x, weights, by_device, ids))
    if function is steps:
        return
    rows = np.asarray(told[0].rows)[order]
    server = order // 4
    for group in (0, 1):
        for at in (0, 1):
            mine = rows[4 * group :][:4][server[4 * group :][:4] == at]
            assert mine.max() <= mine.mean() + 1


# ---- functions of experts


@pytest.mark.parametrize("deduplicate", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_experts_that_use_traced_values(rng, deduplicate):
    """Of any type, made in a loop around the layer."""
    arrays = problem(rng, 4)

    def gradients(chunks):
        def local(x, weights, params, ids, scale):
            def body(rows, key):
                mask = jax.random.bernoulli(key, 0.5, rows.shape[1:])
                shift = jax.random.randint(key, (), 0, 3)

                def function(rows, sizes, params):
                    return all_experts(rows, sizes, params) * mask * scale + shift

                options = {"deduplicate": deduplicate, "grouped_fn": function, "chunks": chunks}
                return layer(rows, weights, params, ids, None, drop=True, **options), None

            return jax.lax.scan(body, x, jax.random.split(jax.random.key(0), 2))[0]

        specs = (*[SPREAD] * 4, P())
        mapped = on_devices(local, specs=specs, check_vma=False)
        loss = jax.jit(jax.grad(lambda *given: (mapped(*given) ** 2).sum(), (0, 1, 2, 4)))
        return loss(*arrays, np.float32(1.5))

    same(gradients(2), gradients(1), 1e-4)


@pytest.mark.parametrize("options", [{"chunks": 2} | AT_ONCE, {"buffer_factor": 0.5}], ids=name_of)
def test_numbers_of_python_among_params(rng, options):
    x, weights, _, ids = problem(rng, 9)

    def function(rows, sizes, params):
        return rows * params["scale"] + params["shift"]

    def local(x, weights, ids):
        params = {"scale": 0.5, "shift": 2}
        return layer(x, weights, params, ids, None, grouped_fn=function, **options)

    def loss(x):
        made = on_devices(local, check_vma=False)(x, weights, ids)
        return (made**2).sum(), made

    slopes, result = jax.jit(jax.grad(loss, has_aux=True))(x)
    given = np.where(ids < 0, 0, weights).sum(1, keepdims=True)
    wanted = given * (0.5 * x + 2)
    same((result, slopes), (wanted, given * wanted))


def test_functions_of_all_experts_get_params_of_copies(rng):
    """Any pytree, with leaves of any type; a slot that is not in use has no rows."""
    x, weights, (up, down), ids = problem(rng, 16, "one device")
    params = {"up": up, "down": [down.astype(jnp.bfloat16)], "half": np.arange(EXPERTS) % 2 == 0}

    def whole(rows, sizes, params):
        assert len(sizes) == len(params["half"]) == EXPERTS // DEVICES + 3
        owner = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(rows))
        made = all_experts(rows, sizes, (params["up"], *down_of(params)))
        # Of params of zeros, this is NaN, and JAX multiplies rows by params of all groups.
        norm = jnp.abs(params["up"]).sum((1, 2), keepdims=True)
        one = jax.lax.ragged_dot(jnp.ones_like(rows[:, :1]), norm / norm, sizes)
        return made * one * jnp.where(params["half"][owner], 0.5, 1.0)[:, None]

    def down_of(params):
        return [p.astype(jnp.float32) for p in params["down"]]

    def reference(x, weights, params, ids):
        scale = np.where(np.arange(EXPERTS) % 2 == 0, 0.5, 1.0)[:, None, None]
        return dense(x, weights, (params["up"], down_of(params)[0] * scale), ids)

    mapped = on_devices(layer, expert_fn=None, grouped_fn=whole, copies=3, **BALANCED)
    floats = {name: params[name] for name in ("up", "down")}

    def slopes(function):
        def loss(floats):
            made = function(x, weights, params | floats, ids)
            return (made**2).sum(), made

        return jax.jit(jax.grad(loss, has_aux=True))(floats)

    (got, result), (wanted, wanted_result) = map(slopes, (mapped, reference))
    same(result, wanted_result)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            one.astype(np.float32), other.astype(np.float32), rtol=0.02, atol=0.1
        )


# ---- the rest


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "gradients"), [(EACH | {"chunks": 1}, False), (ONCE | {"chunks": 2}, True)]
)
def test_outside_of_jit(rng, options, gradients):
    """Each operation is compiled alone."""
    arrays = problem(rng, 4)
    step = on_devices(layer, drop=True, **options)
    if gradients:
        step = with_gradients(step).__wrapped__
    same(step(*arrays), jax.jit(step)(*arrays))


def slowest(rows):
    """Of devices, server by server: the most rows of one, over the mean of its server."""
    return (rows.max(1) / rows.mean(1)).max()


@pytest.mark.parametrize("deduplicate", [True, False])
def test_statistics_tell_the_load_before_and_after(rng, deduplicate):
    """By numpy, and by what the layer says that its devices compute."""
    tokens, chunks, servers = 96, 3, BALANCED["topology"].servers
    arrays = problem(rng, tokens)
    options = BALANCED | AT_ONCE | {"deduplicate": deduplicate, "chunks": chunks}
    function = on_devices(with_stats, **options)
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
    assert before > 1.5
    assert max(site.slowest for site in moving) < 1.15
    assert after < 1.05
    if not deduplicate:
        rows = np.sum([site.traffic.sum(0) for site in moving], 0)
        np.testing.assert_array_equal(rows, stats.rows)


def test_one_device_a_server_has_nobody_to_share_with(rng):
    arrays = problem(rng, 9)
    function = on_devices(with_stats, balance=True, topology=Topology(8, 1))
    result, stats = jax.jit(function)(*arrays)
    same(result, dense(*arrays))
    assert not stats.copies.any()


@pytest.mark.parametrize("deduplicate", [True, False])
def test_platforms_without_a_backend(rng, deduplicate):
    """A layer computes what it does on CPU devices with our own exchanges."""
    arrays = problem(rng, 9, "holes")
    options = BALANCED | AT_ONCE | {"deduplicate": deduplicate}
    with emulated_jax.in_place_of_ours():
        step = with_gradients(on_devices(with_stats, **options))
        calls = set(re.findall(r"@(fastjax_\w+)", step.lower(*arrays).as_text()))
        assert calls <= {LEVEL.target, DEAL.target}  # which exchange nothing
        (result, stats), slopes = step(*arrays)
    same((result, slopes), dense_with_gradients(arrays))
    assert stats.copies.any()


def test_params_without_an_entry_for_each_expert_are_refused(rng):
    x, weights, _, ids = problem(rng, 4)
    given = {"expert_fn": None, "grouped_fn": lambda rows, _, p: rows * p}
    mapped = on_devices(layer, specs=(SPREAD, SPREAD, P(), SPREAD), **given, **BALANCED)
    with pytest.raises(ArgumentError, match="2 experts of this device"):
        jax.eval_shape(mapped, x, weights, np.float32(2), ids)


def test_room_is_what_was_asked_for():
    """Of a program, forward and backward: most of the memory is room for rows that seldom come."""
    shapes = (
        jax.ShapeDtypeStruct((DEVICES * 256, 64), jnp.float32),
        jax.ShapeDtypeStruct((DEVICES * 256, TOP_K), jnp.float32),
        tuple(jax.ShapeDtypeStruct((EXPERTS, 64, 64), jnp.float32) for _ in range(2)),
        jax.ShapeDtypeStruct((DEVICES * 256, TOP_K), jnp.int32),
    )
    bytes_of = lambda **options: (  # noqa: E731
        with_gradients(on_devices(layer, deduplicate=False, **options))
        .lower(*shapes)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )
    assert bytes_of(buffer_factor=None) < 0.4 * bytes_of(buffer_factor=DEVICES)
