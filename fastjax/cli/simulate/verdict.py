"""What planning gains, what limits it, and what would help: each thing tried, by simulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import fastjax
from fastjax.cli.shared import text
from fastjax.cli.shared.progress import Progress
from fastjax.cli.simulate import costs
from fastjax.cli.simulate.costs import Cost
from fastjax.simulation import Fabric, Incast

_ALIKE = 0.02  # times that differ by less are the same, as far as a simulation can tell
_WORTH = 0.05  # what saves less hardly helps
_LARGER = 4
_TODAY = "direct, as NCCL and jax.lax send,"
_MOST_ROW_BYTES = 2**40
_MOST_RATE = 2.0**62


Case = tuple[fastjax.Topology, Fabric, int]
"""The rates, how the fabric behaves, and bytes of a row."""


def cases(topology: fastjax.Topology, fabric: Fabric, row_bytes: int) -> dict[str, Case]:
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


def try_cases(best: Cost, cases: Mapping[str, Case], progress: Progress) -> dict[str, float]:
    """The share of the time, planning included, that each would save with the same scheduler.

    Of larger rows it is the time of as many bytes.
    """
    plan, time, saved = best.plan, best.timeline.total_time, {}
    for what, case in cases.items():
        cost = costs.simulate(plan.scheduler, plan.traffic, *case, progress, what)
        saved[what] = 1 - cost.timeline.total_time / (case[2] // plan.row_bytes) / time
    return saved


def record(found: Sequence[Cost], today: float | None, saved: dict[str, float]) -> dict[str, Any]:
    """What was tried, and the verdict: sentences."""
    best = costs.best_of(found)
    if not best.timeline.completion_time:
        words = ["There is nothing to move."]
    else:
        words = [*_gain(best, today), *_choice(found, best), *_help(best, saved)]
    return {"best": best.asked, "what_would_save": saved, "verdict": words}


def _gain(best: Cost, today: float | None) -> list[str]:
    time, bound = best.timeline.total_time, best.timeline.lower_bound
    by_bound = best.timeline.completion_time / bound
    with_planning = f"{text.seconds(time)} with planning"
    words = [f"Best: {best.name}, {with_planning}; without, {by_bound:.2f} x the lower bound."]
    if today is None:
        return [*words, f"{_TODAY} cannot go round NICs that have failed."]
    if today <= time * (1 + _ALIKE):
        return [*words, f"Planning gains nothing here: {_TODAY} takes {text.seconds(today)}."]
    return [*words, f"{_TODAY} takes {text.seconds(today)}, {today / time:.2f} x as long."]


def _choice(found: Sequence[Cost], best: Cost) -> list[str]:
    time, words = best.timeline.total_time, []
    others = [cost for cost in found if cost is not best and not cost.chooses]
    alike = [cost.name for cost in others if cost.timeline.total_time <= time * (1 + _ALIKE)]
    if others and len(alike) == len(others):
        words.append(f"All are within {_ALIKE:.0%} of it: here it does not matter which one plans.")
    elif alike:
        words.append(f"As good, within {_ALIKE:.0%}: {', '.join(alike)}.")
    return words + [_of_auto(cost, found, time) for cost in found if cost.chooses]


def _of_auto(auto: Cost, found: Sequence[Cost], least: float) -> str:
    more = auto.timeline.total_time / least - 1
    if more <= _ALIKE:
        return f"auto takes {auto.plan.scheduler}, which is as good as any."
    named = [cost.timeline.total_time for cost in found if cost.asked == auto.plan.scheduler]
    if named and named[0] / least - 1 <= _ALIKE:
        return (
            f"auto takes {auto.plan.scheduler}, which is as good as any; looking at the others "
            f"takes {auto.timeline.total_time / named[0] - 1:.0%} more."
        )
    return (
        f"auto takes {auto.plan.scheduler}, which takes {more:.0%} more: its cost model sees it "
        "differently from the simulation. Name the scheduler where you trust this one more."
    )


def _help(best: Cost, saved: dict[str, float]) -> list[str]:
    words = [f"Its time goes to: {costs.limited_by(best.timeline)}."]
    ranked = sorted(saved.items(), key=lambda case: -case[1])
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
