"""What an exchange costs with each scheduler: simulated, as a record and as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.cli.shared import rates, statistics, text
from fastjax.cli.shared.progress import Progress
from fastjax.simulation import INCAST, Fabric, Incast, Timeline

SCHEMA = "fastjax-simulate-1"

_SHOWN = 0.1  # what takes less of the time is not among what limits it
_COLUMNS: text.Columns = {
    "scheduler": lambda entry: entry["name"],
    "time": lambda entry: text.microseconds(entry["time_us"]),
    "with planning": lambda entry: text.microseconds(entry["time_with_planning_us"]),
    "x today": lambda entry: text.number(entry["by_today"]),
    "x bound": lambda entry: text.number(entry["by_bound"]),
    "algbw": lambda entry: text.number(entry["algbw"], 2),
    "FAST's algbw": lambda entry: text.number(entry["fast_algbw"], 2),
    "stages": lambda entry: str(entry["stages"]),
    "what limits it": lambda entry: entry["limited_by"],
}
_VERBOSE = ("time", "algbw", "FAST's algbw", "stages")
_CAPTION = """\
x today: by direct without planning, as NCCL and jax.lax send. x bound: without planning."""
_MORE = """
algbw: GB/s with planning, as nccl-tests has it: of the busiest device. FAST's: of the mean one."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """An exchange simulated.

    Attributes:
      asked: the scheduler that was asked for.
      plan: the plan that it made.
      timeline: what happened when.
    """

    asked: str
    plan: fastjax.Plan
    timeline: Timeline

    @property
    def name(self) -> str:
        """The scheduler, and the one that it chose."""
        return scheduler_name(self.asked, self.plan.scheduler)

    @property
    def chooses(self) -> bool:
        """Whether the scheduler that was asked for takes another one's plan."""
        return scheduling.ALL[self.asked].chooses


def scheduler_name(asked: str, taken: str) -> str:
    """The scheduler that was asked for, and the one that it took if that is another."""
    return asked if taken == asked else f"{asked} ({taken})"


def simulate(
    scheduler: str,
    matrix: np.ndarray,
    topology: fastjax.Topology,
    fabric: Fabric,
    row_bytes: int,
    progress: Progress,
    what: str = "",
) -> Cost:
    """Plans and simulates one exchange, a step of the progress: by default that scheduler's."""
    with progress.step(what or scheduler) as share:
        plan = fastjax.make_plan(matrix, topology, scheduler=scheduler, row_bytes=row_bytes)
        timeline = fastjax.simulate(
            plan,
            synchronization=fabric.synchronization,
            incast=fabric.incast,
            oversubscription=fabric.oversubscription,
            progress=share,
        )
    return Cost(scheduler, plan, timeline)


def best_of(costs: Sequence[Cost]) -> Cost:
    """The fastest, planning included; one that chooses only where no other is as fast."""
    return min(costs, key=lambda cost: (cost.timeline.total_time, cost.chooses))


def today(costs: Sequence[Cost], progress: Progress) -> float | None:
    """Seconds that the exchange takes as people have it: all at once, which nobody plans.

    None where NICs have failed, round which it does not go.
    """
    plan, timeline = costs[0].plan, costs[0].timeline
    if plan.topology.failed_nics:
        return None
    direct = scheduling.FALLBACK
    exchange = (direct, plan.traffic, plan.topology, timeline.fabric, plan.row_bytes, progress)
    found = next((cost for cost in costs if cost.asked == direct), None)
    return (found or simulate(*exchange)).timeline.completion_time


def record(
    costs: Sequence[Cost], today: float | None, source: str, preset: str | None
) -> dict[str, Any]:
    """All of it: times in µs, bandwidths, planning included, in GB/s."""
    least = best_of(costs).timeline.total_time
    plan, fabric = costs[0].plan, costs[0].timeline.fabric
    return {
        "schema": SCHEMA,
        "traffic": statistics.traffic_statistics(plan, source),
        "fabric": fabric_record(plan.topology, fabric, preset),
        "lower_bound_us": plan.lower_bound() * 1e6,
        "today_us": None if today is None else today * 1e6,
        "schedulers": [_statistics(cost, least, today) for cost in costs],
    }


