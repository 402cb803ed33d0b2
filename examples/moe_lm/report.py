"""What a run leaves: a picture of its losses, its routing, and times of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastjax.traffic import RoutingRecord, write_routing_trace


def draw_losses(path: Path, history: Mapping[str, Any]) -> None:
    """Losses by step, of what is trained on and of what is held out; needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(np.arange(1, len(history["losses"]) + 1), history["losses"], label="trained on")
    axes.plot(history["held_out_steps"], history["held_out"], "o-", label="held out")
    axes.set(xlabel="step", ylabel="loss, nats a byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def write_trace(path: Path, chosen: Mapping[int, np.ndarray], devices: int) -> None:
    """Routing, as Megatron-Core writes it; a device is a rank.

    Args:
      path: the file.
      chosen: of each step, the experts that tokens chose, shape (layers, tokens of all, k).
      devices: that the tokens are spread over.
    """
    records = (
        RoutingRecord(step, layer, rank, ids)
        for step, layers in chosen.items()
        for layer, every in enumerate(layers)
        for rank, ids in enumerate(np.split(every, devices))
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_routing_trace(path, records)


def by_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, *, seed: int = 0, settle: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each, side by side: every round runs each once, in random order.

    The order depends on the seed alone, since all processes of a job must run the same.

    Args:
      runs: by name; each blocks until it is done.
      rounds: how many.
      seed: of the order.
      settle: seconds from one to the next, for those whose memory is freed behind their end.
    """
    rng = np.random.default_rng(seed)
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for at in rng.permutation(len(names)):
            start = time.perf_counter()
            runs[names[at]]()
            seconds[names[at]].append(time.perf_counter() - start)
            time.sleep(settle)
    return seconds


def time_table(seconds: Mapping[str, list[float]]) -> Any:
    """Milliseconds of steps: medians, quartiles, and against the first."""
    from rich.table import Table

    table = Table(title="milliseconds of a step, by turns in random order")
    table.add_column("layer")
    for name in ("median", "p25", "p75", "min", "max", "by the first"):
        table.add_column(name, justify="right")
    first = np.median(next(iter(seconds.values())))
    for name, values in seconds.items():
        points = np.percentile(values, [50, 25, 75, 0, 100])
        table.add_row(name, *(f"{p * 1e3:.1f}" for p in points), f"{points[0] / first:.2f}")
    return table
