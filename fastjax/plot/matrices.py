"""Which server sends to which in each stage, and for how long."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from fastjax.plot.drawing import matplotlib, note
from fastjax.plot.stages import spans_of
from fastjax.plot.traffic import add_scale, show_rows
from fastjax.schedule.flows import Flows
from fastjax.schedule.transfers import SCALE_OUT
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_MATRICES = 24
_MOST_CELLS = 480  # of all matrices in a line: more would be too small to see


@dataclasses.dataclass(frozen=True)
class Run:
    """Stages that follow each other in which servers send to the same ones, or fewer.

    Attributes:
      first, last: the stages.
      rows: what each server sends to each; shape (servers, servers).
      seconds: from when the first of them could begin to when the last is over.
    """

    first: int
    last: int
    rows: np.ndarray
    seconds: float

    def __str__(self) -> str:
        stages = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{stages}: {self.seconds * 1e6:.3g} µs"


def stage_runs(plan: Schedule, flows: Flows) -> list[Run]:
    """The stages; chunks of one matching are one run."""
    topology = plan.topology
    sent = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    begin, end = spans_of(plan, flows, SCALE_OUT)
    ends = [sent[end] // topology.devices_per_server for end in ("src", "dst")]
    # By stage, and not all at once: n x n cells for every stage may not fit.
    order = np.argsort(sent["stage"], kind="stable")
    parts = np.split(order, np.searchsorted(sent["stage"][order], np.arange(1, plan.num_stages)))
    runs: list[Run] = []
    for stage, part in enumerate(parts if plan.num_stages else []):
        rows = np.zeros((topology.servers, topology.servers), np.int64)
        np.add.at(rows, (ends[0][part], ends[1][part]), sent["rows"][part])
        if runs and _within(rows, runs[-1].rows):
            before = runs.pop()
            first, rows = before.first, before.rows + rows
        else:
            first = stage
        runs.append(Run(first, stage, rows, float(end[stage] - begin[first])))
    return runs


def _within(rows: np.ndarray, others: np.ndarray) -> bool:
    return not (rows > 0)[others == 0].any()


def draw_matrices(plan: Schedule, flows: Flows, ax: Axes) -> None:
    """A small matrix of servers for each stage, or run of stages, with how long it takes."""
    runs = stage_runs(plan, flows)
    if not runs:
        note(ax, "nothing crosses servers")
        return
    most = max(6, min(_MOST_MATRICES, _MOST_CELLS // plan.topology.servers))
    longest = sorted(runs, key=lambda run: -run.seconds)[:most]
    shown = sorted(longest, key=lambda run: run.first)
    servers = plan.topology.servers
    columns = _columns(len(shown), ax)
    lines = -(-len(shown) // columns)
    # Cells between matrices: beside for space, above for the text.
    beside, above = max(1, round(0.2 * servers)), max(1, round(0.35 * servers))
    wide, high = servers + beside, servers + above
    cells = np.full((lines * high, columns * wide - beside), np.nan)
    for i, run in enumerate(shown):
        top, left = i // columns * high + above, i % columns * wide
        cells[top : top + servers, left : left + servers] = run.rows
        ax.add_patch(
            matplotlib().patches.Rectangle(
                (left - 0.5, top - 0.5), servers, servers, fill=False, ec="0.7", lw=0.6
            )
        )
        ax.text(left - 0.5, top - 0.5 - 0.06 * servers, str(run), va="bottom", fontsize="x-small")
    add_scale(ax, show_rows(ax, cells, aspect="equal"))
    ax.axis("off")
    which = f"the {len(shown)} longest of {len(runs)} " if len(shown) < len(runs) else ""
    kind = "stages" if len(runs) == plan.num_stages else "runs of stages"
    title = f"{which}{kind}: rows from each server (down) to each (across)"
    ax.set_title(title, fontsize="medium")


def _columns(matrices: int, ax: Axes) -> int:
    """As many columns as make the matrices largest in the shape of the axes."""
    box = ax.get_window_extent()
    shape = box.width / max(1.0, box.height)
    sizes = {}
    for columns in range(1, matrices + 1):
        lines = -(-matrices // columns)
        sizes[columns] = min(shape / (1.2 * columns), 1 / (1.35 * lines))
    return max(sizes, key=lambda columns: sizes[columns])


__all__ = ["Run", "draw_matrices", "stage_runs"]
