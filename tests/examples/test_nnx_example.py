"""examples/nnx_moe.py: the module against one that has all experts on one device; it learns."""

import jax
import jax.numpy as jnp
import nnx_moe
import numpy as np
import pytest
from flax import nnx
from spmd import mesh_of


@pytest.fixture
def layer():
    mesh = mesh_of(names=("expert",))
    return nnx_moe.MoE(
        6, 10, num_experts=16, top_k=3, mesh=mesh, axis_name="expert", rngs=nnx.Rngs(0)
    )


def dense(layer, x):
    """Every expert on every token, of which those chosen count."""
    chosen, ids = jax.lax.top_k(x @ layer.router.kernel[...], 3)
    weights = jax.nn.softmax(chosen)
    hidden = jax.nn.relu(jnp.einsum("td,edf->tef", x, layer.up[...]))
    every = jnp.einsum("tef,efd->ted", hidden, layer.down[...])
    return (jnp.take_along_axis(every, ids[..., None], 1) * weights[..., None]).sum(1)


def test_values_and_gradients(layer, rng):
    x = rng.normal(size=(8 * 12, 6)).astype(np.float32)

    def both(run):
        return nnx.jit(nnx.value_and_grad(lambda layer: (run(layer, x) ** 2).sum()))(layer)

    (got, got_grads), (wanted, wanted_grads) = both(lambda layer, x: layer(x)), both(dense)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    found = jax.tree.leaves(got_grads)
    assert len(found) == 3
    for one, other in zip(found, jax.tree.leaves(wanted_grads), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_experts_are_spread(layer):
    for experts in (layer.up, layer.down):
        assert {shard.data.shape[0] for shard in experts[...].addressable_shards} == {2}


def test_it_learns():
    losses = nnx_moe.train(40, mesh_of(names=("expert",)))
    assert losses[-1] < losses[0] / 5
