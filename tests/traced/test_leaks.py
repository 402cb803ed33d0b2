"""Gradients keep nothing of their traces.

What they kept, in JAX's traces of tangents, would keep arrays too: those of each gradient that is
not jitted as a whole.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from spmd import mesh_of

import fastjax
from fastjax import Topology, moe

SIZES = np.full(64, 2, np.int32)
IDS = np.arange(64, dtype=np.int32).reshape(32, 2) % 16
WEIGHTS = np.full((32, 2), 0.5, np.float32)
IDENTITY = np.tile(np.eye(4, dtype=np.float32), (16, 1, 1))


def exchange(rows, sizes, plan=None):
    start = 2 * jnp.arange(8)
    landing = jnp.full(8, 2 * jax.lax.axis_index("x"))
    return fastjax.fast_ragged_all_to_all(
        rows, jnp.zeros((16, 4)), start, sizes, landing, sizes, axis_name="x", plan=plan
    )


def planned(rows, sizes):
    return exchange(rows, sizes, fastjax.plan_ragged_all_to_all(sizes, axis_name="x"))


def there_and_back(tokens, ids, weights):
    rows, _, handle = moe.dispatch(tokens, ids, num_experts=16, axis_name="x")
    return moe.combine(2 * rows, handle, weights)


def layer(tokens, ids, weights, matrices, **options):
    return moe.layer(
        *(tokens, ids, weights, matrices),
        expert_fn=lambda rows, matrix: rows @ matrix,
        num_experts=16,
        axis_name="x",
        **options,
    )


deduplicated = partial(layer, deduplicate=True, topology=Topology(2, 4))

PROGRAMS = [
    pytest.param(exchange, (np.ones((128, 4), np.float32), SIZES), id="exchange"),
    pytest.param(planned, (np.ones((128, 4), np.float32), SIZES), id="planned"),
    pytest.param(there_and_back, (np.ones((32, 4), np.float32), IDS, WEIGHTS), id="dispatch"),
    pytest.param(layer, (np.ones((32, 4), np.float32), IDS, WEIGHTS, IDENTITY), id="layer"),
    pytest.param(
        deduplicated, (np.ones((32, 4), np.float32), IDS, WEIGHTS, IDENTITY), id="deduplicated"
    ),
]


def gradient(function):
    """Of the first argument."""
    spec = jax.P("x")
    mapped = jax.shard_map(function, mesh=mesh_of(), in_specs=spec, out_specs=spec)
    return jax.grad(lambda *arguments: mapped(*arguments).sum())


@pytest.mark.parametrize(("function", "arguments"), PROGRAMS)
def test_no_tracer_leaks(function, arguments, monkeypatch):
    # Says who holds a tracer, and takes minutes for that.
    monkeypatch.setattr("jax._src.core._why_alive", lambda *_: "")
    with jax.check_tracer_leaks():
        jax.make_jaxpr(gradient(function))(*arguments)
