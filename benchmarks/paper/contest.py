"""Contestants: how each one's exchange is planned and simulated."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fastjax import Plan, Topology, make_plan
from fastjax.simulation import Fabric, simulate, simulate_transfers
from paper import ablations, peers, published
from paper.grids import Key, incasts, problem
from paper.rails import BALANCE, REDISTRIBUTE

OURS = ("direct", "spreadout", "rails", "relay", "balanced", "fast")
MADE = ("as published", "pxn", "two-tier")
# They plan nothing, and nothing keeps them in step.
_FORWARDING = {"pxn": peers.pxn, "two-tier": peers.two_tier}
MOST_SERVERS_SOLVED = 4
# Beyond, listing transfers and simulating them takes minutes, or memory that few machines have.
MOST_SERVERS_LISTED = {"fast": 128, "direct": 128, "balanced": 64, "rails": 64, "two-tier": 64}
# Of messages of those who send everything at once and hand rows on as they come.
PIECES = 16

Cell = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One contestant's exchange.

    Attributes:
      play: seconds that it takes after planning, by the name of an incast model.
      planning: seconds of planning; None where that takes too long to be of use.
      stages: scale-out stages.
      inside: rows that balance and redistribution move, over all rows.
    """

    play: Callable[[str], float]
    planning: float | None
    stages: int
    inside: float

    def result(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {
            "planning": self.planning,
            "stages": self.stages,
            "inside": self.inside,
            "completion": {name: self.play(name) for name in names},
        }


def measure(key: Key) -> Cell:
    """One cell: every contestant of its table."""
    if key["table"] == "scale":
        return key | predicted(key)
    if key["table"] == "memory":
        return key | memory(key)
    traffic, topology, row_bytes = problem(key)
    game = Game(traffic, topology, row_bytes)
    found = {name: game.enter(name).result(incasts(key)) for name in names_of(key)}
    chosen = game.plan("auto")
    # Its plan is that of the one it takes.
    found["auto"] = found[chosen.scheduler] | {
        "planning": chosen.planning_time(),  # and of looking at the others
        "chosen": chosen.scheduler,
        "predicted": chosen.predicted_time(),
    }
    return key | {
        "lower_bound": chosen.lower_bound(),
        "bytes": int(traffic.sum()) * row_bytes,
        "contestants": found,
    }


def names_of(key: Key) -> tuple[str, ...]:
    """Who takes part, apart from auto."""
    names = (*OURS, *MADE)
    if key["table"] == "ablations":
        return (*names, *ABLATIONS)
    if key["table"] == "traffic" and key["servers"] <= MOST_SERVERS_SOLVED:
        return (*names, "optimal")
    return names


class Game:
    """One exchange, for all contestants."""

    def __init__(self, traffic: np.ndarray, topology: Topology, row_bytes: int):
        self.traffic = traffic
        self.topology = topology
        self.row_bytes = row_bytes
        self._plans: dict[str, Plan] = {}

    def plan(self, scheduler: str) -> Plan:
        if scheduler not in self._plans:
            self._plans[scheduler] = make_plan(
                self.traffic, self.topology, scheduler=scheduler, row_bytes=self.row_bytes
            )
        return self._plans[scheduler]

    def enter(self, name: str) -> Entry:
        if name in ABLATIONS:
            plan = self.plan("fast")
            pieces = PIECES if name == "balance only" else 1
            moves = ABLATIONS[name](plan)
            return self.made(moves, planning=plan.planning_time(), pieces=pieces, name=name)
        if name == "as published":
            planning = published.planning_time(self.topology.num_devices)
            moves = peers.as_published(self.traffic, self.topology)
            return self.made(moves, planning=planning, balance_first=True, name=name)
        if name in _FORWARDING:
            moves = _FORWARDING[name](self.traffic, self.topology)
            return self.made(moves, pieces=PIECES, name=name)
        return self.planned(name)

    def planned(self, scheduler: str) -> Entry:
        plan = self.plan(scheduler)

        def play(incast: str) -> float:
            return simulate(plan, incast=incast).completion_time

        planning = None if scheduler == "optimal" else plan.planning_time()
        return Entry(play, planning, plan.num_stages, self.inside(plan.transfers))

    def made(
        self,
        moves: np.ndarray,
        *,
        planning: float = 0.0,
        balance_first: bool = False,
        pieces: int = 1,
        name: str,
    ) -> Entry:
        def play(incast: str) -> float:
            return simulate_transfers(
                moves,
                self.topology,
                row_bytes=self.row_bytes,
                fabric=Fabric(incast=incast),
                balance_first=balance_first,
                pieces=pieces,
                name=name,
                planning_time=planning,
            ).completion_time

        stages = len(np.unique(moves["stage"][moves["stage"] >= 0]))
        return Entry(play, planning, stages, self.inside(moves))

    def inside(self, moves: np.ndarray) -> float:
        """Rows moved by balance and redistribution, over all rows."""
        chosen = np.isin(moves["phase"], (BALANCE, REDISTRIBUTE))
        return float(moves["rows"][chosen].sum() / max(1, self.traffic.sum()))


ABLATIONS: dict[str, Callable[[Plan], np.ndarray]] = {
    "balance only": ablations.balance_only,
    "stages only": ablations.stages_only,
    "uncut": ablations.uncut,
    "any rows": ablations.any_rows,
}


def predicted(key: Key) -> dict[str, Any]:
    """What the cost model says of large exchanges, and the simulator as far as it can list them."""
    game = Game(*problem(key))
    found = {}
    for name in (*OURS, "auto"):
        begin = time.perf_counter()
        plan = game.plan(name)
        took = time.perf_counter() - begin
        found[name] = {
            "measured": took,
            "planning": plan.planning_time(),
            "predicted": plan.predicted_time(),
            "simulated": None,
            "stages": plan.num_stages,
            "chosen": plan.scheduler,
        }
        if key["servers"] <= MOST_SERVERS_LISTED.get(name, 0):
            found[name]["simulated"] = total(game.planned(name), key)
    listed = key["servers"] <= MOST_SERVERS_LISTED["two-tier"]
    found["two-tier"] = {"simulated": total(game.enter("two-tier"), key) if listed else None}
    return {"lower_bound": game.plan("auto").lower_bound(), "contestants": found}


def total(entry: Entry, key: Key) -> float:
    """Seconds with planning and the preset's incast."""
    return entry.play(incasts(key)[0]) + (entry.planning or 0.0)


def memory(key: Key) -> dict[str, Any]:
    """Staging rows that plans reserve, and those that are staged, over the exchange's rows."""
    game = Game(*problem(key))
    rows = game.traffic.sum()
    found: dict[str, Any] = {}
    for name in STAGED:
        plan = game.plan(name)
        devices = range(game.topology.num_devices)
        reserved = sum(int(plan.stage_table(device)[STAGING_ROWS]) for device in devices)
        found[name] = {"reserved": reserved / rows, "staged": game.inside(plan.transfers)}
    for name in MADE:
        found[name] = {"reserved": None, "staged": game.enter(name).inside}
    return {"contestants": found}


STAGED = ("fast", "balanced", "relay", "rails")  # of ours, those that move rows through others
STAGING_ROWS = 5  # the word of a stage table that says how many rows it stages
