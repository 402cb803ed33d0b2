"""What exchanges did: statistics of each call site, taken while programs run.

A call site is one exchange, or one planning, of one compiled program. Nothing is collected, and
nothing is paid for it, until `FASTJAX_STATS=1` or `collect_stats` says so.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import math
import os
from typing import Any, Literal, NamedTuple

import numpy as np

from fastjax import _core, config, scheduling
from fastjax.errors import ArgumentError
from fastjax.host import site_table
from fastjax.topology import Topology, topology_of_words


class Times(NamedTuple):
    """Seconds, by a monotonic clock on the host; nan where there was none.

    Attributes:
      last: the latest.
      mean: the mean of all.
      longest: the longest of all.
    """

    last: float
    mean: float
    longest: float


@dataclasses.dataclass(frozen=True)
class SiteStats:
    """What one call site did in this process, since statistics were collected or last reset.

    A launch is what the devices of one group did together, once. A call site of several groups,
    or in a loop, has several launches in each run of its program. What is said of a plan or of
    traffic is that of the launch that ended last.

    Attributes:
      name: what profiles call it, or the end of that: its place in the shard_map, loop or branch
        that it is in, with the names of `jax.named_scope` there.
      operation: "fast_ragged_all_to_all"; or "plan_ragged_all_to_all", which moves nothing; or
        "gather_counts", where CPU devices of a layer of experts only count. That counts nowhere as
        a plan, and its traffic is what tokens ask for: their choices, by the devices that have the
        experts.
      program: the compiled program.
      active: whether that program is still there.
      axis_name: the mesh axes.
      group_size: devices that exchange with each other.
      platform: "cpu", "cuda" or "rocm".
      topology: the fabric, as the planner was told; None where the program does not say.
      direction: "reverse" for the gradient of an exchange, which sends rows back.
      plan: where plans come from: "own" is made by each launch, "given" came as `plan=`,
        "transposed" as well, for the way back. "own" where there is none.
      asked_scheduler: the scheduler, where the call site plans, "" where a plan is given. Inside
        one server, "auto" is "direct".
      scheduler: that of the last plan; what "auto" took.
      stages: scale-out stages of the last plan.
      launches: how many ended well.
      failures: how many ended in an error, a time-out among them; they count nowhere else.
      plans_made: how many planned.
      plans_reused: how many found a plan of the same traffic, kept from before.
      plans_given: how many were given a plan.
      rows: rows of the last exchange, of all devices of the group, also those that stay on their
        device; 0 for a planning.
      total_rows: rows of all.
      dropped_rows: rows out of range that all launches dropped, where `overflow="drop"`.
      row_bytes: bytes of a row; for a planning, what the planner was told.
      total_bytes: bytes of all rows.
      skew: the most rows that a device sends or receives, over the mean of all; 1 is even.
      mean_skew: the mean of that over launches.
      traffic: the last traffic, int64, shape (group_size, group_size): rows that device i sends to
        device j, as they travelled, in the topology's server-major numbering.
      planning_time: of launches that plan, from the counts to the stage tables of this process.
      exchange_time: from when all devices are there until the last row has landed; planning is part
        of it, where the call site plans. nan for a planning.
      queued: exchange_time ends when the work is on the GPUs' streams: it is the host's alone.
      tokens: of a layer of experts: its tokens on all devices of the group, in one launch; 0 where
        the exchange or planning is of no layer, or of copies inside servers.
      choices: of these tokens: experts that they choose, with choices of none (-1).
      predicted_time: seconds, by the cost model, for the last traffic with the scheduler that was
        taken; planning is part of it, where the call site plans. nan without a topology.
      lower_bound: seconds that no schedule can beat. nan without a topology.
    """

    name: str
    operation: str
    program: str
    active: bool
    axis_name: tuple[str, ...]
    group_size: int
    platform: str
    topology: Topology | None
    direction: Literal["forward", "reverse"]
    plan: Literal["own", "given", "transposed"]
    asked_scheduler: str
    scheduler: str
    stages: int
    launches: int
    failures: int
    plans_made: int
    plans_reused: int
    plans_given: int
    rows: int
    total_rows: int
    dropped_rows: int
    row_bytes: int
    total_bytes: int
    skew: float
    mean_skew: float
    traffic: np.ndarray = dataclasses.field(repr=False, compare=False)
    planning_time: Times
    exchange_time: Times
    queued: bool
    tokens: int
    choices: int
    predicted_time: float
    lower_bound: float

    @property
    def crossing_rows(self) -> int | None:
        """Of the last traffic, the rows that went to another server; None without a topology."""
        if self.topology is None:
            return None
        server = np.arange(len(self.traffic)) // self.topology.devices_per_server
        return int(self.traffic[server[:, None] != server].sum())

    @property
    def slowest(self) -> float | None:
        """The most rows that arrive at a device, over the mean of its server; 1 is even.

        Of the last traffic. At experts, the slowest device takes as many times as long as it would
        if its server's were levelled. None without a topology.
        """
        if self.topology is None:
            return None
        rows = self.traffic.sum(0).reshape(-1, self.topology.devices_per_server)
        rows = rows[rows.any(1)]
        return float((rows.max(1) / rows.mean(1)).max()) if len(rows) else 1.0

    def __str__(self) -> str:
        return site_table.table([self])


def stats() -> list[SiteStats]:
    """What exchanges did in this process, call site by call site, in order of creation.

    Those that have not run while statistics were collected are left out. Results that JAX has not
    waited for may still be in flight: call `jax.block_until_ready` before. Predictions are made
    now, by planning the last traffic of each call site once more.
    """
    return [_site(report) for report in _core.site_reports()]


def reset_stats() -> None:
    """Forgets all statistics, and the call sites whose programs are gone."""
    _core.reset_reports()


def stats_summary() -> str:
    """`stats()` as a table, or why there are none.

    A line is for one place and one purpose: in a layer of experts dispatch, combine, their
    gradients and what is computed once more for these. It is of all programs, and of all chunks.
    Launches add up; what `stats()` has as a mean, or of the last launch, is a mean over these.
    """
    sites = stats()
    if sites:
        return site_table.table(sites)
    if _core.collecting():
        return "No exchange has ended since statistics are collected."
    return "No statistics are collected: set FASTJAX_STATS=1, or call fastjax.collect_stats()."


def collect_stats(on: bool = True) -> contextlib.AbstractContextManager[Any]:
    """Collects statistics from now on, or not, in all threads of this process.

    Nothing is traced or compiled anew. As a context manager, it goes back to what was before:

        with fastjax.collect_stats():
            jax.block_until_ready(step(batch))
        print(fastjax.stats_summary())

    Launches count if they began while statistics were collected. JAX does not wait for results: do
    so before the end of the scope.

    Raises:
      ArgumentError: on is neither True nor False.
    """
    if not isinstance(on, bool):
        raise ArgumentError(f"on must be True or False, got {on!r}.")
    undo = contextlib.ExitStack()
    undo.callback(_core.collect, _core.collecting())
    _core.collect(on)
    return undo


def _site(report: dict[str, Any]) -> SiteStats:
    traffic = report["traffic"]
    size = report["group_size"] if traffic.size else 0
    report["traffic"] = traffic = traffic.reshape(size, size)
    report["predicted_time"], report["lower_bound"] = _predict(report)
    report["axis_name"] = _axis_names(report["axis"])
    report["topology"] = topology_of_words(report["words"]) if report["words"] else None
    for name in ("planning_time", "exchange_time"):
        report[name] = Times(*report[name])
    return SiteStats(**{field.name: report[field.name] for field in dataclasses.fields(SiteStats)})


def _axis_names(axis: str) -> tuple[str, ...]:
    """The names, from how messages write them; of names that are no strings, that text."""
    try:
        names = ast.literal_eval(axis)
    except (ValueError, SyntaxError):
        return (axis,)
    return tuple(str(name) for name in (names if isinstance(names, tuple) else (names,)))


def _predict(report: dict[str, Any]) -> tuple[float, float]:
    """Seconds that the last traffic takes, and takes at least."""
    words, traffic, scheduler = report["words"], report["traffic"], report["scheduler"]
    if not words or not traffic.size or not scheduler:
        return math.nan, math.nan
    if (report["plan"] == "transposed") != (report["direction"] == "reverse"):
        traffic = np.ascontiguousarray(traffic.T)  # as it was planned
    number = scheduling.ALL[scheduler].number
    core = _core.HostPlan(traffic, words, number, max(1, report["row_bytes"]))
    before = core.planning_time() if report["plan"] != "own" else 0.0
    return core.predicted_time() - before, core.lower_bound()


_core.collect(config.stats_from_environment(os.environ))
