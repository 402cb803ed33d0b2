"""Many steps of a layer in chunks in one job: nothing is ever wrong, and nothing piles up.

For test_endurance.py, in short, and for benchmarks/endurance.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from enduring import Sampler
from exchange_checks.backends import same, spread
from jax.sharding import PartitionSpec as P
from spmd import mesh_of

import fastjax
from fastjax import moe

TOKENS, TOP_K, WIDTH, EXPERTS = 12, 3, 64, 16
_DRIFT = 50  # steps after which other experts are popular


@dataclasses.dataclass
class Step:
    """What a step takes: small integers, so that sums are exact in float32 in any order."""

    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    factors: np.ndarray
    ct: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, devices: int, number: int) -> Step:
        """Tokens that prefer some experts, which drift; some choices go nowhere."""
        numbers = lambda *shape: rng.integers(-4, 5, shape).astype(np.float32)  # noqa: E731
        # A popular expert comes and goes, and the next one after it, round and round.
        turn = 2 * np.pi * (number / (_DRIFT * EXPERTS) - np.arange(EXPERTS) / EXPERTS)
        popular = 3 * np.cos(turn) + rng.normal(size=EXPERTS)
        likely = rng.gumbel(size=(devices, TOKENS, EXPERTS)) + popular
        # Those of a token differ, or there would not be room for all rows.
        ids = np.argsort(-likely)[..., :TOP_K].astype(np.int32)
        ids[rng.random(ids.shape) < 0.1] = -1
        rows = (devices, TOKENS, WIDTH)
        each = numbers(devices, TOKENS, TOP_K), numbers(devices, EXPERTS // devices)
        return cls(numbers(*rows), ids, *each, numbers(*rows))

    def expected(self) -> tuple[np.ndarray, ...]:
        """The layer's result, and gradients of tokens, weights and factors."""
        there = self.ids >= 0
        each = np.where(there, self.factors.reshape(-1)[self.ids], 0)
        share = (each * self.weights).sum(-1, keepdims=True)
        dots = (self.x * self.ct).sum(-1, keepdims=True)
        factors = np.zeros(EXPERTS, np.float32)
        np.add.at(factors, self.ids[there], (self.weights * dots)[there])
        return self.x * share, self.ct * share, each * dots, factors.reshape(self.factors.shape)


def _program(mesh: jax.sharding.Mesh, chunks: int, *, deduplicate: bool, balance: bool) -> Any:
    servers = jax.process_count()
    topology = fastjax.Topology(servers, mesh.size // servers)

    def layer(x: jax.Array, ids: jax.Array, weights: jax.Array, factors: jax.Array) -> Any:
        experts = lambda rows, factor: rows * factor  # noqa: E731
        options: dict[str, Any] = {"num_experts": EXPERTS, "axis_name": "x", "chunks": chunks}
        options |= {"deduplicate": deduplicate, "topology": topology, "balance": balance}
        return moe.layer(x, ids, weights, factors, expert_fn=experts, return_stats=True, **options)

    def local(*arrays: jax.Array) -> Any:
        x, ids, weights, factors, ct = (array[0] for array in arrays)
        result, back, stats = jax.vjp(
            lambda x, w, f: layer(x, ids, w, f), x, weights, factors, has_aux=True
        )
        return [array[None] for array in (result, *back(ct), stats.copies)]

    local.__name__ = f"layer_{'once' if deduplicate else 'each'}{'_balanced' * balance}"
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x")))


def step_on_and_on(steps: int, chunks: int, seed: int, samples: int) -> dict[str, Any]:
    """Runs in a job: that many steps of four layers in turn, each checked in every process.

    Of two, a token crosses once to each server; of the others, once for each choice. One of either
    kind levels the experts of a server. "copies": how many it had, of this process's devices.
    """
    rng = np.random.default_rng(seed)
    mesh = mesh_of((jax.device_count(),))
    programs = [
        _program(mesh, chunks, deduplicate=once, balance=balance)
        for balance in (False, True)
        for once in (True, False)
    ]
    sampler = Sampler(min(len(programs), steps), steps, samples)
    copied = 0
    for number in range(steps):
        step = Step.draw(rng, mesh.size, number)
        *results, copies = programs[number % len(programs)](
            *spread(mesh, dataclasses.astuple(step))
        )
        for result, want in zip(results, step.expected(), strict=True):
            try:
                same(result, want)
            except AssertionError as error:
                raise AssertionError(f"step {number}: {error}") from None
        copied += sum(int(shard.data.sum()) for shard in copies.addressable_shards)
        sampler.take(number + 1)
    refused = fastjax._core.network_state()["refused"]
    return {"samples": sampler.found, "refused": refused, "copies": copied}
