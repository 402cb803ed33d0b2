"""What the benchmark compares: every scheduler, over several splits, and what there is today."""

from __future__ import annotations

import dataclasses
import functools
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
      servers: that ours is told of, and devices of each, for people.
      taken: the scheduler that made the plan, which "auto" chose; None for others.
    """

    name: str
    exchange: Callable[..., jax.Array] | None
    servers: str = "-"
    taken: str | None = None

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
            how = {"axis_name": AXIS, "topology": topology, "scheduler": scheduler}
            exchange = functools.partial(fastjax.fast_ragged_all_to_all, **how)
            split = f"{count}x{topology.devices_per_server}"
            yield Scheme(scheduler, exchange, split, plan.scheduler)


def today(traffic: np.ndarray) -> list[Scheme]:
    """What JAX users can write without fastjax."""
    rows = int(traffic.sum(axis=1).max())
    return [
        Scheme(DENSE, baselines.dense(AXIS, max(1, int(traffic.max())))),
        Scheme(DENSE_WORST, baselines.dense(AXIS, max(1, rows))),
        Scheme(ALL_GATHER, baselines.all_gather(AXIS)),
    ]
