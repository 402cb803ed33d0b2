"""Synthetic routing: tokens choose as many experts, with the same limits, as in a known model."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.traffic import checks
from fastjax.traffic.generators import Seed, zipf


@dataclasses.dataclass(frozen=True)
class Routing:
    """How a layer's tokens choose experts.

    Attributes:
      num_experts: experts of the layer, without those that every token has (shared experts).
      top_k: experts of a token, all different.
      groups: equal runs of experts; a token's are of `top_groups` of them at most.
      top_groups: how many of the groups.
      width: elements of a token's row; None if nobody says.
      source: who says so.
      hidden: rows of an expert's three matrices of that width; None if nobody says.

    Raises:
      ArgumentError: the numbers are impossible.
    """

    num_experts: int
    top_k: int
    groups: int = 1
    top_groups: int = 1
    width: int | None = None
    source: str = ""
    hidden: int | None = None

    def __post_init__(self) -> None:
        checks.integer("num_experts", self.num_experts, 1)
        checks.integer("groups", self.groups, 1)
        if self.num_experts % self.groups:
            raise ArgumentError(
                f"{self.num_experts} experts do not divide into {self.groups} groups."
            )
        checks.integer("top_groups", self.top_groups, 1, self.groups)
        available = self.num_experts // self.groups * self.top_groups
        checks.integer("top_k", self.top_k, 1, available)
        for name in ("width", "hidden"):
            if (value := getattr(self, name)) is not None:
                checks.integer(name, value, 1)

    def choices(
        self,
        devices: int,
        tokens: int,
        *,
        exponent: float = 0.0,
        seed: Seed = 0,
    ) -> np.ndarray:
        """Experts of each token, for `layer_traffic`.

        An expert's score for a token is the logarithm of its popularity and Gumbel noise. So
        without groups the first choice is an expert with its popularity, the second one of those
        that are left, and so on. With groups, as in DeepSeek-V3, the `top_groups` with the largest
        sums of their two best scores are left first.

        Args:
          devices: of the layer.
          tokens: of each device.
          exponent: of Zipf's law, by which experts are popular, in random order and alike for all
            devices; 0 for all equal. Real traces fit 0.4 to 0.8.
          seed: of the random numbers.

        Returns:
          int64, shape (devices, tokens, top_k); each token's in rising order.

        Raises:
          ArgumentError: an argument is out of bounds.
        """
        checks.integer("devices", devices, 1)
        checks.integer("tokens", tokens, 0)
        rng = np.random.default_rng(seed)
        popularity = rng.permutation(np.log(zipf(self.num_experts, exponent)))
        chosen = np.empty((devices, tokens, self.top_k), np.int64)
        for device in range(devices):
            arrivals = rng.standard_exponential((tokens, self.num_experts), np.float32)
            noise = -np.log(np.maximum(arrivals, np.finfo(np.float32).tiny))
            scores = self._in_best_groups(noise + popularity.astype(np.float32))
            best = np.argpartition(-scores, self.top_k - 1, axis=1)[:, : self.top_k]
            chosen[device] = np.sort(best, axis=1)
        return chosen

    def _in_best_groups(self, scores: np.ndarray) -> np.ndarray:
        """Scores, -inf where a token's expert is in no group that it may choose from."""
        if self.top_groups == self.groups:
            return scores
        grouped = scores.reshape(*scores.shape[:-1], self.groups, self.num_experts // self.groups)
        two = min(2, grouped.shape[2])
        sums = -np.partition(-grouped, two - 1, axis=2)[:, :, :two].sum(2)
        worst = np.argsort(sums, axis=1)[:, : self.groups - self.top_groups]
        np.put_along_axis(grouped, worst[..., None], -np.inf, 1)
        return grouped.reshape(scores.shape)


ROUTINGS = MappingProxyType(
    {
        "deepseek-v3": Routing(
            256,
            8,
            8,
            4,
            7168,
            "github deepseek-ai/DeepSeek-V3, inference/configs/config_671B.json",
            2048,
        ),
        "kimi-k2": Routing(
            384, 8, 1, 1, 7168, "github MoonshotAI/Kimi-K2, README.md, Model Summary", 2048
        ),
        "qwen3-235b": Routing(
            128, 8, 1, 1, 4096, "Hugging Face Qwen/Qwen3-235B-A22B, config.json", 1536
        ),
        "glm-4.5": Routing(160, 8, 1, 1, 5120, "Hugging Face zai-org/GLM-4.5, config.json", 1536),
        "gpt-oss-120b": Routing(
            128, 4, 1, 1, 2880, "github openai/gpt-oss, gpt_oss/torch/model.py, ModelConfig", 2880
        ),
        "mixtral-8x7b": Routing(8, 2, 1, 1, 4096, "arXiv 2401.04088, table 1", 14336),
    }
)
"""Routings of models whose weights are public, by name; `Routing.source` says who says so."""
