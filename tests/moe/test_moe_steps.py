"""Dispatch, experts and combine, against the same layer on one device: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchange_checks.backends import same as equal
from moe_layers import (
    DEVICES,
    EXPERTS,
    SPREAD,
    P,
    all_experts,
    by_number,
    dense,
    dense_with_gradients,
    dispatched,
    equations,
    layer,
    name_of,
    on_devices,
    problem,
    same,
    steps,
    with_gradients,
)
from spmd import mesh_of, spmd

import fastjax
from fastjax import Topology, moe

EACH, ONCE = {"deduplicate": False}, {"deduplicate": True}
PLACED = Topology(2, 4, placement=(5, 2, 7, 0, 3, 6, 1, 4))
UNEVEN = Topology(4, 2, nic_bandwidths=(50e9, 25e9, 0, 50e9, 5e9, 50e9, 50e9, 50e9))
TILED = functools.partial(all_experts, dot=moe.grouped_dot)

in_turn = functools.partial(pytest.mark.parametrize, indirect=["indexed_as"])


def check(rng, *, law="zipf", devices=DEVICES, experts=EXPERTS, top_k=3, explicit=False, **options):
    """What a layer keeps, whose values and gradients are those of the choices that it keeps."""
    arrays = problem(rng, 12, law, devices=devices, experts=experts, top_k=top_k)
    mesh = mesh_of((devices,), explicit=explicit)
    functions = {"experts": options.pop("functions")} if "functions" in options else {}
    mapped = on_devices(functools.partial(steps, **functions), mesh, **options)
    put = jax.device_put(arrays, jax.NamedSharding(mesh, SPREAD))
    (result, kept, dropped), slopes = with_gradients(mapped)(*put)
    assert dropped.sum() == (~kept & (arrays[-1] >= 0)).sum()
    same((result, slopes), dense_with_gradients(arrays, np.asarray(kept)))
    return kept | (arrays[-1] < 0)


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "options"),
    [
        ("as CPU", EACH | {"devices": 1, "top_k": 2, "topology": None}),
        ("as CPU", EACH | {"devices": 4, "topology": None, "explicit": True}),
        ("as CPU", EACH | {"top_k": 1, "topology": Topology(1, 8), "check_vma": False}),
        ("as CPU", EACH | {"top_k": 16, "topology": Topology(2, 4), "scheduler": "fast"}),
        (
            "as CPU",
            EACH | {"experts": 24, "scheduler": "rails", "functions": TILED, "alignment": 4},
        ),
        ("as CPU", EACH | {"experts": 8, "explicit": True, "check_vma": False}),
        ("as CPU", EACH | {"topology": Topology(8, 1), "scheduler": "spreadout", "at": "dispatch"}),
        ("as CPU", ONCE | {"top_k": 2, "topology": Topology(2, 4), "at": "dispatch"}),
        pytest.param("as CPU", ONCE | {"explicit": True}, marks=pytest.mark.every_jax),
        ("as CPU", ONCE | {"top_k": 5, "topology": Topology(8, 1), "at": "dispatch"}),
        ("as CPU", ONCE | {"experts": 8, "top_k": 8, "topology": Topology(2, 4), "at": "dispatch"}),
        ("as CPU", ONCE | {"experts": 64, "top_k": 1, "at": "dispatch"}),
        ("as GPU", ONCE | {"at": "dispatch"}),
        ("as GPU", ONCE | {"experts": 8, "top_k": 8, "topology": Topology(2, 4)}),
        ("as CPU", ONCE | {"topology": PLACED, "scheduler": "direct"}),
        ("as CPU", ONCE | {"topology": UNEVEN, "check_vma": False}),
        ("as GPU", ONCE | {"topology": PLACED, "check_vma": False}),
    ],
    ids=name_of,
)
@pytest.mark.sanitize
def test_values_and_gradients(rng, options):
    assert check(rng, **options).all()


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "options"),
    [
        ("as CPU", {"topology": Topology(8, 1), "buffer_factor": 0.3, "law": "holes"}),
        ("as GPU", {"topology": UNEVEN, "scheduler": "fast", "buffer_factor": 0.5, "alignment": 4}),
    ],
    ids=name_of,
)
def test_tokens_that_cross_once_and_find_little_room(rng, options):
    assert not check(rng, **ONCE | options).all()


@pytest.mark.parametrize(
    ("names", "tokens", "experts", "options"),
    [
        (("data", "x"), P(("data", "x")), SPREAD, EACH),
        (("x", "tensor"), SPREAD, SPREAD, EACH),
        (("a", "b"), P(("a", "b")), P(("a", "b")), ONCE | {"axis_name": ("a", "b")}),
    ],
    ids=["in data parallelism", "beside tensor", "several axes"],
)
def test_axes_of_a_mesh(rng, names, tokens, experts, options):
    arrays = problem(rng, 12)
    specs = tokens, tokens, experts, tokens
    local = lambda *arrays, **options: steps(*arrays, **options)[0]  # noqa: E731
    given = {"topology": Topology(4, 2) if options["deduplicate"] else None} | options
    mapped = on_devices(local, mesh_of((2, 4), names), specs, **given)
    same(with_gradients(mapped)(*arrays), dense_with_gradients(arrays))


def kept_by_hand(ids, num_experts, rows, alignment):
    """Which choices stay, row by row: each device in turn takes one from whoever has most.

    Args:
      ids: shape (devices, tokens, k).
      num_experts: of all devices.
      rows: room of each device.
      alignment: what experts' rows are padded to.
    """
    devices = len(ids)
    local = num_experts // devices
    counts = np.stack([np.bincount(d[d >= 0], minlength=num_experts) for d in ids])
    for first in range(0, num_experts, local):
        mine = range(first, first + local)
        tiles = {e: -(-counts[:, e].sum() // alignment) for e in mine}
        while sum(tiles.values()) > rows // alignment:
            # The last of the most popular, so that what is left over goes to the first of them.
            tiles[max(mine, key=lambda e: (tiles[e], e))] -= 1
        for e in mine:
            while counts[:, e].sum() > tiles[e] * alignment:
                counts[max(range(devices), key=lambda d: (counts[d, e], d)), e] -= 1
    kept = np.zeros(ids.shape, bool)
    for device, token, choice in np.ndindex(ids.shape):
        expert = ids[device, token, choice]
        if expert >= 0:
            kept[device, token, choice] = counts[device, expert] > 0
            counts[device, expert] -= 1
    return kept


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize(
    ("experts", "factor", "alignment", "law"),
    [
        (8, 0.1, 1, "zipf"),
        (16, 0.5, 1, "holes"),
        (16, 1, 4, "zipf"),
        (8, None, 1, "one expert"),  # of which there is room for one choice of each token
        (8, 100, 1, "one expert"),
    ],
)
def test_little_room(rng, deduplicate, experts, factor, alignment, law):
    """What does not fit is the same either way, and is told."""
    arrays = problem(rng, 12, law, experts=experts, top_k=2)
    options = {"buffer_factor": factor, "alignment": alignment, "deduplicate": deduplicate}
    (result, kept, dropped), slopes = with_gradients(on_devices(steps, **options))(*arrays)
    local = experts // 8
    room = 8 * 12 if factor is None else min(int(np.ceil(factor * 24)), 8 * 24)
    room = -(-(room + local * (alignment - 1)) // alignment) * alignment
    by_hand = kept_by_hand(arrays[-1].reshape(8, 12, 2), experts, room, alignment)
    np.testing.assert_array_equal(kept.reshape(by_hand.shape), by_hand)
    there = arrays[-1].reshape(by_hand.shape) >= 0
    np.testing.assert_array_equal(dropped, (there & ~by_hand).sum((1, 2)))
    assert (factor == 100) == (by_hand == there).all()
    same((result, slopes), dense_with_gradients(arrays, np.asarray(kept)))


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


@pytest.mark.usefixtures("indexed_as")
def test_rows_that_crossed_once_are_at_their_experts_in_a_fixed_order(rng):
    tokens = 6
    x = np.arange(8 * tokens, dtype=np.float32)[:, None]
    ids = rng.integers(0, EXPERTS, (8 * tokens, 3)).astype(np.int32)
    ids[7] = -1
    mapped = jax.jit(on_devices(lambda x, ids: dispatched(x, ids, topology=Topology(2, 4))[:2]))
    rows, sizes = map(np.asarray, mapped(x, ids))
    for device, mine in enumerate(rows.reshape(8, -1)):
        ends = np.cumsum(sizes.reshape(8, -1)[device])
        for number, group in enumerate(np.split(mine[: ends[-1]], ends[:-1])):
            expert = 2 * device + number
            wanted = np.repeat(np.arange(8 * tokens), (ids == expert).sum(1))
            np.testing.assert_array_equal(np.sort(group), wanted)
        np.testing.assert_array_equal(mine[ends[-1] :], 0)
    np.testing.assert_array_equal(mapped(x, ids)[0], rows)


# ---- rows of all types


def sent_and_returned(x, ids, weights=None, **options):
    """Tokens that experts leave as they are; x: of one type, or of several."""

    def local(x, ids):
        made = (dispatched(each, ids, deduplicate=False, **options) for each in x)
        return [
            moe.combine(
                rows, h, None if weights is None else jnp.broadcast_to(weights, h.kept.shape)
            )
            for rows, _, h in made
        ]

    found = jax.jit(on_devices(local))(list(x) if isinstance(x, tuple) else [x], ids)
    return found if isinstance(x, tuple) else found[0]


def test_narrow_tokens_are_summed_in_wide_ones(rng):
    """Weights that are lost if sums, or weights, are as narrow as the rows."""
    dtypes = jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2
    tokens = tuple(rng.normal(size=(32, 3)).astype(dtype) for dtype in dtypes)
    ids = np.tile(np.arange(8, dtype=np.int32), (32, 1))
    weights = np.array([1] + [0.02] * 7, np.float32)
    for x, got in zip(tokens, sent_and_returned(tokens, ids, weights), strict=True):
        assert got.dtype == x.dtype
        wanted = (x.astype(np.float32) * weights.sum()).astype(x.dtype)
        eps = float(jnp.finfo(x.dtype).eps)
        np.testing.assert_allclose(
            got.astype(np.float32), wanted.astype(np.float32), rtol=1.01 * eps, atol=1e-3
        )
        assert np.mean(np.asarray(got == wanted)) > 0.9  # but for ties in rounding


INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)


def numbers(rng, dtype, shape=(40, 3)):
    """Of integers those that float32 does not hold."""
    high = np.iinfo(dtype).max if dtype in INTEGERS else 8 if dtype == jnp.int4 else 2
    return rng.integers(high // 2 if high > 2 else 0, high, shape).astype(dtype)


@pytest.mark.usefixtures("indexed_as")
@in_turn(("indexed_as", "deduplicate"), [("as CPU", False), ("as CPU", True), ("as GPU", True)])
def test_tokens_of_any_type(rng, deduplicate):
    """What one expert leaves as it is comes back as it was."""
    others = bool, jnp.int4, jnp.float8_e5m2, np.complex64
    tokens = [numbers(rng, dtype) for dtype in (*INTEGERS, *others)]
    ids = rng.integers(0, EXPERTS, (40, 1)).astype(np.int32)

    def local(tokens, ids):
        made = (dispatched(x, ids, deduplicate=deduplicate) for x in tokens)
        return [moe.combine(rows, handle) for rows, _, handle in made]

    for got, x in zip(jax.jit(on_devices(local))(tokens, ids), tokens, strict=True):
        equal(got, x)


@pytest.mark.usefixtures("indexed_as")
def test_integer_rows_with_weights(rng):
    """They are rounded once, at the end."""
    tokens = [rng.integers(0, 9, (40, 3)).astype(t) for t in (np.int8, np.uint16, np.int32, bool)]
    ids = rng.integers(0, EXPERTS, (40, 3)).astype(np.int32)
    weights = rng.integers(1, 8, (40, 3)).astype(np.float32) / 8

    def local(tokens, ids, weights):
        return [
            [moe.combine(rows, handle) for rows, _, handle in made]
            for made in (
                [dispatched(x, ids, weights=weights, deduplicate=once) for x in tokens]
                for once in (True, False)
            )
        ]

    got, wanted = jax.jit(on_devices(local))(tokens, ids, weights)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize(
    ("payload", "ways"),
    [
        (jnp.bfloat16, "there"),  # of two bytes
        (jnp.bfloat16, "back"),
        (jnp.float16, "both"),
        (jnp.float8_e4m3fn, "there"),  # of one, with scales
        (jnp.float8_e4m3fn, "back"),
        (jnp.float8_e5m2, "both"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
def test_narrow_payloads(rng, payload, ways):
    """Rows are rounded as the type says, once for each way, and by nothing else."""
    arrays = problem(rng, 12, top_k=2)
    there, back = (payload if ways in (way, "both") else None for way in ("there", "back"))
    options = {"combined": {"payload_dtype": back}, "payload_dtype": there, "deduplicate": False}
    (result, *_), slopes = with_gradients(on_devices(steps, **options))(*arrays)
    wanted, wanted_slopes = dense_with_gradients(arrays, rounding=(there, back))
    # What rounds differently after sums in another order shows in the second way.
    same(result, wanted, 1e-5 if ways == "there" else 0.1 * float(jnp.finfo(payload).eps) + 1e-5)
    # Gradients travel in the type too, unless it is of one byte.
    rounds_gradients = np.dtype(payload).itemsize == 2
    same(slopes, wanted_slopes, 2 * float(jnp.finfo(payload).eps) if rounds_gradients else 0.02)


@pytest.mark.usefixtures("indexed_as")
@in_turn(
    ("indexed_as", "payload"),
    [("as CPU", jnp.bfloat16), ("as GPU", jnp.float16), ("as CPU", jnp.float8_e4m3fn)],
)
def test_narrow_payloads_that_cross_once(rng, payload):
    """Rows are as exact as their type says, once for each way."""
    arrays = problem(rng, 12)
    options = {"combined": {"payload_dtype": payload}, "payload_dtype": payload} | ONCE
    (result, *_), slopes = with_gradients(on_devices(steps, at="dispatch", **options))(*arrays)
    tolerance = (8 if np.dtype(payload).itemsize == 2 else 1) * float(jnp.finfo(payload).eps)
    same((result, slopes), dense_with_gradients(arrays), tolerance)


def test_rows_of_any_scale_travel_in_one_byte(rng):
    """Each row has its own scale: no row is lost beside a larger one, and none is made infinite."""
    exponents = rng.integers(-45, 38, (128, 1)).astype(np.float64)
    exponents[:4, 0] = (-33, -34, -36, 38)
    x = (rng.uniform(0.5, 1, size=(128, 4)) * 10.0**exponents).astype(np.float32)
    x[5] = 0
    ids = rng.integers(0, 8, (128, 1)).astype(np.int32)
    for payload in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        got = np.asarray(sent_and_returned(x, ids, payload_dtype=payload), np.float64)
        largest = np.abs(x).max(1).astype(np.float64)
        # Smaller rows lose precision, as they do in float32.
        least = 2 * float(jnp.finfo(payload).max) * float(np.finfo(np.float32).tiny)
        error = np.abs(got - x).max(1) / np.maximum(largest, least)
        assert error.max() < float(jnp.finfo(payload).eps)
        np.testing.assert_array_equal(got[5], 0)


def test_not_finite_rows_stay_so_and_harm_no_others(rng):
    x = rng.normal(size=(32, 3)).astype(np.float32)
    x[9, 0], x[20, 2] = np.inf, np.nan
    ids = rng.integers(0, 8, (32, 1)).astype(np.int32)
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


# ---- in which order tokens that cross once are summed


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
        rows = by_number(rows, sizes, jax.lax.axis_index("x"))
        return moe.combine(rows, handle, payload_dtype=crossing)

    got = np.asarray(jax.jit(on_devices(local))(x, ids, weights))
    wanted = in_order(x, ids, weights, 4, crossing or dtype, by_choice=indexed_as == "as GPU")
    np.testing.assert_array_equal(got, wanted)


# ---- inside what JAX programs are made of


def planning_equations(jaxpr):
    """How often a program plans, as it is written."""
    planning = (e for e in equations(jaxpr) if e.primitive.name == "plan_ragged_all_to_all")
    return sum(e.params["plans"] for e in planning)


@pytest.mark.parametrize(
    ("function", "options", "policy", "wanted"),
    [
        (steps, EACH, moe.save_plans, 1),
        (steps, EACH, None, 2),
        (layer, EACH | {"chunks": 2, "drop": True}, moe.save_plans, 2),
        (layer, ONCE | {"chunks": 2, "drop": True}, moe.save_plans, 4),  # two are inside servers
    ],
)
def test_saved_plans_are_not_made_again(rng, function, options, policy, wanted):
    local = jax.checkpoint(functools.partial(function, **options), policy=policy)
    step = with_gradients(on_devices(local))
    assert planning_equations(jax.make_jaxpr(step)(*problem(rng, 6)).jaxpr) == wanted


def stacked(one, parts, x, weights, params, ids):
    """Layers one after the other, each of which is made again for gradients; microbatches."""
    split = lambda a: a.reshape(parts, -1, *a.shape[1:])  # noqa: E731

    def body(x, params):
        number, params = params
        chosen = split((ids + number) % EXPERTS)
        made = jax.vmap(one, (0, 0, None, 0))(split(x), split(weights), params, chosen)
        return x + made.reshape(x.shape), None

    body = jax.checkpoint(body, policy=moe.save_plans)
    return jax.lax.scan(body, x, (jnp.arange(2, dtype=jnp.int32), params))[0]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (steps, EACH | {"experts": TILED}),
        (steps, ONCE | {"experts": TILED}),
        pytest.param(layer, {}, marks=pytest.mark.nightly),
        (layer, {"balance": True, "topology": Topology(2, 4)}),
        pytest.param(
            layer,
            {"balance": True, "topology": Topology(2, 4), "chunks": 2},
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["each", "once", "rounds", "levelled", "levelled in chunks"],
)
def test_in_a_scan_in_a_checkpoint_and_in_a_batch(rng, function, options):
    """All microbatches together are one exchange, planned once."""
    x, weights, params, ids = problem(rng, 12, "one device" if function is layer else "zipf")
    params = jax.tree.map(lambda p: np.stack([p, p[::-1]]), params)
    arrays = x, weights, params, ids

    def one(*arrays):
        made = function(*arrays, **options)
        return made if function is layer else made[0]

    specs = SPREAD, SPREAD, P(None, "x"), SPREAD
    step = with_gradients(on_devices(functools.partial(stacked, one, 3), specs=specs))
    compiled = step.lower(*arrays).compile()
    before = fastjax.planning_count()
    got = jax.block_until_ready(compiled(*arrays))
    if function is steps and not options["deduplicate"]:
        assert fastjax.planning_count() - before == 2  # one for each layer
    same(got, with_gradients(functools.partial(stacked, dense, 1))(*arrays), 1e-4)


def test_a_layer_of_what_was_dispatched_before(rng):
    """Handles go through jit and shard_map like any arrays."""
    x, weights, params, ids = arrays = problem(rng, 12)

    def first(x, ids):
        rows, sizes, handle = dispatched(x, ids, deduplicate=False)
        return rows, sizes, jax.tree.map(lambda a: a[None], handle)

    def second(rows, sizes, handle, weights, params):
        handle = jax.tree.map(lambda a: a[0], handle)
        return moe.combine(all_experts(rows, sizes, params), handle, weights)

    sent = jax.jit(on_devices(first))(x, ids)
    same(jax.jit(on_devices(second))(*sent, weights, params), dense(*arrays))


def test_forward_mode(rng):
    x, *others = problem(rng, 12)
    tangent = rng.normal(size=x.shape).astype(np.float32)
    ours = on_devices(lambda *arrays: steps(*arrays, deduplicate=False)[0])
    got, wanted = (
        jax.jit(lambda x, t, f=f: jax.jvp(lambda x: f(x, *others), (x,), (t,)))(x, tangent)
        for f in (ours, dense)
    )
    same(got, wanted)
