"""What experts do to rows, against the same on all rows and groups."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from jax.ad_checkpoint import checkpoint_name
from moe_layers import dense_groups
from refusals import refusals
from spmd import mesh_of

import fastjax
from fastjax import errors, moe
from fastjax.moe import tiles


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(function, ct, sizes, *operands):
    """Its results, and the cotangents of operands for that of the results."""
    result, back = jax.vjp(lambda *operands: function(*operands, sizes), *operands)
    return result, *back(result if ct is None else ct)


def both(rng, room, sizes, dtype=np.float32):
    rows = rng.normal(size=(room, 5)).astype(dtype)
    weights = rng.normal(size=(len(sizes), 5, 4)).astype(dtype)
    ct, sizes = rng.normal(size=(room, 4)).astype(dtype), np.array(sizes, np.int32)
    dots = moe.grouped_dot, jax.lax.ragged_dot
    return [with_gradients(dot, ct, sizes, rows, weights) for dot in dots]


def same(got, wanted, tolerance):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            one.astype(np.float32), other.astype(np.float32), rtol=tolerance, atol=10 * tolerance
        )


@settings(max_examples=40)
@given(
    st.sampled_from([(3, 1000, 300), (4, 40, 10), (7, 480, 40)]).flatmap(
        lambda of: st.tuples(
            st.just(of[1]), st.lists(st.integers(0, of[2]), min_size=of[0], max_size=of[0])
        )
    )
)
@example((1000, [128, 1, 0, 300, 127, 129]))
@example((700, [700]))
@example((300, [0, 0, 0]))
@example((129, [1, 128]))
@example((50, [20, 10, 20]))
@example((64, [0, 0, 0, 64]))
@example((1, [0, 1]))
@example((0, [0, 0]))
def test_values_and_gradients(room_and_sizes):
    same(*both(np.random.default_rng(0), *room_and_sizes), 1e-5)


def batches(patch):
    """As for a platform that is not CPU: the same function is lowered for it, and run here."""
    patch.setattr(jax.lax, "platform_dependent", lambda *args, default, **_: default(*args))


def at_once(patch):
    """However few the params."""
    patch.setattr(tiles, "_MANY_BYTES", 0)


@pytest.mark.parametrize("way", [batches, at_once])
@pytest.mark.parametrize(
    ("room", "sizes", "usual"),
    [
        (700, [128, 1, 0, 300, 127], None),
        (5000, [4000, 0], 500),
        (20, [3, 0, 0, 17], None),
        (20, [3, 0, 17, 0], None),  # the last group has no rows, and there is no room behind it
        (64, [32, 16, 16, 0], None),
        (50, [3, 2, 20, 4, 5], 4),
        (9, [9], None),
        (3, [0] * 5, None),
        (1400, [300, 0, 1, 129, 260, *[5] * 12, 128, 400, 2], None),  # several of some, in batches
    ],
)
def test_other_ways(rng, monkeypatch, way, room, sizes, usual):
    """Other rows hold what is not finite, and reach no gradient."""
    sizes = np.array(sizes, np.int32)
    params = _params_of(rng, len(sizes))
    rows = rng.normal(size=(room, 5)).astype(np.float32)
    rows[sizes.sum() :] = np.nan

    def shifted(rows, params, shift):
        expert = lambda rows, params: _expert(rows, params) + jnp.tanh(shift)  # noqa: E731
        return moe.grouped_map(expert, rows, params, sizes, usual_rows=usual)

    def gradients(*operands):
        result, back = jax.vjp(shifted, *operands)
        return result, *back(result)

    operands = rows, params, np.ones(3, np.float32)
    wanted = jax.jit(gradients)(*operands)
    way(monkeypatch)
    anew = functools.partial(gradients)  # which JAX has not traced
    same(jax.jit(anew)(*operands), wanted, 1e-4)


@pytest.mark.parametrize("room", [60, 900])
def test_a_row_has_the_same_values_wherever_it_lies(rng, monkeypatch, room):
    """Bit for bit, in any group, alone or at once with others; with any room for tiles."""
    rows = rng.normal(size=(room, 64)).astype(np.float32)
    params = np.broadcast_to(rng.normal(size=(64, 32)).astype(np.float32), (4, 64, 32))
    mapped = functools.partial(moe.grouped_map, jnp.dot, usual_rows=room // 4)
    wanted = jax.jit(mapped)(rows, params, np.full(4, room // 4))
    at_once(monkeypatch)
    mapped = jax.jit(mapped)
    for sizes in ([room // 4] * 4, [room, 0, 0, 0], [1, 0, room - 1, 0], [7, room - 20, 6, 7]):
        np.testing.assert_array_equal(mapped(rows, params, np.array(sizes)), wanted)
    order = rng.permutation(room)
    np.testing.assert_array_equal(mapped(rows[order], params, np.array(sizes)), wanted[order])
    half = mapped(rows[: room // 2], params[:2], np.array([1, room // 2 - 1]))
    np.testing.assert_array_equal(half, wanted[: room // 2])


def test_bfloat16(rng):
    same(*both(rng, 500, [100, 250, 50], jnp.bfloat16), 0.02)


@pytest.mark.parametrize(
    ("given", "preferred"),
    [(np.float32, jnp.bfloat16), (jnp.bfloat16, np.float32), (np.float32, None)],
)
def test_options_of_ragged_dot(rng, given, preferred):
    """The types of JAX's, and values as exact as float64 has them."""
    lhs = rng.integers(-9, 9, (70, 6)).astype(given)  # products are exact
    rhs = rng.integers(-9, 9, (3, 6, 4)).astype(given)
    sizes = np.array([30, 0, 25], np.int32)
    options = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": preferred}
    got = moe.grouped_dot(lhs=lhs, rhs=rhs, group_sizes=sizes, group_offset=None, **options)
    assert got.dtype == jax.lax.ragged_dot(lhs, rhs, sizes, **options).dtype
    wanted = np.zeros((70, 4))
    for group, start, end in ((0, 0, 30), (2, 30, 55)):
        wanted[start:end] = lhs[start:end].astype(float) @ rhs[group].astype(float)
    np.testing.assert_array_equal(got, wanted.astype(got.dtype))


