"""Layers on eight devices, most of whose tokens cross once to each server, and their checks."""

import functools

import jax
import jax.numpy as jnp
import moe_reference as reference
import numpy as np
from moe_reference import same
from spmd import mesh_of

import fastjax
from fastjax import moe
from fastjax.topology import AxisName

P = jax.P
SPREAD = P("x")
DEVICES, EXPERTS = 8, 16
TOPOLOGY = fastjax.Topology(4, 2)


def dispatched(x, ids, **options):
    """What `moe.dispatch` returns; tokens cross once unless it is told otherwise."""
    usual = {
        "num_experts": EXPERTS,
        "axis_name": "x",
        "topology": TOPOLOGY,
        "deduplicate": True,
    }
    return moe.dispatch(x, ids, **usual | options)


def values_and_slopes(x, ids, weights, **options):
    """A layer whose experts square: its result, and the gradients of x and weights."""

    def value(x, weights):
        rows, _, handle = dispatched(x, ids, **options)
        result = moe.combine(rows * rows, handle, weights)
        return (result**2).sum(), result

    (_, result), slopes = jax.value_and_grad(value, (0, 1), has_aux=True)(x, weights)
    return result, *slopes


def one_expert(rows, params):
    return jnp.tanh(rows @ params[0]) @ params[1]


def layer_on_devices(expert_fn=one_expert, **options):
    """`moe.layer` of tokens, router and experts, three of which each token chooses."""

    def local(x, router, experts):
        weights, ids = reference.route(x, router, 3)
        how = {"num_experts": EXPERTS, "axis_name": "x", "topology": TOPOLOGY} | options
        return moe.layer(x, ids, weights, experts, expert_fn=expert_fn, **how)

    specs = (SPREAD, P(), SPREAD)
    return jax.shard_map(local, mesh=mesh_of(), in_specs=specs, out_specs=SPREAD)


def flat(problem):
    """A problem whose tokens are in one dimension."""
    x, *others = problem
    return x.reshape(-1, x.shape[-1]), *others


def spread(local):
    """A function of all devices: each has its part of all arrays."""
    return jax.shard_map(local, mesh=mesh_of(), in_specs=SPREAD, out_specs=SPREAD)


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
        num_experts = len(experts[0]) * jax.lax.axis_size(axis)
        rows, sizes, handle = moe.dispatch(
            x, ids, num_experts=num_experts, axis_name=axis, **given_at, **options
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
    """A layer, deduplicated by default, is the dense one but for the choices that it dropped."""
    vma = options.pop("check_vma", True)
    options = {"topology": fastjax.Topology(2, 4), "deduplicate": True} | options
    local = layer_of(top_k, **options)
    result, kept, dropped, grads = run(problem, local, mesh, check_vma=vma)
    assert dropped.sum() == (~kept).sum()
    same((result, grads), expected(problem, top_k, kept, rounding), tolerance)
    return kept
