"""Layers whose tokens cross once to each server: against a dense layer, and against today's."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_reference import equations, same
from spmd import mesh_of

import fastjax
from fastjax import moe
from fastjax.moe import inside_servers
from fastjax.topology import AxisName

P = jax.P
SPREAD = P("x")
DEVICES, EXPERTS = 8, 16


def layer_of(
    top_k,
    *,
    at="dispatch",
    axis: AxisName = "x",
    combined=None,
    dot=jax.lax.ragged_dot,
    **options,
):
    """A layer of a device; weights are given to `dispatch`, or to `combine`."""

    def local(x, router, experts):
        weights, ids = reference.route(x, router, top_k)
        given_at = {"weights": weights} if at == "dispatch" else {}
        rows, sizes, handle = moe.dispatch(
            x, ids, num_experts=len(experts[0]) * DEVICES, axis_name=axis, **given_at, **options
        )
        rows = dot(jnp.tanh(dot(rows, experts[0], sizes)), experts[1], sizes)
        late = weights if at == "combine" else None
        result = moe.combine(rows, handle, late, **(combined or {}))
        return result, handle.kept, handle.dropped[None]

    return local


def run(problem, local, mesh=None, *, check_vma=True, spec=SPREAD):
    """Results and all gradients, on a mesh."""
    x, router, experts = problem
    mesh = mesh or mesh_of()
    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(spec, P(), spec),
        out_specs=spec,
        check_vma=check_vma,
    )

    def loss(x, router, experts):
        result, kept, dropped = mapped(x, router, experts)
        return jnp.sum(result**2), (result, kept, dropped)

    put = lambda tree, spec: jax.device_put(tree, jax.NamedSharding(mesh, spec))  # noqa: E731
    arrays = (put(x.reshape(-1, x.shape[-1]), spec), put(router, P()), put(experts, spec))
    step = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    (_, (result, kept, dropped)), grads = step(*arrays)
    return jax.tree.map(np.asarray, (result, kept, dropped, grads))


@functools.partial(jax.jit, static_argnames=("top_k", "rounding"))
def expected(problem, top_k, kept=None, rounding=(None, None)):
    """The same, without devices."""
    x, router, experts = problem

    def loss(x, router, experts):
        result = reference.dense(x, router, experts, top_k, kept, rounding)
        return jnp.sum(result**2), result

    flat = x.reshape(-1, x.shape[-1])
    (_, result), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(flat, router, experts)
    return result, grads


def check(problem, top_k, mesh=None, *, tolerance=1e-5, rounding=(None, None), **options):
    """A deduplicated layer is the dense one, but for what it says that it dropped."""
    vma = options.pop("check_vma", True)
    options = {"topology": fastjax.Topology(2, 4)} | options
    local = layer_of(top_k, deduplicate=True, **options)
    result, kept, dropped, grads = run(problem, local, mesh, check_vma=vma)
    assert dropped.sum() == (~kept).sum()
    same((result, grads), expected(problem, top_k, kept, rounding), tolerance)
    return kept


@pytest.mark.parametrize("at", ["dispatch", "combine"])
@pytest.mark.parametrize(
    ("servers", "devices", "num_experts", "top_k"),
    [(2, 4, 16, 2), (4, 2, 16, 3), (8, 1, 16, 5), (2, 4, 8, 8), (4, 2, 64, 1)],
)
def test_values_and_gradients(rng, servers, devices, num_experts, top_k, at):
    problem = reference.problem(rng, 8, 12, num_experts)
    topology = fastjax.Topology(servers, devices)
    assert check(problem, top_k, topology=topology, at=at).all()


PLACED = fastjax.Topology(2, 4, placement=(5, 2, 7, 0, 3, 6, 1, 4))
UNEVEN = fastjax.Topology(4, 2, nic_bandwidths=(50e9, 25e9, 0, 50e9, 5e9, 50e9, 50e9, 50e9))


@pytest.mark.parametrize(
    "options",
    [
        {"topology": PLACED},
        {"topology": UNEVEN},
        {"topology": UNEVEN, "scheduler": "fast", "buffer_factor": 0.5, "alignment": 4},
        {"scheduler": "direct"},
        {"check_vma": False},
        {"buffer_factor": 1.0},
        {"topology": fastjax.Topology(8, 1), "buffer_factor": 0.3},
    ],
    ids=str,
)
def test_options(rng, options):
    check(reference.problem(rng, 8, 12, EXPERTS), 3, **options)


def test_where_no_exchange_takes_indices(rng, monkeypatch):
    """As on GPUs: rows are copied first, and summed when they are back."""
    monkeypatch.setattr(inside_servers, "_gather_indexed", inside_servers._gather_copied)
    monkeypatch.setattr(inside_servers, "_sum_indexed", inside_servers._sum_returned)
    check(reference.problem(rng, 8, 12, EXPERTS), 3)


def test_lowering_for_gpus(rng):
    x, router, experts = reference.problem(rng, 8, 12, EXPERTS)
    local = layer_of(3, deduplicate=True, topology=fastjax.Topology(2, 4))
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=(SPREAD, P(), SPREAD), out_specs=SPREAD)
    flat = (x.reshape(-1, x.shape[-1]), router, experts)
    texts = {
        platform: jax.jit(mapped).trace(*flat).lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda")
    }
    assert "fastjax_indexed_exchange_v1" in texts["cpu"]
    assert "fastjax_indexed_exchange_v1" not in texts["cuda"]


def test_second_derivatives(rng):
    x = rng.normal(size=(8 * 4, 3)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * 4, 3)).astype(np.int32)
    weights = rng.random((8 * 4, 3)).astype(np.float32)

    def second(deduplicate):
        def local(x, weights, ids):
            rows, _, handle = moe.dispatch(
                x,
                ids,
                weights=weights,
                num_experts=EXPERTS,
                axis_name="x",
                topology=fastjax.Topology(4, 2),
                deduplicate=deduplicate,
            )
            return moe.combine(jnp.sin(rows), handle)

        specs = {"in_specs": SPREAD, "out_specs": SPREAD}
        mapped = jax.shard_map(local, mesh=mesh_of(), **specs)
        first = jax.grad(lambda *a: jnp.sum(mapped(*a, ids) ** 2), (0, 1))

        def along(x, weights):
            return sum(jnp.sum(g * jnp.cos(g)) for g in first(x, weights))

        return jax.jit(jax.grad(along, (0, 1)))(x, weights)

    same(second(True), second(False))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, bool])
def test_integer_rows_with_weights(rng, dtype):
    """They are rounded once, at the end."""
    x = rng.integers(0, 2 if dtype is bool else 9, (8 * 5, 3)).astype(dtype)
    ids = rng.integers(0, EXPERTS, (8 * 5, 3)).astype(np.int32)
    weights = rng.integers(1, 8, (8 * 5, 3)).astype(np.float32) / 8

    def local(x, ids, weights, *, once):
        rows, _, handle = moe.dispatch(
            x,
            ids,
            weights=weights,
            num_experts=EXPERTS,
            axis_name="x",
            topology=fastjax.Topology(2, 4),
            deduplicate=once,
        )
        return moe.combine(rows, handle)

    got, wanted = (
        jax.jit(
            jax.shard_map(
                functools.partial(local, once=once),
                mesh=mesh_of(),
                in_specs=SPREAD,
                out_specs=SPREAD,
            )
        )(x, ids, weights)
        for once in (True, False)
    )
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_where_types_are_not_promoted(rng):
    problem = reference.problem(rng, 8, 12, EXPERTS)
    local = layer_of(3, deduplicate=True, topology=fastjax.Topology(2, 4))
    with jax.numpy_dtype_promotion("strict"):
        result, kept, _, grads = run(problem, local)
    same((result, grads), expected(problem, 3, kept))


def test_an_explicit_mesh(rng):
    check(reference.problem(rng, 8, 12, EXPERTS), 3, mesh_of(explicit=True))


@pytest.mark.parametrize(("factor", "alignment"), [(0.1, 4), (0.5, 1), (1, 4), (None, 1)])
def test_what_is_dropped_is_the_same(rng, factor, alignment):
    """Of repeated choices too, for which there may be less room than by default."""
    x = rng.normal(size=(8 * 12, 6)).astype(np.float32)
    ids = rng.integers(-1, EXPERTS // 4, (8 * 12, 4)).astype(np.int32)

    def local(x, ids, *, deduplicate):
        rows, sizes, handle = moe.dispatch(
            x,
            ids,
            num_experts=EXPERTS,
            axis_name="x",
            topology=fastjax.Topology(4, 2),
            buffer_factor=factor,
            alignment=alignment,
            deduplicate=deduplicate,
        )
        back = moe.combine(rows, handle)
        return sizes, handle.group_rows, handle.kept, handle.dropped[None], back

    one, each = (
        jax.jit(
            jax.shard_map(
                functools.partial(local, deduplicate=once),
                mesh=mesh_of(),
                in_specs=SPREAD,
                out_specs=SPREAD,
            )
        )(x, ids)
        for once in (True, False)
    )
    assert factor == 1 or not np.asarray(one[2]).all()
    jax.tree.map(np.testing.assert_array_equal, one[:4], each[:4])
    np.testing.assert_allclose(one[4], each[4], rtol=1e-6)


def test_each_row_is_at_its_expert_in_a_fixed_order(rng):
    """By the device that it landed on; within it, the device's own rows first."""
    tokens = 6
    x = np.arange(8 * tokens, dtype=np.float32)[:, None]
    ids = rng.integers(0, EXPERTS, (8 * tokens, 3)).astype(np.int32)
    ids[7] = -1

    def local(x, ids):
        rows, sizes, _ = moe.dispatch(
            x,
            ids,
            num_experts=EXPERTS,
            axis_name="x",
            topology=fastjax.Topology(2, 4),
            deduplicate=True,
        )
        return rows, sizes

    mapped = jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD))
    rows, sizes = map(np.asarray, mapped(x, ids))
    for device, mine in enumerate(rows.reshape(8, -1)):
        ends = np.cumsum(sizes.reshape(8, -1)[device])
        for number, group in enumerate(np.split(mine[: ends[-1]], ends[:-1])):
            expert = 2 * device + number
            wanted = np.repeat(np.arange(8 * tokens), (ids == expert).sum(1))
            np.testing.assert_array_equal(np.sort(group), wanted)
        np.testing.assert_array_equal(mine[ends[-1] :], 0)
    np.testing.assert_array_equal(mapped(x, ids)[0], rows)


