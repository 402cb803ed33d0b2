"""What the figures have to keep, and which cells do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from paper.contest import MADE, OURS

Cell = dict[str, Any]

CLOSE = 1.05  # ours over the bound, planning included
EXPECTED = (1.1, 1.5)  # FAST as published over the bound
LEVEL = 0.01  # how far behind still counts as level
SIMULATED = ("traffic", "size", "skew", "servers")
ALL = (*OURS, *MADE)
PEERS = ("direct", "spreadout", "rails", *MADE)  # what there is elsewhere


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a target is met.

    Attributes:
      target: what is wanted.
      cells: how many are judged.
      missed: those that miss it, with the figure of each; the worst first.
      incast: which of their models they are judged with.
      against: those whom auto is held against.
    """

    target: str
    cells: int
    missed: list[tuple[Cell, float]]
    incast: int = 0
    against: tuple[str, ...] = ALL

    @property
    def met(self) -> bool:
        return self.cells > 0 and not self.missed


def incast_of(cell: Cell, which: int) -> str:
    """The model of the preset, 0, or none, -1."""
    return list(cell["contestants"]["auto"]["completion"])[which]


def own_incast(cell: Cell) -> str:
    return incast_of(cell, 0)


def seconds(cell: Cell, name: str, incast: str, *, planning: bool = True) -> float:
    found = cell["contestants"][name]
    return found["completion"][incast] + (found["planning"] or 0.0 if planning else 0.0)


def over_bound(cell: Cell, name: str, incast: str, *, planning: bool = True) -> float:
    return seconds(cell, name, incast, planning=planning) / cell["lower_bound"]


def best_of(names: Sequence[str], cell: Cell, incast: str) -> tuple[str, float]:
    """Who is fastest of them, planning included, and how long that takes."""
    best = min(names, key=lambda name: seconds(cell, name, incast))
    return best, seconds(cell, best, incast)


def behind(names: Sequence[str], cell: Cell, incast: str) -> float:
    """By how much auto's time is longer than that of the best; negative if it is ahead."""
    return seconds(cell, "auto", incast) / best_of(names, cell, incast)[1] - 1


def judge(cells: Sequence[Cell]) -> list[Verdict]:
    """All targets, where there is a cell to judge them by."""
    judged = [cell for cell in cells if cell["table"] in SIMULATED]
    large = [c for c in judged if c["table"] == "servers" and c["preset"] == "h200"]
    low, high = EXPECTED
    verdicts = []
    if large:
        where = "pair-Zipf 0.8, H200, from 100 MB a device, 2 to 40 servers, planning included"
        verdicts = [
            _verdict(
                f"`auto` within {CLOSE:g} of the bound: {where}",
                [(cell, over_bound(cell, "auto", own_incast(cell))) for cell in large],
                lambda figure: figure > CLOSE,
            ),
            _verdict(
                f"FAST as published from {low:g} to {high:g} of the bound, as expected: {where}",
                [(cell, over_bound(cell, "as published", own_incast(cell))) for cell in large],
                lambda figure: not low <= figure <= high,
            ),
        ]
    for who, names, which, incast in (
        ("ahead of every peer", PEERS, 0, "the preset's incast"),
        ("ahead of every peer", PEERS, -1, "no incast"),
        ("as fast as the best of our own schedulers", OURS, 0, "the preset's incast"),
    ):
        verdicts.append(
            _verdict(
                f"`auto` {who}, or within {LEVEL:.0%}: every cell, {incast}, planning included",
                [(cell, behind(names, cell, incast_of(cell, which))) for cell in judged],
                lambda figure: figure > LEVEL,
                which,
                names,
            )
        )
    return verdicts


def _verdict(
    target: str,
    figures: list[tuple[Cell, float]],
    wrong: Callable[[float], bool],
    incast: int = 0,
    against: tuple[str, ...] = ALL,
) -> Verdict:
    missed = sorted((f for f in figures if wrong(f[1])), key=lambda f: -f[1])
    return Verdict(target, len(figures), missed, incast, against)


def no_gain(cells: Sequence[Cell]) -> list[tuple[Cell, str, float]]:
    """Cells in which auto is level with a peer, who that is, and by how much."""
    found = []
    for cell in cells:
        if cell["table"] not in SIMULATED:
            continue
        incast = own_incast(cell)
        best, time = best_of(PEERS, cell, incast)
        gain = time / seconds(cell, "auto", incast) - 1
        if gain <= LEVEL:
            found.append((cell, best, gain))
    return found
