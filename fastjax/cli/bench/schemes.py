"""What the benchmark compares: every scheduler, over several splits, and what there is today."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import fastjax
from fastjax import _core, scheduling
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
      plan: what is known of the plan; None for others.
    """

    name: str
    exchange: Callable[..., jax.Array] | None
    topology: fastjax.Topology | None = None
    plan: dict[str, Any] | None = None

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
            yield Scheme(
                scheduler,
                _ours(topology, scheduler),
                topology,
                describe_plan(traffic, topology, scheduler, row_bytes),
            )


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


def describe_plan(
    traffic: np.ndarray, topology: fastjax.Topology, scheduler: str, row_bytes: int
) -> dict[str, Any]:
    """Statistics of the plan of this traffic, as it is made on the host."""
    plan = fastjax.make_plan(traffic, topology, scheduler=scheduler, row_bytes=row_bytes)
    transfers = plan.transfers
    inside = np.isin(transfers["phase"], (1, 3))
    bound = plan.lower_bound()
    return {
        "scheduler": plan.scheduler,
        "stages": plan.num_stages,
        "transfers": len(transfers),
        "rows_moved_inside": int(transfers["rows"][inside].sum()),
        "lower_bound_us": bound * 1e6,
        "predicted_us": plan.predicted_time() * 1e6,
        "predicted_by_bound": plan.predicted_time() / bound if bound else 1.0,
        "plan_us": _planning_seconds(plan) * 1e6,
    }


def _planning_seconds(plan: fastjax.Plan, repetitions: int = 50) -> float:
    """Median time of the C++ planner for a whole plan and the stage table of one device.

    The planner is called directly; a few microseconds of this are the call itself and the arrays it
    makes, which a compiled program does not spend.
    """
    words = plan.topology.words
    number = scheduling.NAMES.index(plan.scheduler)
    seconds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        core = _core.HostPlan(plan.traffic, words, number, plan.row_bytes)
        core.table(0)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))