@pytest.mark.parametrize("payload", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn])
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


@pytest.mark.parametrize("wide", [False, True])
def test_narrow_rows_are_summed_in_wide_ones(rng, wide):
    """Against float64: one rounding of each server's sum, or none if float32 crosses."""
    x = rng.normal(size=(8 * 16, 32)).astype(jnp.bfloat16)
    ids = np.argsort(rng.random((8 * 16, EXPERTS)), 1)[:, :8].astype(np.int32)
    weights = rng.random((8 * 16, 8)).astype(np.float32)

    def local(x, ids, weights):
        rows, _, handle = moe.dispatch(
            x,
            ids,
            num_experts=EXPERTS,
            axis_name="x",
            weights=weights,
            topology=fastjax.Topology(4, 2),
            deduplicate=True,
        )
        return moe.combine(rows, handle, payload_dtype=jnp.float32 if wide else None)

    mapped = jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD))
    got = np.asarray(mapped(x, ids, weights), np.float64)
    wanted = x.astype(np.float64) * weights.astype(np.float64).sum(1, keepdims=True)
    error = np.sqrt(((got - wanted) ** 2).sum() / (wanted**2).sum())
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    # Rounding to nearest is off by eps / sqrt(12) or so of the last place at most.
    assert error < (0.3 if wide else 0.45) * eps


