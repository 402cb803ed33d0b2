"""Times, how they are taken, and what is written of them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fastjax import _core
from gpu_check.moves import moves_of

WARM_UPS = 2  # rounds at least
WARM_SECONDS = 0.3  # at least: the clocks of a GPU that had nothing to do rise first

Work = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Timed:
    """Something to time.

    Attributes:
      work: does it, and returns when it is done.
      times: how often it does it.
    """

    work: Work
    times: int = 1


def interleaved(
    cases: Mapping[str, Timed], rounds: int, seed: int = 0, warm_seconds: float = WARM_SECONDS
) -> dict[str, list[float]]:
    """Microseconds of each case, once, by round.

    Each round has all cases, in an order of its own: what disturbs the machine for a while disturbs
    all.
    """
    rng = np.random.default_rng(seed)
    series: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for _ in range(WARM_UPS):  # compiles
        for name in names:
            cases[name].work()
    warm = time.perf_counter() + warm_seconds
    while time.perf_counter() < warm:
        for name in names:
            cases[name].work()
    for _ in range(rounds):
        for name in rng.permutation(names).tolist():
            start = time.perf_counter()
            cases[name].work()
            seconds = time.perf_counter() - start
            series[name].append(1e6 * seconds / cases[name].times)
    return series


def moved(timed: Timed) -> dict[str, int]:
    """Launches, messages and bytes of one of these, as the library counts them.

    Empty where the GPU's transport has no part in it.
    """
    platform = "cpu" if jax.devices()[0].platform == "cpu" else "cuda"
    before = _core.gpu_tally(platform)
    timed.work()
    after = _core.gpu_tally(platform)
    counted = {name: (after[name] - before[name]) // timed.times for name in after}
    return counted if counted["exchanges"] else {}


def spread(microseconds: list[float]) -> dict[str, float]:
    """As the C++ programs write it."""
    low, p25, median, p75, high = np.quantile(microseconds, [0, 0.25, 0.5, 0.75, 1]).tolist()
    runs = len(microseconds)
    return {"runs": runs, "min": low, "p25": p25, "median": median, "p75": p75, "max": high}


@dataclasses.dataclass
class Measurement:
    """A line of the table.

    Attributes:
      what: is timed.
      us: spread of its times.
      bytes: that it moves, once each; 0: not about bytes.
      dtype: of the rows.
      copy_us: spread of the times of a copy of as many bytes, in the same rounds.
      share_of_copy: of the copy's bandwidth.
      moved: launches, messages and bytes, as the library has counted them.
      beside: what else was timed in the same rounds, name to spread.
      ratios: times of those by this one's: above 1, this one is faster.
      goal: in words.
      met: whether the goal is; None if there is none.
      right: whether the result was compared, and equal.
    """

    what: str
    us: dict[str, float]
    bytes: int = 0
    dtype: str = ""
    copy_us: dict[str, float] | None = None
    share_of_copy: float | None = None
    moved: dict[str, int] = dataclasses.field(default_factory=dict)
    beside: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    goal: str = ""
    met: bool | None = None
    right: bool | None = None


def measurement(
    what: str, series: Mapping[str, list[float]], name: str, **fields: Any
) -> Measurement:
    """The measurement of case `name`; the case "copy" is a copy of as many bytes."""
    own = spread(series[name])
    made = Measurement(what, own, **fields)
    for other, times in series.items():
        if other == name:
            continue
        found = spread(times)
        ratio = found["median"] / own["median"]
        if other == "copy":
            made.copy_us, made.share_of_copy = found, ratio
        else:
            made.beside[other], made.ratios[other] = found, ratio
    return made


def at_most(made: Measurement, microseconds: float) -> Measurement:
    """With a goal."""
    made.goal = f"at most {microseconds:.0f} us"
    made.met = made.us["median"] <= microseconds
    return made


class Record:
    """Measurements of one part, written anew with each: one that is stopped leaves the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measurements: list[Measurement] = []
        self.notes: list[str] = []
        self.failures = 0
        self.device = ""

    def add(self, made: Measurement) -> None:
        self.measurements.append(made)
        share = "" if made.share_of_copy is None else f", {made.share_of_copy:.3f} of the copy"
        right = " WRONG RESULT" if made.right is False else ""
        moves = f", {moves_of(made.moved, made.bytes)}" if made.moved else ""
        print(f"{made.what}: {made.us['median']:.1f} us{share}{moves}{right}", flush=True)
        self.write()

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)
        self.write()

    def write(self) -> None:
        measurements = [dataclasses.asdict(each) for each in self.measurements]
        record = {"device": self.device, "figures": measurements, "notes": self.notes}
        self.path.write_text(json.dumps(record, indent=1) + "\n")

    def each(self, steps: Iterable[Work]) -> int:
        """Takes one step after the other, also after one that fails; returns the process's status.

        That is 1 if a step failed, a result was wrong, or nothing was measured.
        """
        device = jax.devices()[0]
        self.device = f"{device.platform}: {device.device_kind}"
        # Without its plugin, JAX goes on with the CPU even where it is asked for the GPU first.
        if os.environ.get("JAX_PLATFORMS", "").startswith("cuda") and device.platform != "gpu":
            self.note(f"failed: JAX sees no GPU, its first device is {self.device}")
            return 1
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  # machine time is dear: the others go on
                traceback.print_exc()
                self.failures += 1
                self.note(f"failed: {type(error).__name__}: {str(error)[:500]}")
        wrong = [each.what for each in self.measurements if each.right is False]
        for what in wrong:
            print(f"wrong result: {what}")
        return 1 if self.failures or wrong or not self.measurements else 0


def arguments(description: str | None) -> argparse.Namespace:
    """What every measurement is told: where to write, and whether it is only to be tried out."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="sizes to try it out with")
    return parser.parse_args()
