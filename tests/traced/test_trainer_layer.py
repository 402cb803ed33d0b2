"""Layers of trainers, unchanged under swap_ragged_all_to_all, train as on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trainer_layer
from spmd import mesh_of

import fastjax

P = jax.P
DEVICES, TOKENS, WIDTH, INNER, EXPERTS, TOP_K, DEPTH, STEPS = 8, 8, 6, 10, 16, 2, 2, 3


def problem(rng):
    x = rng.normal(size=(DEVICES * TOKENS, WIDTH))
    target = rng.normal(size=x.shape)
    router = 2 * rng.normal(size=(DEPTH, WIDTH, EXPERTS))
    first = rng.normal(size=(DEPTH, EXPERTS, WIDTH, INNER))
    second = rng.normal(size=(DEPTH, EXPERTS, INNER, WIDTH))
    return jax.tree.map(lambda a: a.astype(np.float32), (x, target, (router, first, second)))


def on_one_device(x, params, room=None):
    """The layer without exchanges; what finds no room at its device counts for nothing."""
    router, first, second = params
    weights, ids = jax.lax.top_k(jax.nn.softmax(x @ router), TOP_K)
    if room is not None:
        weights = weights * jax.lax.stop_gradient(kept(ids, room))
    every = jnp.tanh(jnp.einsum("td,edf->tef", x, first))
    every = jnp.einsum("tef,efd->ted", every, second)
    return (jnp.take_along_axis(every, ids[..., None], 1) * weights[..., None]).sum(1)


def kept(ids, room):
    """Device by device in order of the sender, and of the expert at each sender."""
    shard = ids.reshape(DEVICES, -1) * DEVICES // EXPERTS
    expert = ids.reshape(DEVICES, -1)
    sender = jnp.broadcast_to(jnp.arange(DEVICES)[:, None], shard.shape)
    which = jnp.broadcast_to(jnp.arange(shard.shape[1]), shard.shape)
    keys = [a.reshape(-1) for a in (which, expert, sender, shard)]
    order = jnp.lexsort(keys)
    nth = jnp.zeros(order.shape, jnp.int32).at[order].set(jnp.arange(order.shape[0]))
    in_shard = nth - jnp.searchsorted(keys[3][order], keys[3])
    return (in_shard < room).reshape(ids.shape)


def losses(loss, params, x, target):
    """Of some steps down the gradient."""
    step = jax.jit(jax.value_and_grad(loss))
    found = []
    for _ in range(STEPS):
        value, grads = step(params, x, target)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        found.append(float(value))
    return found


def loss_of(apply):
    return lambda params, x, target: jnp.mean((apply(x, params) - target) ** 2)


def wanted(params, x, target, room=None):
    one = functools.partial(on_one_device, room=room)
    apply = functools.partial(trainer_layer.network, one=one, remat=False)
    return losses(loss_of(apply), params, x, target)


def sharded(one, mesh, axis, *, remat, tokens, check_vma=False):
    return jax.shard_map(
        functools.partial(trainer_layer.network, one=one, remat=remat),
        mesh=mesh,
        in_specs=(tokens, (P(), P(None, axis), P(None, axis))),
        out_specs=tokens,
        check_vma=check_vma,
    )


@pytest.mark.parametrize(("room", "remat", "servers"), [(None, False, 4), (20, True, 1)])
def test_losses(rng, room, remat, servers):
    topology = fastjax.Topology(servers, 8 // servers)
    x, target, params = problem(rng)
    one = functools.partial(trainer_layer.layer, axis="x", top_k=TOP_K, room=room)
    apply = sharded(one, mesh_of(), "x", remat=remat, tokens=P("x"))
    with fastjax.swap_ragged_all_to_all(topology=topology):
        got = losses(loss_of(apply), params, x, target)
    np.testing.assert_allclose(got, wanted(params, x, target, room), rtol=1e-4)
    assert got[-1] < got[0]


def test_tuple_axis_names(rng):
    x, target, params = problem(rng)
    axis = ("context", "expert")
    one = functools.partial(trainer_layer.layer, axis=axis, top_k=TOP_K)
    apply = sharded(one, mesh_of((4, 2), axis), axis, remat=True, tokens=P(axis), check_vma=True)
    with fastjax.swap_ragged_all_to_all():
        got = losses(loss_of(apply), params, x, target)
    np.testing.assert_allclose(got, wanted(params, x, target), rtol=1e-4)


def test_the_same_rows_to_everybody(rng):
    """Overlapping slices: gradients of rows that went to several devices are sums."""
    x, target, params = problem(rng)
    one = functools.partial(trainer_layer.replicated_layer, axis="x", top_k=TOP_K)
    mapped = sharded(one, mesh_of(), "x", remat=True, tokens=P())
    with fastjax.swap_ragged_all_to_all():
        got = losses(loss_of(mapped), params, x, target)
    np.testing.assert_allclose(got, wanted(params, x, target), rtol=1e-4)