@pytest.mark.parametrize(
    "dtype", [bool, np.int8, np.uint16, np.int32, jnp.int4, np.complex64, jnp.float8_e5m2]
)
def test_rows_of_any_type(rng, dtype):
    x = rng.integers(0, 2, (8 * 5, 3)).astype(dtype)
    ids = rng.integers(0, EXPERTS, (8 * 5, 1)).astype(np.int32)

    def local(x, ids):
        rows, _, handle = moe.dispatch(
            x,
            ids,
            num_experts=EXPERTS,
            axis_name="x",
            topology=fastjax.Topology(2, 4),
            deduplicate=True,
        )
        return moe.combine(rows, handle)

    mapped = jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD))
    got = mapped(x, ids)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(got).astype("c8"), x.astype("c8"))


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


def test_groups_of_an_axis(rng):
    """Each group, of two servers, has all experts."""
    x = rng.normal(size=(8 * 5, 3)).astype(np.float32)
    ids = rng.integers(0, EXPERTS, (8 * 5, 4)).astype(np.int32)
    groups = [[0, 2, 4, 6], [7, 5, 3, 1]]

    def local(x, ids):
        rows, sizes, handle = moe.dispatch(
            x,
            ids,
            num_experts=EXPERTS,
            axis_name="x",
            axis_index_groups=groups,
            topology=fastjax.Topology(4, 2),
            deduplicate=True,
        )
        position = jnp.array([0, 3, 1, 2, 2, 1, 3, 0])[jax.lax.axis_index("x")]
        number = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(len(rows)), side="right")
        scaled = rows * (1 + number + 4 * position)[:, None]
        return moe.combine(scaled, handle)

    mapped = jax.jit(jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD))
    wanted = x * (1 + ids).sum(1, keepdims=True)
    np.testing.assert_allclose(mapped(x, ids), wanted, rtol=1e-5)


