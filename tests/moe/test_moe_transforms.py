"""Expert-parallel layers inside what JAX programs are made of; how often anything is planned."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
import pytest
from deduplicated import flat
from moe_reference import equations, same
from spmd import mesh_of

import fastjax
from fastjax import moe

P = jax.P
EXPERTS = 16


def layer(x, router, experts, *, axis="x", dot=jax.lax.ragged_dot, **options):
    dispatch = functools.partial(moe.dispatch, num_experts=EXPERTS, axis_name=axis, **options)
    return reference.layer(x, router, experts, 2, dispatch, moe.combine, dot)[0]


SPEC = P("x")


def sharded(local, mesh=None, tokens=SPEC, experts=SPEC):
    """A loss of the local function's output, and its gradients."""
    mesh = mesh or mesh_of()
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(tokens, P(), experts), out_specs=tokens)
    return reference.with_gradients(mapped)


@functools.partial(jax.jit, static_argnums=0)
def expected(dense, problem):
    return reference.with_gradients(dense)(*flat(problem))


def plannings(step, *args):
    """The result, and how many plans were made for it."""
    compiled = step.lower(*args).compile()
    before = fastjax.planning_count()
    result = jax.block_until_ready(compiled(*args))
    return result, fastjax.planning_count() - before


def planning_equations(jaxpr):
    """How often a program plans, as it is written."""
    planning = (e for e in equations(jaxpr) if e.primitive.name == "plan_ragged_all_to_all")
    return sum(e.params["plans"] for e in planning)


def dense_layer(x, router, experts):
    return reference.dense(x, router, experts, 2)


@pytest.mark.parametrize(("policy", "wanted"), [(moe.save_plans, 1), (None, 2)])
def test_checkpoint(rng, policy, wanted):
    problem = reference.problem(rng, 8, 12, EXPERTS)
    step = sharded(jax.checkpoint(layer, policy=policy))
    assert planning_equations(jax.make_jaxpr(step)(*flat(problem)).jaxpr) == wanted
    same(jax.jit(step)(*flat(problem)), expected(dense_layer, problem))


@pytest.mark.parametrize("remat", [False, True])
def test_scan_over_layers(rng, remat):
    depth = 3
    x, router, _ = reference.problem(rng, 8, 12, EXPERTS)
    each = [reference.problem(rng, 8, 12, EXPERTS)[2] for _ in range(depth)]
    experts = jax.tree.map(lambda *a: np.stack(a, 0), *each)

    def stack(one, x, router, experts):
        body = lambda x, e: (x + one(x, router, e), None)  # noqa: E731
        if remat:
            body = jax.checkpoint(body, policy=moe.save_plans)
        return jax.lax.scan(body, x, experts)[0]

    step = sharded(functools.partial(stack, layer), experts=P(None, "x"))
    result, made = plannings(jax.jit(step), *flat((x, router, experts)))
    assert made == depth
    same(result, expected(functools.partial(stack, dense_layer), (x, router, experts)), 1e-4)


def test_vmap_over_microbatches(rng):
    """All microbatches together are one exchange, planned once."""
    problem = reference.problem(rng, 8, 12, EXPERTS)
    width = problem[0].shape[-1]

    def local(x, router, experts):
        micro = x.reshape(3, -1, width)
        one = lambda x: layer(x, router, experts, dot=moe.grouped_dot)  # noqa: E731
        return jax.vmap(one)(micro).reshape(x.shape)

    result, made = plannings(jax.jit(sharded(local)), *flat(problem))
    assert made == 1
    same(result, expected(dense_layer, problem))


@pytest.mark.parametrize(
    ("shape", "names", "axis", "tokens", "experts"),
    [
        ((2, 4), ("data", "x"), "x", P(("data", "x")), P("x")),
        ((4, 2), ("data", "x"), "x", P(("data", "x")), P("x")),
        ((2, 4), ("context", "x"), ("context", "x"), P(("context", "x")), P(("context", "x"))),
        ((2, 4), ("x", "tensor"), "x", P("x"), P("x")),
    ],
    ids=["in data parallelism 2x4", "in data parallelism 4x2", "tuple", "beside tensor"],
)
def test_shared_axes(rng, shape, names, axis, tokens, experts):
    problem = reference.problem(rng, 8, 12, EXPERTS)
    local = functools.partial(layer, axis=axis)
    step = sharded(local, mesh_of(shape, names), tokens, experts)
    same(jax.jit(step)(*flat(problem)), expected(dense_layer, problem))


def test_groups_of_an_axis(rng):
    """Each group has all experts, its first member the first of them."""
    groups = [[0, 2, 4, 6], [7, 5, 3, 1]]
    x, router, experts = reference.problem(rng, 8, 12, EXPERTS)
    position = {device: i for group in groups for i, device in enumerate(group)}
    local_experts = EXPERTS // 4
    spread = jax.tree.map(
        lambda a: np.concatenate(
            [a[position[d] * local_experts : (position[d] + 1) * local_experts] for d in range(8)]
        ),
        experts,
    )
    local = functools.partial(layer, axis_index_groups=groups)
    (_, result), grads = jax.jit(sharded(local))(*flat((x, router, spread)))
    (_, wanted), wanted_grads = expected(dense_layer, (x, router, experts))
    same((result, grads[0], grads[1]), (wanted, wanted_grads[0], wanted_grads[1]))
    for got, want in zip(grads[2], wanted_grads[2], strict=True):
        total = np.zeros_like(want)
        for d in range(8):
            first = position[d] * local_experts
            total[first : first + local_experts] += got[d * local_experts :][:local_experts]
        same(total, want)


def test_a_layer_of_what_was_dispatched_before(rng):
    """Handles go through jit and shard_map like any arrays."""
    x, router, experts = reference.problem(rng, 8, 12, EXPERTS)
    mesh, spec = mesh_of(), P("x")
    shard = functools.partial(jax.shard_map, mesh=mesh)

    def first(x, router):
        weights, ids = reference.route(x, router, 2)
        rows, sizes, handle = moe.dispatch(x, ids, num_experts=EXPERTS, axis_name="x")
        handle = jax.tree.map(lambda a: a[None], handle)
        return rows, sizes, handle, weights

    def second(rows, sizes, handle, weights, experts):
        handle = jax.tree.map(lambda a: a[0], handle)
        rows = jax.lax.ragged_dot(rows, experts[0], sizes)
        rows = jax.lax.ragged_dot(jnp.tanh(rows), experts[1], sizes)
        return moe.combine(rows, handle, weights)

    sent = jax.jit(shard(first, in_specs=(spec, P()), out_specs=spec))(*flat((x, router, 0))[:2])
    got = jax.jit(shard(second, in_specs=spec, out_specs=spec))(*sent, experts)
    wanted = dense_layer(*flat((x, router, experts)))
    same(got, wanted)


def test_forward_mode(rng):
    x, router, experts = flat(reference.problem(rng, 8, 12, EXPERTS))
    mapped = jax.shard_map(layer, mesh=mesh_of(), in_specs=(P("x"), P(), P("x")), out_specs=P("x"))
    tangent = rng.normal(size=x.shape).astype(np.float32)
    got = jax.jit(lambda x, t: jax.jvp(lambda x: mapped(x, router, experts), (x,), (t,)))(
        x, tangent
    )
    wanted = jax.jit(lambda x, t: jax.jvp(lambda x: dense_layer(x, router, experts), (x,), (t,)))(
        x, tangent
    )
    same(got, wanted)
