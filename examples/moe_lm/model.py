"""The model: a decoder whose feed-forward layers are mixtures of experts, on bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastjax import moe
from moe_lm.layers import AXIS, Layer

BYTES = 256
_P = jax.P


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model.

    Attributes:
      width: of a token.
      layers: attention and experts, one behind the other, so often.
      heads: of attention.
      experts, top_k: of a layer, and of a token.
      inner: width inside an expert.
      length: bytes of a sequence.
    """

    width: int
    layers: int
    heads: int
    experts: int
    top_k: int
    inner: int
    length: int


def init(shape: Shape, seed: int) -> dict[str, Any]:
    """Random parameters; what layers have is one array for all of them, layers first."""
    rng = np.random.default_rng(seed)

    def matrix(*sizes: int, fan_in: int) -> np.ndarray:
        return rng.normal(0, fan_in**-0.5, sizes).astype(np.float32)

    n, d, e, f = shape.layers, shape.width, shape.experts, shape.inner
    return {
        "embedding": matrix(BYTES, d, fan_in=d),
        "positions": matrix(shape.length, d, fan_in=d),
        "layers": {
            "attention": {"in": matrix(n, d, 3 * d, fan_in=d), "out": matrix(n, d, d, fan_in=d)},
            "scales": np.ones((n, 2, d), np.float32),
            "router": matrix(n, d, e, fan_in=d),
            "experts": (matrix(n, e, d, f, fan_in=d), matrix(n, e, f, d, fan_in=f)),
        },
        "scale": np.ones(d, np.float32),
    }


def specs(tree: Any) -> Any:
    """How arrays are laid out: experts over the devices, all else the same on each.

    Args:
      tree: of parameters, or with such trees in it, as an optimizer's state.
    """

    def spec(path: Any, _: Any) -> Any:
        owned = any(getattr(key, "key", None) == "experts" for key in path)
        return _P(None, AXIS) if owned else _P()

    return jax.tree_util.tree_map_with_path(spec, tree)


def loss(
    params: Any, bias: Any, batch: Any, shape: Shape, layer: Layer, balance: float
) -> tuple[Any, tuple[Any, Any, Any]]:
    """Of one device, inside `jax.shard_map`.

    Args:
      params: those of `init`, but only this device's experts.
      bias: added to what experts are chosen by, shape (layers, experts).
      batch: uint8, shape (sequences, length + 1).
      shape: of the model.
      layer: how tokens reach their experts.
      balance: weight of the auxiliary loss.

    Returns:
      What to minimise; the cross entropy in nats a byte; the experts that tokens chose, int32,
      shape (layers, tokens, k); and how many tokens of all devices chose each, shape (layers,
      experts). Losses are means over all devices.
    """
    inputs, targets = batch[:, :-1].astype(np.int32), batch[:, 1:].astype(np.int32)
    x = params["embedding"][inputs] + params["positions"]

    def block(x: Any, own_and_bias: Any) -> tuple[Any, Any]:
        own, bias = own_and_bias
        x = x + _attention(_normed(x, own["scales"][0]), own["attention"], shape.heads)
        tokens = _normed(x, own["scales"][1]).reshape(-1, shape.width)
        scores = tokens @ own["router"]
        ids, weights = moe.route(scores, shape.top_k, bias=bias)
        made, rows = layer(tokens, ids, weights, own["experts"])
        uneven = moe.load_balance(rows, scores).auxiliary_loss
        return x + made.reshape(x.shape), (ids, rows, uneven)

    x, (ids, rows, uneven) = jax.lax.scan(block, x, (params["layers"], bias))
    logits = _normed(x, params["scale"]) @ params["embedding"].T
    chances = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    entropy = jax.lax.pmean(-chances.mean(), AXIS)
    whole = entropy + balance * jax.lax.pmean(uneven.mean(), AXIS)
    return whole, (entropy, ids, jax.lax.pmax(rows, AXIS))


def _normed(x: Any, scale: Any) -> Any:
    return x * scale * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _attention(x: Any, own: Any, heads: int) -> Any:
    """Causal, with as many heads; x of shape (sequences, length, width)."""
    parts = (x @ own["in"]).reshape(*x.shape[:2], 3, heads, -1)
    mixed = jax.nn.dot_product_attention(*jnp.moveaxis(parts, 2, 0), is_causal=True)
    return mixed.reshape(x.shape) @ own["out"]
