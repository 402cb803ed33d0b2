"""The layers of examples/moe_lm, token by token and in numpy."""

import moe_reference as reference
import numpy as np
import pytest
from moe_lm import layers
from spmd import mesh_of, spmd


@pytest.mark.parametrize("layer", [layers.dense, layers.fast("fast")], ids=["dense", "fastjax"])
def test_layers_by_hand(rng, layer):
    devices, tokens, width, inner, experts = 8, 5, 6, 4, 16
    x = rng.normal(size=(devices, tokens, width)).astype(np.float32)
    up = rng.normal(size=(devices, 2, width, inner)).astype(np.float32)
    down = rng.normal(size=(devices, 2, inner, width)).astype(np.float32)
    ids = np.array([rng.permutation(experts)[:2] for _ in range(devices * tokens)], np.int32)
    ids = ids.reshape(devices, tokens, 2)
    weights = rng.uniform(size=ids.shape).astype(np.float32)
    got = spmd(lambda x, i, w, up, down: layer(x, i, w, (up, down)), _mesh())(
        x, ids, weights, up, down
    )
    every_up, every_down = up.reshape(experts, width, inner), down.reshape(experts, inner, width)
    for at in np.ndindex(devices, tokens):
        made = [
            w * (np.maximum(x[at] @ every_up[e], 0) @ every_down[e])
            for e, w in zip(ids[at], weights[at], strict=True)
        ]
        np.testing.assert_allclose(got[at], sum(made), rtol=1e-4, atol=1e-5)


def _mesh():
    return mesh_of(names=(layers.AXIS,))


def test_routes(rng):
    """Weights add up to 1; balance is over all devices."""
    x = rng.normal(size=(8, 4, 3)).astype(np.float32)
    router = np.broadcast_to(rng.normal(size=(3, 6)).astype(np.float32), (8, 3, 6))
    run = spmd(lambda x, r: layers.route(x, r, 2), _mesh())
    ids, weights, uneven = run(x, router)
    wanted, wanted_ids = reference.route(x[3], router[0], 2)
    np.testing.assert_array_equal(ids[3], wanted_ids)
    np.testing.assert_allclose(weights[3], wanted / wanted.sum(-1, keepdims=True), rtol=1e-5)
    chances = np.exp(x @ router[0]) / np.exp(x @ router[0]).sum(-1, keepdims=True)
    shares = np.bincount(np.asarray(ids).ravel(), minlength=6) / ids.size
    np.testing.assert_allclose(uneven, 6 * shares @ chances.mean((0, 1)), rtol=1e-5)
