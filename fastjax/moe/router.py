"""Which experts tokens choose, from a router's scores, and how evenly they choose."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fastjax.errors import ArgumentError
from fastjax.moe import types
from fastjax.traffic import Routing

Scoring = Literal["softmax", "sigmoid"]


@jax.named_scope("moe_route")
def route(
    scores: jax.Array,
    top_k: int,
    *,
    scoring: Scoring = "softmax",
    normalize: bool = True,
    bias: jax.Array | None = None,
    groups: int = 1,
    top_groups: int = 1,
    scale: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Chooses the experts of each token, and their weights.

    By default weights are a softmax of the chosen scores, as in Mixtral (arXiv 2401.04088, section
    2.1) and gpt-oss (arXiv 2508.10925, section 2.2). The same are the chosen of a softmax of all
    scores, divided by their sum, as in Qwen3 (`norm_topk_prob` of its config.json). With
    `normalize=False` they are not divided, as in Switch Transformer (arXiv 2101.03961, section
    2.1). DeepSeek-V3 (arXiv 2412.19437, section 2.1.2, equations 13 to 16, and config.json) has
    `scoring="sigmoid", bias=bias, groups=8, top_groups=4, scale=2.5`.

    Args:
      scores: what the router makes of tokens (logits), floating-point, shape (..., experts).
      top_k: experts of a token.
      scoring: what makes affinities of a token's scores: `"softmax"`, or `"sigmoid"` of each.
      normalize: whether a token's weights are divided by their sum.
      bias: shape (experts,), added to affinities for the choice, not for the weights. So its
        gradient is zero; see docs/how_to/moe.md for how it is learned.
      groups: equal runs of experts; a token's are of `top_groups` of them at most.
      top_groups: how many of the groups: those with the largest sums of their two best affinities.
      scale: what weights are multiplied by in the end.

    Returns:
      Experts, int32, and their weights, float32 or wider, shape (..., top_k); the best first, and
      of equal ones the first. Gradients flow to scores by weights.

    Raises:
      ArgumentError: shapes, types or numbers do not fit.
    """
    scores, logits = _check_scores(scores, scoring)
    affinities = jax.nn.softmax(scores) if scoring == "softmax" else jax.nn.sigmoid(scores)
    Routing(scores.shape[-1], top_k, groups, top_groups)  # refuses impossible numbers
    ranked = affinities
    if bias is not None:
        ranked += jnp.broadcast_to(_of_experts("bias", bias, scores), scores.shape)
    elif groups == top_groups:
        ranked = scores  # in the same order, and not rounded to 0 or 1
    ranked = jax.lax.stop_gradient(ranked)
    if groups > top_groups:
        ranked = _in_best_groups(ranked, groups, top_groups)
    ids = jax.lax.top_k(ranked, top_k)[1]
    if normalize:  # by a softmax of logarithms, whose sum is never zero
        weights = jax.nn.softmax(jnp.take_along_axis(logits, ids, -1))
    else:
        weights = jnp.take_along_axis(affinities, ids, -1)
    return ids, weights * scale


def _in_best_groups(ranked: jax.Array, groups: int, top_groups: int) -> jax.Array:
    """What experts are ranked by; the least number for those in none of a token's best groups."""
    size = ranked.shape[-1] // groups
    grouped = ranked.reshape(*ranked.shape[:-1], groups, size)
    best = jax.lax.top_k(grouped, min(2, size))[0].sum(-1)
    chosen = jax.nn.one_hot(jax.lax.top_k(best, top_groups)[1], groups, dtype=bool).any(-2)
    least = jnp.finfo(ranked.dtype).min  # -inf would be an error under jax_debug_infs
    return jnp.where(chosen[..., None], grouped, least).reshape(ranked.shape)


class LoadBalance(NamedTuple):
    """How evenly tokens choose experts: a pytree of scalars.

    Attributes:
      auxiliary_loss: experts times the sum over them of their share of all choices and their mean
        share of affinities: 1 where all are chosen alike. Equations 4 to 6 of Switch Transformer
        (arXiv 2101.03961), and 17 to 20 of DeepSeek-V3 (arXiv 2412.19437), without the factor
        alpha.
      z_loss: mean square of the logarithm of the sum of exponentials of a token's scores (ST-MoE,
        arXiv 2202.08906, section 3.3).
      skew: the most rows of an expert, divided by the mean; 1 is even. 0 without rows.
    """

    auxiliary_loss: jax.Array
    z_loss: jax.Array
    skew: jax.Array


def load_balance(
    expert_rows: jax.Array, scores: jax.Array, *, scoring: Scoring = "softmax"
) -> LoadBalance:
    """Losses that keep experts equally busy and scores small, and how busy the busiest is.

    Args:
      expert_rows: how many tokens chose each expert, shape (experts,), of all devices together, as
        `LayerStats` has them.
      scores: see `route`; of this device's tokens. The mean over devices of losses of equally many
        tokens is that of all tokens, gradients included.
      scoring: see `route`.

    Returns:
      Losses, whose gradients flow to scores, and the skew.

    Raises:
      ArgumentError: shapes or types do not fit.
    """
    scores, logits = _check_scores(scores, scoring)
    num_experts = scores.shape[-1]
    rows = _of_experts("expert_rows", expert_rows, scores)
    relative = jax.lax.stop_gradient(rows * (num_experts / jnp.maximum(rows.sum(), 1)))
    scores, logits = scores.reshape(-1, num_experts), logits.reshape(-1, num_experts)
    tokens = max(1, len(scores))
    shares = jax.nn.softmax(logits).sum(0) / tokens
    z_loss = (jax.nn.logsumexp(scores, -1) ** 2).sum() / tokens
    return LoadBalance((relative * shares).sum(), z_loss, relative.max())


def _check_scores(scores: jax.Array, scoring: str) -> tuple[jax.Array, jax.Array]:
    """Scores in float32 or wider; logarithms of affinities, but for a constant of each token."""
    scores = jnp.asarray(scores)
    if scores.ndim < 1 or not jnp.issubdtype(scores.dtype, jnp.floating):
        raise ArgumentError(
            f"scores must be floating-point, shape (..., experts), got {scores.dtype}, shape "
            f"{scores.shape}."
        )
    if scoring not in ("softmax", "sigmoid"):
        raise ArgumentError(f'scoring must be "softmax" or "sigmoid", got {scoring!r}.')
    scores = scores.astype(types.summed_in(scores.dtype))
    return scores, scores if scoring == "softmax" else jax.nn.log_sigmoid(scores)


def _of_experts(name: str, array: jax.Array, scores: jax.Array) -> jax.Array:
    """One number for each expert, in the type of scores."""
    found = jnp.asarray(array, scores.dtype)
    if found.shape != scores.shape[-1:]:
        raise ArgumentError(
            f"{name} must have one for each of the {scores.shape[-1]} experts that scores have, "
            f"got shape {found.shape}."
        )
    return found
