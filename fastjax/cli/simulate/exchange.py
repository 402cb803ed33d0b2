"""What an exchange costs with each scheduler, simulated; and what planning gains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.cli.shared import text
from fastjax.cli.shared.options import Source
from fastjax.cli.shared.progress import Progress
from fastjax.simulation import Fabric, Timeline

_SHOWN = 0.1  # what takes less of the time is not among what limits it
_ALIKE = 0.02  # times that differ by less are the same, as far as a simulation can tell
_TODAY = "direct, as NCCL and jax.lax send,"


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
        """The scheduler, and the one that it chose if that is another."""
        taken = self.plan.scheduler
        return self.asked if taken == self.asked else f"{self.asked} ({taken})"

    @property
    def seconds(self) -> float:
        """With planning."""
        return self.timeline.total_time


@dataclasses.dataclass(frozen=True)
class Costs:
    """An exchange simulated with several schedulers.

    Attributes:
      each: with each of them.
      today: seconds that it takes as people have it: all at once, which nobody plans. None where
        NICs have failed, round which it does not go.
    """

    each: list[Cost]
    today: float | None

    @property
    def best(self) -> Cost:
        """The fastest, planning included; one that chooses only where no other is as fast."""
        return min(self.each, key=lambda c: (c.seconds, scheduling.ALL[c.asked].chooses))


def simulate(source: Source, fabric: Fabric, schedulers: Sequence[str]) -> Costs:
    """Plans and simulates an exchange with each scheduler."""
    topology, direct = source.topology, scheduling.FALLBACK
    names = [*schedulers, *([direct] if not topology.failed_nics else [])]
    found: dict[str, Cost] = {}
    with Progress(len({*names})) as progress:
        for name in dict.fromkeys(names):
            progress.begin(name)
            plan = fastjax.make_plan(
                source.matrix, topology, scheduler=name, row_bytes=source.row_bytes
            )
            timeline = fastjax.simulate(
                plan,
                synchronization=fabric.synchronization,
                incast=fabric.incast,
                oversubscription=fabric.oversubscription,
            )
            found[name] = Cost(name, plan, timeline)
    today = None if topology.failed_nics else found[direct].timeline.completion_time
    return Costs([found[name] for name in schedulers], today)


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


def table(costs: Costs, *, verbose: bool) -> str:
    """A line for each scheduler."""
    bound = costs.best.timeline.lower_bound

    def ratio(seconds: float, by: float | None) -> str:
        return text.number(seconds / by if by else None)

    columns: text.Columns = {
        "scheduler": lambda cost: cost.name,
        "time": lambda cost: text.seconds(cost.timeline.completion_time),
        "with planning": lambda cost: text.seconds(cost.seconds),
        "x today": lambda cost: ratio(cost.seconds, costs.today),
        "x bound": lambda cost: ratio(cost.timeline.completion_time, bound),
        "stages": lambda cost: str(cost.plan.num_stages),
        "what limits it": lambda cost: limited_by(cost.timeline),
    }
    if not verbose:
        del columns["time"], columns["stages"]
    caption = (
        "x today: by direct without planning, as NCCL and jax.lax send. x bound: without planning."
    )
    return text.table(f"cost; lower bound: {text.seconds(bound)}", columns, costs.each, caption)


def verdict(costs: Costs) -> list[str]:
    """What planning gains: sentences."""
    best, today = costs.best, costs.today
    if not best.timeline.completion_time:
        return ["There is nothing to move."]
    by_bound = best.timeline.completion_time / best.timeline.lower_bound
    with_planning = f"{text.seconds(best.seconds)} with planning"
    words = [f"Best: {best.name}, {with_planning}; without, {by_bound:.2f} x the lower bound."]
    if today is None:
        words.append(f"{_TODAY} cannot go round NICs that have failed.")
    elif today <= best.seconds * (1 + _ALIKE):
        words.append(f"Planning gains nothing here: {_TODAY} takes {text.seconds(today)}.")
    else:
        longer = f"{today / best.seconds:.2f} x as long"
        words.append(f"{_TODAY} takes {text.seconds(today)}, {longer}.")
    return words
