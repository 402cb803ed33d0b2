"""Why a plan is what it is, in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastjax import scheduling
from fastjax.host.site_table import in_words
from fastjax.schedule import Schedule

Choice = tuple[int, bool, int, float, float]


def explain(plan: Schedule, asked: str, choices: Sequence[Choice]) -> str:
    """Describes a plan and its cost, and the alternatives of `auto`.

    Args:
      plan: the plan.
      asked: the scheduler that was asked for.
      choices: of `_core.HostPlan.choices`: scheduler's number, whether it was planned, stages,
        seconds of the exchange and of planning.

    Returns:
      Several lines of text.
    """
    lines = [*_headline(plan, asked), *_traffic(plan), *_stages(plan)]
    if choices:
        lines += _table(plan, choices)
    return "\n".join(lines)


def _headline(plan: Schedule, asked: str) -> list[str]:
    chosen = "" if plan.scheduler == asked else f", chosen by {asked}"
    total, bound = plan.predicted_time(), plan.lower_bound()
    before = in_words(plan.planning_time())
    planning = "planning" if plan.scheduler == asked else "planning and choosing"
    times = f", {total / bound:.3f} x the lower bound of {in_words(bound)}" if bound else ""
    return [
        f"{plan.scheduler}{chosen}: {scheduling.ALL[plan.scheduler].description}.",
        f"Predicted: {in_words(total)}, {before} of it for {planning}{times}.",
    ]


def _traffic(plan: Schedule) -> list[str]:
    """How skewed the rows are that cross between servers."""
    n, m = plan.topology.servers, plan.topology.devices_per_server
    cross = plan.traffic.reshape(n, m, n, m).copy()
    cross[np.arange(n), :, np.arange(n), :] = 0
    sent, received = cross.sum(axis=(2, 3)), cross.sum(axis=(0, 1))
    busiest, mean = max(sent.max(), received.max()), sent.mean()
    if not busiest:
        return ["No rows cross between servers."]
    if m == 1:
        return [f"The busiest device has {busiest / mean:.2f} x the mean device's rows."]
    rail = max(sent.sum(axis=1).max(), received.sum(axis=1).max()) / m  # if NICs shared the rows
    gain = (
        "balancing has nothing to gain"
        if busiest <= 1.02 * rail
        else f"balanced over its server's NICs, it would be {rail / mean:.2f} x"
    )
    skew = busiest / mean
    return [f"Between servers, the busiest NIC has {skew:.2f} x the mean device's rows; {gain}."]


def _stages(plan: Schedule) -> list[str]:
    targets, weights = plan.matchings
    if not len(weights):
        return []
    startup = plan.topology.scale_out_latency
    pieces = plan.num_stages - len(weights)
    cut = f", {pieces} of them pieces that hide work inside servers" if pieces > 0 else ""
    made = f"{plan.num_stages} stages from {len(weights)} matchings of {targets.shape[1]} servers"
    return [f"{made}{cut}; their start-ups take {in_words(plan.num_stages * startup)}."]


def _table(plan: Schedule, choices: Sequence[Choice]) -> list[str]:
    lines = ["The choice, exchange + planning:"]
    ordered = sorted(choices, key=lambda choice: choice[3] + choice[4])
    for number, planned, stages, exchange, planning in ordered:
        name = scheduling.NAMES[number]
        total = in_words(exchange + planning)
        if not planned:
            lines.append(f"  {name:<9} {total:>10} at least, so it was not planned")
            continue
        taken = "  <- taken" if name == plan.scheduler else ""
        parts = f"{in_words(exchange)} + {in_words(planning)}"
        count = f"{stages} stage{'s' if stages != 1 else ''}"
        lines.append(f"  {name:<9} {total:>10} = {parts}, {count}{taken}")
    (planning,) = (choice[4] for choice in choices if scheduling.NAMES[choice[0]] == plan.scheduler)
    looking = plan.planning_time() - planning
    if looking > 0:
        lines.append(f"Looking at those that were not taken: {in_words(looking)}.")
    return lines
