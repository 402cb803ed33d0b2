"""What an exchange costs with each scheduler, simulated; what planning gains, what would help."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

import fastjax
from fastjax import scheduling
from fastjax.cli.shared import text
from fastjax.cli.shared.options import Source
from fastjax.cli.shared.progress import Progress
from fastjax.simulation import Fabric, Incast, Timeline

_SHOWN = 0.1  # what takes less of the time is not among what limits it
_ALIKE = 0.02  # times that differ by less are the same, as far as a simulation can tell
_WORTH = 0.05  # what saves less hardly helps
_LARGER = 4
_TODAY = "direct, as NCCL and jax.lax send,"
_MOST_ROW_BYTES = 2**40
_MOST_RATE = 2.0**62

Case = tuple[fastjax.Topology, Fabric, int]
"""The rates, how the fabric behaves, and bytes of a row."""


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

    @property
    def chooses(self) -> bool:
        """Whether the scheduler that was asked for takes another one's plan."""
        return scheduling.ALL[self.asked].chooses


@dataclasses.dataclass(frozen=True)
class Costs:
    """An exchange simulated with several schedulers.

    Attributes:
      each: with each of them.
      today: seconds that it takes as people have it: all at once, which nobody plans. None where
        NICs have failed, round which it does not go.
      saved: the share of the time that a change would save with the best scheduler, by what is
        changed. Of larger rows it is the time of as many bytes.
    """

    each: list[Cost]
    today: float | None
    saved: dict[str, float]

    @property
    def best(self) -> Cost:
        """The fastest, planning included; one that chooses only where no other is as fast."""
        return _best(self.each)


def simulate(source: Source, fabric: Fabric, schedulers: Sequence[str]) -> Costs:
    """Plans and simulates an exchange with each scheduler, and the best one's with each change."""
    topology, row_bytes, direct = source.topology, source.row_bytes, scheduling.FALLBACK
    case, cases = (topology, fabric, row_bytes), _cases(topology, fabric, row_bytes)
    more = direct not in schedulers and not topology.failed_nics
    with Progress(len(schedulers) + more + len(cases)) as progress:

        def cost(scheduler: str, case: Case, what: str) -> Cost:
            topology, fabric, size = case
            with progress.step(what) as share:
                plan = fastjax.make_plan(
                    source.matrix, topology, scheduler=scheduler, row_bytes=size
                )
                timeline = fastjax.simulate(
                    plan,
                    synchronization=fabric.synchronization,
                    incast=fabric.incast,
                    oversubscription=fabric.oversubscription,
                    progress=share,
                )
            return Cost(scheduler, plan, timeline)

        each = [cost(name, case, name) for name in schedulers]
        at_once = [cost(direct, case, direct)] if more else [c for c in each if c.asked == direct]
        best, saved = _best(each), {}
        for what, changed in cases.items():
            seconds = cost(best.plan.scheduler, changed, what).seconds
            saved[what] = 1 - seconds / (changed[2] // row_bytes) / best.seconds
    return Costs(each, at_once[0].timeline.completion_time if at_once else None, saved)


def _best(costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: (cost.seconds, cost.chooses))


def _cases(topology: fastjax.Topology, fabric: Fabric, row_bytes: int) -> dict[str, Case]:
    """What there is to try, in words."""
    found: dict[str, Case] = {}
    nics, twice = topology.nic_bandwidths, 2 * topology.scale_out_bandwidth
    if topology.servers > 1 and twice < _MOST_RATE:
        faster = nics and tuple(2 * rate for rate in nics)
        faster = dataclasses.replace(topology, scale_out_bandwidth=twice, nic_bandwidths=faster)
        found["NICs twice as fast"] = (faster, fabric, row_bytes)
    twice = 2 * topology.scale_up_bandwidth
    if topology.devices_per_server > 1 and twice < _MOST_RATE:
        faster = dataclasses.replace(topology, scale_up_bandwidth=twice)
        found["links inside servers twice as fast"] = (faster, fabric, row_bytes)
    if (larger := row_bytes * _LARGER) < _MOST_ROW_BYTES:
        found[f"exchanges {_LARGER} times as large, per byte"] = (topology, fabric, larger)
    if isinstance(fabric.incast, Incast) and fabric.incast.points:
        none = dataclasses.replace(fabric, incast="none")
        found["no loss where senders meet"] = (topology, none, row_bytes)
    if fabric.oversubscription > 1:
        full = dataclasses.replace(fabric, oversubscription=1.0)
        found["a core that is never short"] = (topology, full, row_bytes)
    return found


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
    """What planning gains, what limits it, and what would help: sentences."""
    if not costs.best.timeline.completion_time:
        return ["There is nothing to move."]
    return [*_gain(costs.best, costs.today), *_choice(costs), *_help(costs)]


def _gain(best: Cost, today: float | None) -> list[str]:
    by_bound = best.timeline.completion_time / best.timeline.lower_bound
    with_planning = f"{text.seconds(best.seconds)} with planning"
    words = [f"Best: {best.name}, {with_planning}; without, {by_bound:.2f} x the lower bound."]
    if today is None:
        return [*words, f"{_TODAY} cannot go round NICs that have failed."]
    if today <= best.seconds * (1 + _ALIKE):
        return [*words, f"Planning gains nothing here: {_TODAY} takes {text.seconds(today)}."]
    return [*words, f"{_TODAY} takes {text.seconds(today)}, {today / best.seconds:.2f} x as long."]


def _choice(costs: Costs) -> list[str]:
    best, words = costs.best, []
    others = [cost for cost in costs.each if cost is not best and not cost.chooses]
    alike = [cost.name for cost in others if cost.seconds <= best.seconds * (1 + _ALIKE)]
    if others and len(alike) == len(others):
        words.append(f"All are within {_ALIKE:.0%} of it: here it does not matter which one plans.")
    elif alike:
        words.append(f"As good, within {_ALIKE:.0%}: {', '.join(alike)}.")
    return words + [_of_auto(cost, costs) for cost in costs.each if cost.chooses]


def _of_auto(auto: Cost, costs: Costs) -> str:
    least, takes = costs.best.seconds, f"auto takes {auto.plan.scheduler}, which"
    more = auto.seconds / least - 1
    if more <= _ALIKE:
        return f"{takes} is as good as any."
    named = [cost.seconds for cost in costs.each if cost.asked == auto.plan.scheduler]
    if named and named[0] / least - 1 <= _ALIKE:
        looking = auto.seconds / named[0] - 1
        return f"{takes} is as good as any; looking at the others takes {looking:.0%} more."
    return (
        f"{takes} takes {more:.0%} more: its cost model sees it differently from the simulation. "
        "Name the scheduler where you trust this one more."
    )


def _help(costs: Costs) -> list[str]:
    words = [f"Its time goes to: {limited_by(costs.best.timeline)}."]
    ranked = sorted(costs.saved.items(), key=lambda case: -case[1])
    useful = [f"{what} ({share:.0%} less time)" for what, share in ranked if share >= _WORTH]
    useless = [what for what, share in ranked if share < _WORTH]
    words.append(
        f"What would help: {'; '.join(useful)}."
        if useful
        else f"Nothing that was tried would save {_WORTH:.0%}."
    )
    if useful and useless:
        words.append(f"What would save less than {_WORTH:.0%}: {'; '.join(useless)}.")
    return words