def test_no_row_is_added_up_by_scattering(rng):
    """So sums come out the same, on any platform, every time."""
    x = rng.normal(size=(32, 3)).astype(np.float32)
    ids = rng.integers(0, 8, (32, 2)).astype(np.int32)

    def local(x, ids, weights):
        def loss(x, weights):
            rows, _, handle = moe.dispatch(
                x,
                ids,
                num_experts=8,
                axis_name="x",
                weights=weights,
                topology=fastjax.Topology(4, 2),
                deduplicate=True,
            )
            return (moe.combine(jnp.sin(rows), handle) ** 2).sum()

        return jax.grad(loss, (0, 1))(x, weights)

    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD)
    arrays = (x, ids, np.ones(ids.shape, np.float32))
    for equation in equations(jax.make_jaxpr(mapped)(*arrays).jaxpr):
        floating = jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)
        if equation.primitive.name.startswith("scatter") and floating:
            assert equation.params["unique_indices"]
    step = jax.jit(mapped)
    jax.tree.map(np.testing.assert_array_equal, step(*arrays), step(*arrays))


ROWS = 8


@functools.cache
def oracle_programs(servers, devices, top_k, factor):
    options = {"num_experts": EXPERTS, "axis_name": "x", "buffer_factor": factor}

    def local(x, ids, weights):
        rows, _, handle = moe.dispatch(
            x,
            ids,
            weights=weights,
            topology=fastjax.Topology(servers, devices),
            deduplicate=True,
            **options,
        )
        return moe.combine(rows, handle), handle.kept

    shard = functools.partial(jax.shard_map, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD)
    oracle = functools.partial(reference.by_collectives, num_experts=EXPERTS, axis="x")
    return jax.jit(shard(local)), jax.jit(shard(oracle))


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(2, 4), (4, 2), (8, 1)]),
    top_k=st.sampled_from([2, 5]),
    factor=st.sampled_from([None, 0.4]),
    popular=st.floats(0, 4),
    holes=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_choices(shape, top_k, factor, popular, holes, seed):
    """Against the same in plain collectives: exactly, since all numbers are small integers."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, EXPERTS + 1) ** -popular
    ids = rng.choice(EXPERTS, (8 * ROWS, top_k), p=share / share.sum()).astype(np.int32)
    ids[rng.random(ids.shape) < holes] = -1
    x, weights = (rng.integers(-8, 9, (8 * ROWS, n)).astype(np.float32) for n in (3, top_k))
    ours, oracle = oracle_programs(*shape, top_k, factor)
    got, kept = ours(x, ids, weights)
    np.testing.assert_array_equal(got, oracle(x, ids, weights, kept))
