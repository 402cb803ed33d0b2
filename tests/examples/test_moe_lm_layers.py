"""The layers of examples/moe_lm, token by token and in numpy."""

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
    got, rows = spmd(lambda x, i, w, up, down: layer(x, i, w, (up, down)), _mesh())(
        x, ids, weights, up, down
    )
    np.testing.assert_array_equal(rows, [np.bincount(ids.ravel(), minlength=experts)] * devices)
    every_up, every_down = up.reshape(experts, width, inner), down.reshape(experts, inner, width)
    for at in np.ndindex(devices, tokens):
        made = [
            w * (np.maximum(x[at] @ every_up[e], 0) @ every_down[e])
            for e, w in zip(ids[at], weights[at], strict=True)
        ]
        np.testing.assert_allclose(got[at], sum(made), rtol=1e-4, atol=1e-5)


def _mesh():
    return mesh_of(names=(layers.AXIS,))
