"""Times, how they are taken, and what is written of them; what they are taken of in JAX."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fastjax import _core
from gpu_check.report import cells

WARM_UPS = 2  # rounds at least: they compile
WARM_SECONDS = 0.3  # at least: the clocks of a GPU that had nothing to do rise first
KIB, MIB = 1 << 10, 1 << 20

Exchange = Callable[..., jax.Array]


@dataclasses.dataclass
class Timed:
    """Something to time: `work` does it `times` times, and returns what is to be waited for."""

    work: Callable[[], Any]
    times: int = 1

    def microseconds(self) -> float:
        """Of doing it once."""
        start = time.perf_counter()
        jax.block_until_ready(self.work())
        return 1e6 * (time.perf_counter() - start) / self.times


def interleaved(cases: Mapping[str, Timed], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each case, by round.

    Each round has all cases, in an order of its own: what disturbs the machine for a while disturbs
    all.
    """
    rng = np.random.default_rng(0)
    series: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    begin, warm = time.perf_counter(), 0.0 if device().platform == "cpu" else WARM_SECONDS
    for number in itertools.count():
        if number >= WARM_UPS and time.perf_counter() - begin >= warm:
            break
        for name in names:
            cases[name].microseconds()
    for _ in range(rounds):
        for name in rng.permutation(names).tolist():
            series[name].append(cases[name].microseconds())
    return series


def moved(timed: Timed) -> dict[str, int]:
    """Launches, messages and bytes of one of these, as the library counts them.

    Empty where the GPU's transport has no part in it.
    """
    platform = "cpu" if device().platform == "cpu" else "cuda"
    before = _core.gpu_tally(platform)
    jax.block_until_ready(timed.work())
    after = _core.gpu_tally(platform)
    counted = {name: (after[name] - before[name]) // timed.times for name in after}
    return counted if counted["exchanges"] else {}


def spread(microseconds: list[float]) -> dict[str, float]:
    """As the C++ programs write it."""
    names = ("min", "p25", "median", "p75", "max")
    quantiles = np.quantile(microseconds, [0, 0.25, 0.5, 0.75, 1]).tolist()
    return {"runs": len(microseconds), **dict(zip(names, quantiles, strict=True))}


class Record:
    """Measurements of one part, written anew with each: one that is stopped leaves the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measurements: list[dict[str, Any]] = []
        self.notes: list[str] = []

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
            "share_of_copy": ratios.get("copy"),
            "moved": moved(cases[name]),
            "beside": {other: found[other] for other in beside},
            "ratios": {other: ratios[other] for other in beside},
            "goal": goal,
            "right": right(),
        }
        made["met"] = met(made) if met else None
        self.measurements.append(made)
        print(*filter(None, cells(made)), sep=" | ", flush=True)
        self._write()

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
        print(text, flush=True)
        self._write()

    def _write(self) -> None:
        record = {"device": f"{device().platform}: {device().device_kind}"}
        record |= {"figures": self.measurements, "notes": self.notes}
        self.path.write_text(json.dumps(record) + "\n")


def main(description: str | None, steps: Callable[[Record, bool], list[Callable[[], Any]]]) -> None:
    """The program of a part: takes one step after the other, also after one that fails.

    It fails if a step did, if a result was wrong, or if nothing was measured.

    Args:
      description: of the program.
      steps: from where they write, and whether they are only tried out, in sizes that are tiny.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="sizes to try it out with")
    given = parser.parse_args()
    record = Record(given.json)
    to_take = steps(record, given.tiny)
    # Without its plugin, JAX goes on with the CPU even where it is asked for the GPU first.
    if os.environ.get("JAX_PLATFORMS", "").startswith("cuda") and device().platform != "gpu":
        sys.exit(f"JAX sees no GPU, its first device is of platform {device().platform}")
    problems = []
    for step in to_take:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # machine time is dear: the others go on
            traceback.print_exc()
            problems.append(f"failed: {type(error).__name__}: {str(error)[:500]}")
            record.note(problems[-1])
    made = record.measurements
    problems += [f"wrong result: {each['what']}" for each in made if not each["right"]]
    sys.exit("\n".join(problems) or (None if made else "nothing was measured"))


def device() -> Any:
    return jax.devices()[0]


def on_one_rank(of_axis: Callable[..., Any]) -> Callable[..., Any]:
    """What takes an `axis_name`, of an axis with this one device."""
    mesh = jax.sharding.Mesh(np.array([device()]), ("x",), axis_types=(AxisType.Auto,))
    local = functools.partial(of_axis, axis_name="x")
    return jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)


class Loop(Timed):
    """One program of `times` exchanges, each of which writes into the result of the one before.

    A step of a model has its exchanges in one program too. What it costs to start a program is
    spread over them.
    """

    def __init__(
        self, exchange: Exchange, times: int, operand: Any, output: Any, meta: Any
    ) -> None:
        def body(output: Any, operand: Any, *meta: Any) -> Any:
            return jax.lax.fori_loop(0, times, lambda _, out: exchange(operand, out, *meta), output)

        super().__init__(self.run, times)
        self.given = operand, *jax.device_put(list(meta), device())
        self.output = jnp.array(output)  # its own: each run takes the last one's
        self.program = jax.jit(body, donate_argnums=0)

    def run(self) -> jax.Array:
        self.output = self.program(self.output, *self.given)
        return self.output


def copies(rows: Any, times: int) -> Timed:
    """Copies of an array on its device, queued one behind the other."""
    copy = jax.jit(jnp.copy)

    def run() -> jax.Array:
        last = rows
        for _ in range(times):
            last = copy(rows)
        return last

    return Timed(run, times)


def random_rows(seed: int, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Rows whose bits are random, but for NaNs, made where they are used."""
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def zipf_sizes(rng: np.random.Generator, senders: int, entries: int, rows: int) -> np.ndarray:
    """Rows of each slice, shape (senders, entries): `rows` a sender, by popularity of the entry.

    The popularity falls as 1 / rank^0.8, alike for all senders.
    """
    weights = rng.permutation((1.0 + np.arange(entries)) ** -0.8)
    ends = np.round(np.cumsum(weights) / weights.sum() * rows).astype(np.int64)
    return np.tile(np.diff(ends, prepend=0), (senders, 1))