def fabric_record(topology: fastjax.Topology, fabric: Fabric, preset: str | None) -> dict[str, Any]:
    """The fabric's rates, and how it behaves."""
    assert isinstance(fabric.incast, Incast)  # names have been looked up
    known = statistics.fabric_statistics(topology)
    return {"preset": preset, **known, **dataclasses.asdict(fabric)}


def _statistics(cost: Cost, least: float, today: float | None) -> dict[str, Any]:
    plan, timeline = cost.plan, cost.timeline
    bound = timeline.lower_bound
    return {
        "asked": cost.asked,
        "scheduler": plan.scheduler,
        "stages": plan.num_stages,
        "time_us": timeline.completion_time * 1e6,
        "planning_us": timeline.planning_time * 1e6,
        "time_with_planning_us": timeline.total_time * 1e6,
        "by_bound": timeline.completion_time / bound if bound else None,
        "by_best": timeline.total_time / least if least else None,
        "by_today": timeline.total_time / today if today else None,
        **statistics.bandwidths(plan.traffic, plan.row_bytes, timeline.total_time),
        "limits_us": {name: seconds * 1e6 for name, seconds in limits(timeline).items()},
        "name": cost.name,
        "limited_by": limited_by(timeline),
    }


def limits(timeline: Timeline) -> dict[str, float]:
    """`Timeline.limits`, after the planning: seconds that add up to `total_time`.

    Where a narrow core needs longer for what crosses it than the busiest NIC, "core" is in the
    place of "busy".
    """
    parts = {"planning": timeline.planning_time, **timeline.limits()}
    core = _core_time(timeline)
    if core > parts["busy"]:
        parts["waiting"] += parts.pop("busy") - core
        parts["core"] = core
    return parts


def _core_time(timeline: Timeline) -> float:
    """Seconds that the core between servers would need at its full rate; 0 if it is never short."""
    narrow = timeline.fabric.oversubscription
    if narrow <= 1:
        return 0.0
    busy, rates = timeline.busy("scale_out_out"), timeline.rates("scale_out_out")
    working = np.isfinite(rates)  # a NIC that has failed adds nothing to the core
    return float(busy[working] @ rates[working]) / float(rates[working].sum()) * narrow


def limited_by(timeline: Timeline) -> str:
    """What most of the time goes to, in shares of it, planning included; the largest first."""
    if not timeline.completion_time:
        return "nothing moves"
    crosses = bool(timeline.busy("scale_out_out").any())
    bound = timeline.lower_bound
    excess = timeline.limits()["busy"] / bound if bound else 1.0
    # Whether the busiest link has more to do than it would need to.
    much = f" ({excess:.2f} x the bound)" if excess >= 1 + _SHOWN else ""
    words = {
        "planning": "planning",
        "before": "before the NICs" if crosses else "start-up",
        "busy": f"the busiest {'NIC' if crosses else 'link'}{much}",
        "core": "the core between servers",
        "waiting": "waiting",
        "after": "after the NICs",
    }
    parts = sorted(limits(timeline).items(), key=lambda part: -part[1])
    shares = [(name, seconds / timeline.total_time) for name, seconds in parts]
    return ", ".join(f"{words[name]} {share:.0%}" for name, share in shares if share >= _SHOWN)


def table(record: Mapping[str, Any], *, verbose: bool) -> str:
    """A line for each scheduler."""
    columns = {name: c for name, c in _COLUMNS.items() if verbose or name not in _VERBOSE}
    title = f"cost; lower bound: {text.microseconds(record['lower_bound_us'])}"
    return text.table(title, columns, record["schedulers"], _CAPTION + (_MORE if verbose else ""))


def assumptions(fabric: Mapping[str, Any], *, verbose: bool) -> text.Section:
    """What the simulation supposes of the fabric of a record, for people."""
    incast = INCAST[fabric["incast"]["name"]]
    known = {name: text.rate_text(name, fabric[name]) for name in rates.RATES}
    found = rates.preset_section(fabric["preset"]) | {
        "rates": f"{known['scale_up_bandwidth']} a device inside servers, "
        f"{known['scale_out_bandwidth']} a NIC; to start takes {known['scale_up_latency']} and "
        f"{known['scale_out_latency']}",
    }
    behaves = Fabric(fabric["synchronization"], incast, fabric["oversubscription"])
    return found | {"fabric": str(behaves) if verbose else behaves.brief(), "measured": "nothing"}
