"""What the tokens of a layer choose, and what must cross for it."""

import argparse
import dataclasses

import numpy as np

from emulated_cluster.options import fabric_of
from emulated_cluster.system import ClusterError
from fastjax.traffic import zipf


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of experts, and its tokens.

    Attributes:
      servers, rails: of the cluster; a device for each rail.
      experts: of all devices together.
      top_k: choices of a token.
      exponent: of the Zipf law of experts' popularity; 0: all alike.
      tokens: of a device.
      row_bytes: of a token, a multiple of 4.
      seed: of the choices.
    """

    servers: int
    rails: int
    experts: int
    top_k: int
    exponent: float
    tokens: int
    row_bytes: int
    seed: int

    @property
    def devices(self) -> int:
        """Of all servers."""
        return self.servers * self.rails

    def choices(self) -> np.ndarray:
        """Experts of all tokens, different ones: int32, shape (devices, tokens, k)."""
        rng = np.random.default_rng(self.seed)
        share = rng.permutation(zipf(self.experts, self.exponent))
        shape = (self.devices, self.tokens, self.experts)
        keys = rng.gumbel(size=shape) + np.log(share)
        return np.argsort(-keys, axis=-1)[..., : self.top_k].astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Rows between servers in one exchange: in all, and of the busiest server, in or out."""

    total: int
    busiest: int

    def seconds(self, layer: Layer, rate: int) -> float:
        """The line-rate limit of dispatch and combine together."""
        return 2 * self.busiest * layer.row_bytes * 8 / (layer.rails * rate)


def crossing_once(layer: Layer, choices: np.ndarray) -> Crossing:
    """What crosses if a token crosses once to each server."""
    per_server = layer.experts // layer.servers
    chosen = (choices // per_server)[..., None] == np.arange(layer.servers)
    pairs = chosen.any(2).reshape(layer.servers, -1, layer.servers).sum(1)
    np.fill_diagonal(pairs, 0)
    return Crossing(int(pairs.sum()), int(max(pairs.sum(0).max(), pairs.sum(1).max())))


def of_seconds(options: argparse.Namespace, experts: int, top_k: int, exponent: float) -> Layer:
    """A layer with so many tokens that the limit of crossing once is about `options.seconds`.

    Raises:
      ClusterError: experts do not divide over devices, or a token chooses more than there are.
    """
    fabric = fabric_of(options)
    devices = fabric.servers * fabric.rails
    if experts % devices or not 1 <= top_k <= experts:
        raise ClusterError(
            f"want experts that divide over {devices} devices, and 1 to {experts} choices; got "
            f"{top_k} of {experts}."
        )
    model = Layer(
        servers=fabric.servers,
        rails=fabric.rails,
        experts=experts,
        top_k=top_k,
        exponent=exponent,
        tokens=1024,
        row_bytes=options.row_bytes,
        seed=options.seed,
    )
    limit = crossing_once(model, model.choices()).seconds(model, fabric.rate)
    return dataclasses.replace(model, tokens=max(1, round(model.tokens * options.seconds / limit)))


def arriving(layer: Layer, choices: np.ndarray) -> int:
    """Rows at the experts of the busiest device."""
    per_device = layer.experts // layer.devices
    return int(np.bincount((choices // per_device).reshape(-1), minlength=layer.devices).max())


def levelled(layer: Layer, choices: np.ndarray) -> int:
    """The mean of that on the busiest server: what experts that are levelled take."""
    per_server = layer.experts // layer.servers
    of_servers = np.bincount((choices // per_server).reshape(-1), minlength=layer.servers)
    return -(-int(of_servers.max()) // layer.rails)


def room_factor(layer: Layer, choices: np.ndarray) -> float:
    """The buffer_factor with which nothing is dropped."""
    return arriving(layer, choices) / (layer.tokens * layer.top_k)
