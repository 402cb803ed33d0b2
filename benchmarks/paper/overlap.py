"""What it would bring if start-ups of several stages overlapped, as they do between CPU hosts."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastjax import Plan, make_plan
from fastjax.simulation import Fabric, simulate_transfers
from paper.contest import Game
from paper.grids import Key, incasts, problem

# Where start-ups overlap, more and smaller pieces may pay: cut as if they took so many seconds, or,
# for None, what they do take.
CUTS = (None, 5e-6, 2e-6, 1e-6)
# How stages follow each other, and cuts of which the best counts.
WAYS = {
    "credit": ("credit", (None,)),
    "window": ("window", (None,)),
    "window, any cut": ("window", CUTS),
}
NAMES = ("direct", "relay", "balanced", "fast")


def measure(key: Key) -> dict[str, Any]:
    """Seconds without planning, of two-tier and by synchronization of the best of ours."""
    game = Game(*problem(key))
    incast = incasts(key)[0]
    plans = {(name, cut): _plan(game, name, cut) for name in NAMES for cut in CUTS}

    def best(way: str) -> dict[str, Any]:
        synchronization, cuts = WAYS[way]
        fabric = Fabric(synchronization, incast)
        taken, name = min(
            (_seconds(game, plans[name, cut], fabric), name) for name in NAMES for cut in cuts
        )
        return {"completion": taken, "scheduler": name}

    return {
        "lower_bound": game.plan("direct").lower_bound(),
        "two-tier": game.enter("two-tier").play(incast),
        "ways": {way: best(way) for way in WAYS},
    }


def _plan(game: Game, name: str, cut: float | None) -> Plan:
    if cut is None:
        return game.plan(name)
    topology = dataclasses.replace(game.topology, scale_out_latency=cut)
    return make_plan(game.traffic, topology, scheduler=name, row_bytes=game.row_bytes)


def _seconds(game: Game, plan: Plan, fabric: Fabric) -> float:
    # On the fabric that there is, whatever the plan was cut for.
    timeline = simulate_transfers(
        plan.transfers, game.topology, row_bytes=game.row_bytes, fabric=fabric
    )
    return timeline.completion_time