def test_in_a_batch(rng):
    rows = rng.normal(size=(3, 300, 5)).astype(np.float32)
    weights = rng.normal(size=(2, 5, 4)).astype(np.float32)
    sizes = np.array([[10, 200], [300, 0], [0, 7]], np.int32)
    got = jax.jit(jax.vmap(moe.grouped_dot, (0, None, 0)))(rows, weights, sizes)
    wanted = [jax.lax.ragged_dot(r, weights, s) for r, s in zip(rows, sizes, strict=True)]
    np.testing.assert_allclose(got, np.stack(wanted), rtol=1e-5, atol=1e-5)


def test_not_finite_room_is_not_read(rng):
    """What lies behind the last group, and in other groups, stays out of every sum."""
    rows = rng.normal(size=(300, 5)).astype(np.float32)
    rows[140:] = np.nan
    weights = rng.normal(size=(2, 5, 4)).astype(np.float32)
    sizes = np.array([100, 40], np.int32)
    made = with_gradients(moe.grouped_dot, np.ones((300, 4), np.float32), sizes, rows, weights)
    assert all(np.isfinite(each).all() for each in made)


def _expert(rows, params):
    return jnp.tanh(rows @ params["up"] + params["bias"]) @ params["down"]


def _params_of(rng, groups):
    shapes = {"up": (groups, 5, 7), "bias": (groups, 7), "down": (groups, 7, 3)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("room", "sizes"),
    [(700, [128, 1, 0, 300, 127]), (300, [0, 0]), (129, [1, 128]), (50, [20, 10, 20]), (0, [0])],
)
def test_whole_experts(rng, room, sizes):
    params, sizes = _params_of(rng, len(sizes)), np.array(sizes, np.int32)
    rows, ct = (rng.normal(size=(room, width)).astype(np.float32) for width in (5, 3))
    mapped = functools.partial(moe.grouped_map, _expert)
    every = functools.partial(dense_groups, expert=_expert)
    same(*(with_gradients(f, ct, sizes, rows, params) for f in (mapped, every)), 1e-4)


