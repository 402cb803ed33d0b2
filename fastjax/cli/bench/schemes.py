"""What the benchmark compares: every scheduler, over several splits, and what there is today."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

import fastjax
from fastjax.cli.bench import baselines
from fastjax.cli.bench.device_workload import AXIS

DENSE = "dense exact"
DENSE_WORST = "dense worst"
ALL_GATHER = "all_gather"
COPY = "copy"


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One way to exchange.

    Attributes:
      name: what it is called, a scheduler's name if it is ours.
      exchange: the exchange as one device calls it; None for the copy, which is none.
      topology: the servers that ours is told of; None for others.
      taken: the scheduler that made the plan, which "auto" chose; None for others.
    """

    name: str
    exchange: Callable[..., jax.Array] | None
    topology: fastjax.Topology | None = None
    taken: str | None = None

    @property
    def servers(self) -> str:
        """Servers x devices of each, for people."""
        if self.topology is None:
            return "-"
        return f"{self.topology.servers}x{self.topology.devices_per_server}"

    @property
    def key(self) -> str:
        """A name no other scheme of a run has."""
        return f"{self.name} {self.servers}"


def ours(
    traffic: np.ndarray, row_bytes: int, servers: Sequence[int], schedulers: Sequence[str]
) -> Iterator[Scheme]:
    """Every scheduler on every split into servers."""
    for count in servers:
        topology = fastjax.Topology(count, traffic.shape[0] // count)
        for scheduler in schedulers:
            plan = fastjax.make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)
            yield Scheme(scheduler, _ours(topology, scheduler), topology, plan.scheduler)


def _ours(topology: fastjax.Topology, scheduler: str) -> Callable[..., jax.Array]:
    def exchange(*operands: jax.Array) -> jax.Array:
        return fastjax.fast_ragged_all_to_all(
            *operands, axis_name=AXIS, topology=topology, scheduler=scheduler
        )

    return exchange


def today(traffic: np.ndarray) -> list[Scheme]:
    """What JAX users can write without fastjax."""
    rows = int(traffic.sum(axis=1).max())
    return [
        Scheme(DENSE, baselines.dense(AXIS, max(1, int(traffic.max())))),
        Scheme(DENSE_WORST, baselines.dense(AXIS, max(1, rows))),
        Scheme(ALL_GATHER, baselines.all_gather(AXIS)),
    ]
