"""`python -m gpu_check.planning`: plans, from counts in the GPU's memory to a table in it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import fastjax
from fastjax.loopback import loopback_plan
from gpu_check import measurements
from gpu_check.measurements import Timed

GOAL_US = 60.0


def plans(sizes: Any, times: int, **options: Any) -> Any:
    """A program that plans so many times; the counts differ each time, by a row."""

    def step(number: Any, table: Any) -> Any:
        return table ^ loopback_plan(sizes.at[0, 1].add(number), **options)

    return jax.lax.fori_loop(1, times, step, loopback_plan(sizes, **options))


def measure(
    record: measurements.Record, topology: fastjax.Topology, scheduler: str, tiny: bool
) -> None:
    ranks = topology.servers * topology.devices_per_server
    rng = np.random.default_rng(ranks)
    host = (rng.zipf(1.8, (ranks, ranks)).clip(max=2000)).astype(np.int32)
    sizes = jax.device_put(host, measurements.device())
    times, rounds = (3, 3) if tiny else (50, 40)
    options: dict[str, Any] = {"topology": topology, "scheduler": scheduler, "row_bytes": 8192}
    loop = jax.jit(lambda counts: plans(counts, times, **options))
    once = jax.jit(lambda counts: loopback_plan(counts, **options))

    def right() -> bool:
        plan = fastjax.make_plan(host, **options)
        table, wanted = np.asarray(once(sizes)), plan.stage_table(0)
        used = 16 + 2 * ranks + 10 * int(wanted[3])  # what follows means nothing
        return bool(np.array_equal(table[:used], wanted[:used]))

    cases = {
        "in a loop": Timed(partial(loop, sizes), times),
        "program of one plan": Timed(partial(once, sizes)),
    }
    goal: dict[str, Any] = {}
    if ranks == 32:
        goal["goal"] = f"at most {GOAL_US:.0f} us"
        goal["met"] = lambda made: made["us"]["median"] <= GOAL_US
    shape = f"{topology.servers}x{topology.devices_per_server}"
    record.measure(f"plan {shape}, {scheduler}", cases, rounds, right, **goal)


def steps(record: measurements.Record, tiny: bool) -> list[Any]:
    return [
        partial(measure, record, fastjax.Topology(*shape), scheduler, tiny)
        for shape in ([(2, 2)] if tiny else [(4, 8), (2, 8), (8, 8)])
        for scheduler in ("fast", "auto")
    ]


if __name__ == "__main__":
    measurements.main(__doc__, steps)
