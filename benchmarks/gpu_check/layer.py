"""`python -m gpu_check.layer`: experts on one GPU, beside a layer of `jax.lax.ragged_dot`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import moe
from gpu_check import measurements
from gpu_check.measurements import Timed

# Width, inner width, experts, choices: of DeepSeek-V2-Lite and of Mixtral 8x7B.
MODELS = {
    "64 experts of 2048 x 1408": (2048, 1408, 64, 6),
    "8 of 4096 x 14336": (4096, 14336, 8, 2),
}
TOLERANCE = 0.02  # of the largest: bfloat16


def expert(rows: Any, params: Any) -> Any:
    gate, up, down = params
    return (jax.nn.silu(rows @ gate) * (rows @ up)) @ down


def by_layer(x: Any, ids: Any, weights: Any, params: Any, experts: int) -> Any:
    layer = partial(moe.layer, expert_fn=expert, num_experts=experts)
    return measurements.on_one_rank(layer)(x, ids, weights, params)


def by_ragged_dot(x: Any, ids: Any, weights: Any, params: Any, experts: int) -> Any:
    order = jnp.argsort(ids.ravel())
    sizes = jnp.bincount(ids.ravel(), length=experts).astype(jnp.int32)
    dot = partial(jax.lax.ragged_dot, group_sizes=sizes)
    rows = x[order // ids.shape[1]]
    made = dot(jax.nn.silu(dot(rows, params[0])) * dot(rows, params[1]), params[2])
    back = jnp.zeros_like(made).at[order].set(made, unique_indices=True)
    back = back.reshape(*ids.shape, -1) * weights[..., None].astype(made.dtype)
    return back.sum(1)


def problem(tokens: int, width: int, inner: int, experts: int, top_k: int) -> list[Any]:
    """Tokens, choices by a popularity of 1 / rank^0.8, weights and params, in bfloat16."""
    rng = np.random.default_rng(7)
    popularity = np.log(rng.permutation(np.arange(1, experts + 1) ** -0.8))
    scores = popularity + rng.gumbel(size=(tokens, experts))
    ids = np.argsort(-scores, 1)[:, :top_k].astype(np.int32)
    weights = rng.dirichlet(np.ones(top_k), tokens).astype(np.float32)
    rows = partial(measurements.random_rows, dtype=jnp.bfloat16)
    shapes = (experts, width, inner), (experts, width, inner), (experts, inner, width)
    params = tuple(
        rows(seed, shape) * jnp.bfloat16(shape[1] ** -0.5) for seed, shape in enumerate(shapes)
    )
    return [
        rows(3, (tokens, width)),
        *jax.device_put((ids, weights), measurements.device()),
        params,
    ]


def with_gradients(layer: Any) -> Any:
    def both(x: Any, ids: Any, weights: Any, params: Any) -> Any:
        value, back = jax.vjp(lambda x, w, p: layer(x, ids, w, p), x, weights, params)
        return value, *back(value)

    return both


def measure(
    record: measurements.Record, model: str, tokens: int, shape: Any, gradients: bool, rounds: int
) -> None:
    arrays = problem(tokens, *shape)
    programs = {}
    for name, way in {"fastjax": by_layer, "ragged_dot": by_ragged_dot}.items():
        layer = partial(way, experts=shape[2])
        programs[name] = jax.jit(with_gradients(layer) if gradients else layer)

    def right() -> bool:
        got, wanted = (jax.tree.leaves(run(*arrays)) for run in programs.values())
        return all(
            bool(abs(a - b).max() <= TOLERANCE * abs(b).max())
            for a, b in zip(got, wanted, strict=True)
        )

    record.measure(
        f"{'value and gradients' if gradients else 'value'}, {tokens} tokens, {model}",
        {name: Timed(partial(run, *arrays)) for name, run in programs.items()},
        rounds,
        right,
        rows=arrays[0],
    )


def steps(record: measurements.Record, tiny: bool) -> list[Any]:
    tokens, models, rounds = (64, 4096), MODELS, 10
    if tiny:
        tokens, models, rounds = (64,), {"4 of 16 x 8": (16, 8, 4, 2)}, 2
    return [
        partial(measure, record, model, count, shape, gradients, rounds)
        for model, shape in models.items()
        for count in tokens
        for gradients in (False, True)
    ]


if __name__ == "__main__":
    measurements.main(__doc__, steps)
