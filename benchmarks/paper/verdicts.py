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
SIMULATED = ("traffic", "size", "skew", "servers", "mild")
# What makes an exchange, and, without the seed, a kind of exchange.
KIND = ("preset", "servers", "workload", "size")
ALL = (*OURS, *MADE)
PEERS = ("direct", "spreadout", "rails", *MADE)  # what there is elsewhere


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a target is met.

    Attributes:
      target: what is wanted.
      cells: those that are judged; one for each exchange, whichever tables it is in.
      missed: those that miss it, with the figure of each; the worst first.
      incast: which of their models they are judged with.
      against: those whom auto is held against.
    """

    target: str
    cells: list[Cell]
    missed: list[tuple[Cell, float]]
    incast: int = 0
    against: tuple[str, ...] = ALL

    @property
    def met(self) -> bool:
        return bool(self.cells) and not self.missed

    @property
    def kinds(self) -> int:
        """How many kinds of exchange are judged."""
        return len({kind(cell) for cell in self.cells})

    @property
    def kinds_missed(self) -> int:
        """Of how many kinds an exchange misses."""
        return len({kind(cell) for cell, _ in self.missed})


def kind(cell: Cell) -> tuple[Any, ...]:
    """What exchanges that differ in their seed only have in common."""
    return tuple(cell[name] for name in KIND)


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Those that were simulated, each exchange once."""
    judged = [cell for cell in cells if cell["table"] in SIMULATED]
    return list({(kind(cell), cell["seed"]): cell for cell in reversed(judged)}.values())[::-1]


def incast_of(cell: Cell, which: int) -> str:
    """The model of the preset, 0, that with every sender counted as one, 1, or none, -1."""
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
    judged = distinct(cells)
    large = [c for c in cells if c["table"] == "servers" and c["preset"] == "h200"]
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
        ("ahead of every peer", PEERS, 1, "every sender counted as one"),
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
    return Verdict(target, [cell for cell, _ in figures], missed, incast, against)


def gain(cell: Cell) -> tuple[float, str]:
    """By how much auto is faster than the best of the peers, and who that is."""
    incast = own_incast(cell)
    best, time = best_of(PEERS, cell, incast)
    return time / seconds(cell, "auto", incast) - 1, best


def little_gained(
    cells: Sequence[Cell],
) -> list[tuple[tuple[Any, ...], list[tuple[float, str]]]]:
    """Kinds of exchange of which one is behind a peer or no more than level, with all their gains.

    The worst come first, of kinds and of gains.
    """
    found: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for cell in distinct(cells):
        found.setdefault(kind(cell), []).append(gain(cell))
    kinds = [(one, sorted(gains)) for one, gains in found.items()]
    return sorted((k for k in kinds if k[1][0][0] <= LEVEL), key=lambda k: k[1][0])