def test_gradients_of_narrow_params_are_summed_in_wide_ones(rng):
    """Ten tiles, each of whose sums would be lost beside what came before."""
    rows = jnp.ones((1280, 1), jnp.bfloat16)
    weights = jnp.ones((1, 1, 1), jnp.bfloat16)
    ct = np.ones((1280, 1), np.float32)
    ct[128:] = 1 / 256
    mapped = functools.partial(moe.grouped_map, jnp.dot, rows, usual_rows=128)
    _, back = jax.vjp(lambda w: mapped(w, np.array([1280])), weights)
    assert float(back(ct.astype(jnp.bfloat16))[0][0, 0, 0]) == pytest.approx(132.5, abs=0.6)


def _normed(rows, scale):
    """Has no derivative at zero."""
    return rows / jnp.sqrt((rows**2).mean(-1, keepdims=True)) * scale


@pytest.mark.parametrize("sizes", [(128, 128), (100, 156), (1, 200)])
def test_functions_without_a_derivative_at_zero(rng, sizes):
    """Rows of other groups in a tile have no part in a group's gradients."""
    rows = rng.normal(size=(256, 5)).astype(np.float32)
    rows[sum(sizes) :] = 0
    scale = rng.normal(size=(2, 5)).astype(np.float32)
    ct = rng.normal(size=rows.shape).astype(np.float32)
    mapped = functools.partial(moe.grouped_map, _normed)
    got = with_gradients(mapped, ct, np.array(sizes), rows, scale)
    alone = lambda rows, scale, _: _normed(rows, scale)  # noqa: E731
    for group, start in enumerate((0, sizes[0])):
        part = slice(start, start + sizes[group])
        wanted = with_gradients(alone, ct[part], None, rows[part], scale[group])
        same((got[0][part], got[1][part], got[2][group]), wanted, 1e-4)


def test_experts_as_people_write_them():
    """Narrow weights with scales, values that all share, positions, functions of JAX's."""
    rng = np.random.default_rng(3)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    rows, scales, bias, temperature = normal(8 * 20, 4), normal(16, 4), normal(4), normal(20)
    narrow = jnp.asarray(rng.integers(-7, 8, (16, 4, 4)), jnp.int4)
    narrower = rng.integers(-9, 9, (16, 4)).astype(np.int8)
    sizes = np.tile([11, 6], 8).astype(np.int32)
    table = rng.integers(0, 4, 4)

    def expert_of(place, bias, temperature, table):
        @jax.jit
        def expert(rows, params):
            narrow, narrower, scale = params
            inner = rows @ (narrow.astype(rows.dtype) * scale) + jnp.tanh(bias)[table]
            at = place()
            return jax.nn.relu(inner * jnp.where(bias > 0, bias, 1)) * (1 + at) + (
                narrower.astype(rows.dtype) * temperature[0]
            )

        return expert

    def local(rows, scales, bias, temperature, sizes, narrow, narrower):
        place = functools.partial(jax.lax.axis_index, "x")
        expert = expert_of(place, bias, temperature, table)
        return moe.grouped_map(expert, rows, (narrow, narrower, scales), sizes)

    def dense(rows, scales, bias, temperature, _):
        parts = []
        for group in range(16):
            device, second = divmod(group, 2)
            start, size = device * 20 + 11 * second, (11, 6)[second]
            expert = expert_of(lambda device=device: device, bias, temperature, table)
            params = narrow[group], narrower[group], scales[group]
            parts.append(expert(rows[start : start + size], params))
            if second:
                parts.append(jnp.zeros((3, 4)))
        return jnp.concatenate(parts)

    spread, same_on_all = jax.P("x"), jax.P()
    specs = spread, spread, same_on_all, same_on_all, spread, spread, spread
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=spread)
    floats = rows, scales, bias, temperature
    got = with_gradients(lambda *given: mapped(*given, narrow, narrower), None, sizes, *floats)
    same(got, with_gradients(dense, None, sizes, *floats), 1e-4)


def test_no_groups():
    got = moe.grouped_dot(np.ones((4, 3)), np.ones((0, 3, 2)), np.ones(0, np.int32))
    np.testing.assert_array_equal(got, np.zeros((4, 2)))


