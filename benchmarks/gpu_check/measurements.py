"""Times, how they are taken, and what is written of them; what they are taken of in JAX."""

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
import jax.numpy as jnp
import numpy as np
import reference
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fastjax import _core
from gpu_check.report import moves_of

WARM_UPS = 2  # rounds at least
WARM_SECONDS = 0.3  # at least: the clocks of a GPU that had nothing to do rise first
KIB, MIB = 1 << 10, 1 << 20

Work = Callable[[], None]
Exchange = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True)
class Timed:
    """Something to time.

    Attributes:
      work: does it, and returns when it is done.
      times: how often it does it.
    """

    work: Work
    times: int = 1


def interleaved(cases: Mapping[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each case, once, by round.

    Each round has all cases, in an order of its own: what disturbs the machine for a while disturbs
    all.
    """
    rng = np.random.default_rng(0)
    series: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for _ in range(WARM_UPS):  # compiles
        for name in names:
            cases[name].work()
    warm = time.perf_counter() + WARM_SECONDS
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


class Record:
    """Measurements of one part, written anew with each: one that is stopped leaves the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measurements: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.device = ""

    def measure(
        self,
        what: str,
        cases: Mapping[str, Timed],
        rounds: int,
        right: Callable[[], bool],
        *,
        rows: jax.Array | None = None,
        goal: str = "",
        met: Callable[[dict[str, Any]], bool] | None = None,
    ) -> None:
        """Times the first of the cases beside the others.

        Args:
          what: is measured: a line of the table.
          cases: the case "copy" is a copy of as many bytes.
          rounds: see `interleaved`.
          right: whether the result is, asked afterwards.
          rows: that are moved, once each.
          goal: in words.
          met: whether the measurement reaches it.
        """
        name, *others = cases
        found = {case: spread(times) for case, times in interleaved(cases, rounds).items()}
        ratios = {other: found[other]["median"] / found[name]["median"] for other in others}
        beside = [other for other in others if other != "copy"]
        made: dict[str, Any] = {
            "what": what,
            "us": found[name],
            "bytes": 0 if rows is None else int(rows.nbytes),
            "dtype": "int32" if rows is None else rows.dtype.name,
            "copy_us": found.get("copy"),
            "share_of_copy": ratios.get("copy"),
            "moved": moved(cases[name]),
            "beside": {other: found[other] for other in beside},
            "ratios": {other: ratios[other] for other in beside},
            "goal": goal,
            "right": right(),
        }
        made["met"] = met(made) if met else None
        self.measurements.append(made)
        share = f", {ratios['copy']:.3f} of the copy" if "copy" in ratios else ""
        moves = f", {moves_of(made['moved'], made['bytes'])}" if made["moved"] else ""
        verdict = "" if made["right"] else " WRONG RESULT"
        print(f"{what}: {made['us']['median']:.1f} us{share}{moves}{verdict}", flush=True)
        self._write()

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
        print(text, flush=True)
        self._write()

    def _write(self) -> None:
        record = {"device": self.device, "figures": self.measurements, "notes": self.notes}
        self.path.write_text(json.dumps(record) + "\n")

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
        failed = False
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  # machine time is dear: the others go on
                traceback.print_exc()
                failed = True
                self.note(f"failed: {type(error).__name__}: {str(error)[:500]}")
        wrong = [each["what"] for each in self.measurements if not each["right"]]
        for what in wrong:
            print(f"wrong result: {what}")
        return 1 if failed or wrong or not self.measurements else 0


def arguments(description: str | None) -> argparse.Namespace:
    """What every measurement is told: where to write, and whether it is only to be tried out."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="sizes to try it out with")
    return parser.parse_args()


def device() -> Any:
    return jax.devices()[0]


def on_one_rank(exchange: Exchange) -> Exchange:
    """An exchange over axis "x", as that of one device with itself."""
    mesh = jax.sharding.Mesh(np.array([device()]), ("x",), axis_types=(AxisType.Auto,))
    return jax.shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


class Loop:
    """One program of `times` exchanges, each of which writes into the result of the one before.

    A step of a model has its exchanges in one program too. What it costs to start a program is
    spread over them.
    """

    def __init__(
        self, exchange: Exchange, times: int, operand: Any, output: Any, meta: Any
    ) -> None:
        def body(operand: Any, output: Any, *meta: Any) -> Any:
            return jax.lax.fori_loop(0, times, lambda _, out: exchange(operand, out, *meta), output)

        self.times = times
        self.operand = operand
        self.meta = [jax.device_put(each, device()) for each in meta]
        self.output = jnp.array(output)  # its own: each run takes the last one's
        self.program = jax.jit(body, donate_argnums=1)

    def run(self) -> None:
        self.output = self.program(self.operand, self.output, *self.meta)
        self.output.block_until_ready()

    def timed(self) -> Timed:
        return Timed(self.run, self.times)


def copies(rows: Any, times: int) -> Timed:
    """Copies of an array on its device, queued one behind the other."""
    copy = jax.jit(jnp.copy)

    def run() -> None:
        last = rows
        for _ in range(times):
            last = copy(rows)
        last.block_until_ready()

    return Timed(run, times)


def random_rows(seed: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Rows whose bits are random, but for NaNs, made where they are used."""
    key = jax.random.key(seed)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def zipf_sizes(rng: np.random.Generator, senders: int, entries: int, rows: int) -> np.ndarray:
    """Rows of each slice, shape (senders, entries): `rows` a sender, by popularity of the entry.

    The popularity falls as 1 / rank^0.8, alike for all senders.
    """
    weights = rng.permutation((1.0 + np.arange(entries)) ** -0.8)
    ends = np.round(np.cumsum(weights) / weights.sum() * rows).astype(np.int64)
    return np.tile(np.diff(ends, prepend=0), (senders, 1))


def shuffled(rng: np.random.Generator, sizes: np.ndarray) -> reference.Metadata:
    """Slices of one rank, side by side, whose output offsets are in another order."""
    meta = reference.packed(sizes)
    order = rng.permutation(sizes.shape[1])
    meta.output_offsets[0, order] = np.cumsum(sizes[0, order]) - sizes[0, order]
    return meta