def dot(rows=(4, 3), weights=(2, 3, 2), sizes=(2,), types=("f4", "f4", "i4"), **options):
    shapes = rows, weights, sizes
    given = [np.ones(s, t) for s, t in zip(shapes, types, strict=True)]
    return lambda: moe.grouped_dot(*given, **options)


def mapped(function=jnp.dot, rows=(4, 3), params=(2, 3), types=("f4", "f4", "i4"), in_use=None):
    shapes = rows, params, (2,)
    arrays = [np.ones(shape, kind) for shape, kind in zip(shapes, types, strict=True)]
    return lambda: moe.grouped_map(function, *arrays, in_use)


def with_a_collective(function):
    """Devices that have no tile for it would keep the others waiting."""

    def local(rows):
        return moe.grouped_map(function, rows, jnp.ones((2, 3, 3)), jnp.array([1, 2]))

    exchange = jax.shard_map(local, mesh=mesh_of(), in_specs=jax.P("x"), out_specs=jax.P("x"))
    return lambda: jax.eval_shape(exchange, np.ones((64, 3), np.float32))


def summed(rows, weights):
    return jax.lax.psum(rows @ weights, "x")


@jax.jit
def exchanged(rows, _):
    none = jnp.zeros(8, jnp.int32)
    return fastjax.fast_ragged_all_to_all(rows, rows, none, none, none, none, axis_name="x")


def with_what_devices_share(function):
    def local(rows, shared):
        expert = lambda rows, weights: rows @ weights + function(shared)  # noqa: E731
        return moe.grouped_map(expert, rows, jnp.ones((2, 3, 3)), jnp.array([1, 2]))

    specs = jax.P("x"), jax.P()
    exchange = jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=jax.P("x"))
    return lambda: jax.eval_shape(exchange, np.ones((64, 3), np.float32), np.ones(3, np.float32))


def named(rows, scale):
    return checkpoint_name(rows, "inner") * scale


test_refused = refusals(
    errors.ArgumentError,
    (dot((4, 5), (2, 6, 4)), "got (4, 5), (2, 6, 4), (2,)."),
    (dot((4, 5), (2, 5, 4), (3,)), "got (4, 5), (2, 5, 4), (3,)."),
    (dot((4, 5), (5, 4)), "got (4, 5), (5, 4), (2,)."),
    (dot(types=("f4", "f4", "f4")), "group_sizes must be integers, got float32"),
    (dot(types=("i4", "f4", "i4")), "lhs must be floating-point, got int32"),
    (dot(types=("f4", "i4", "i4")), "rhs must be floating-point, got int32"),
    (dot(group_offset=np.zeros(1, int)), "group_offset is not supported"),
    (dot(preferred_element_type=int), "preferred_element_type must be floating-point, got int"),
    (mapped(rows=(4,)), "(room, width) and (groups,), got (4,)"),
    (mapped(params=(3, 3, 2)), "each of the 2 groups, shape (2, ...); params has", "(3, 3, 2)"),
    (mapped(types=("f4", "f4", "f4")), "group_sizes must be integers, got float32"),
    (mapped(in_use=np.ones(2)), "group_rows must be integers, got float"),
    (mapped(in_use=np.ones(3, int)), "for each of the 2 groups, got shape (3,)."),
    (mapped(types=("i4", "f4", "i4")), "rows must be floating-point, got int32"),
    (mapped(lambda rows, _: rows.sum()), "each of its rows, shape (2, new width), got ()."),
    (mapped(lambda rows, _: rows[1:]), "each of its rows, shape (2, new width), got (1, 3)."),
    (mapped(lambda rows, _: [rows]), "each of its rows, shape (2, new width), got [(2, 3)]."),
    (with_a_collective(summed), "must not exchange anything with other devices"),
    (with_a_collective(exchanged), "must not exchange anything", "has ['fast_ragged_all_to_all']"),
    (with_what_devices_share(jax.nn.softplus), "a value that devices share", "jax.lax.pcast("),
    (mapped(named), "must not name values by checkpoint_name", "a layer, by its grouped_fn"),
)
