"""Pictures of plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import ArgumentError
from fastjax.plot.drawing import matplotlib
from fastjax.plot.matrices import draw_matrices, stage_runs
from fastjax.plot.nics import draw_nics
from fastjax.plot.stages import draw_exchanged, draw_stages
from fastjax.plot.traffic import draw_tiles, draw_traffic
from fastjax.schedule.flows import Flows, simulate_by_barrier
from fastjax.schedule.views import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _draw_time(plan: Schedule, flows: Flows, ax: Axes) -> None:
    if _is_staged(plan):
        draw_stages(plan, flows, ax)
    else:
        draw_exchanged(plan, ax)


_DRAWN = {"traffic": draw_traffic, "tiles": draw_tiles, "nics": draw_nics}
_DRAWN_BY_TIME = {"matrices": draw_matrices, "stages": _draw_time}
PANELS = (*_DRAWN, *_DRAWN_BY_TIME)
"""What `Plan.plot` can show."""

_WITHOUT_SCALE_OUT = ("traffic", "stages")
_WIDE = ("matrices", "stages")


def plot_plan(plan: Schedule, ax: tuple[Axes, Axes] | None = None) -> Figure:
    """Draws a plan: its traffic, and its stages over time. `Plan.plot` shows more.

    On the left, the rows of every pair of devices, or of servers where there are many devices.

    On the right, a track for each server with its scale-out stages, in the colour of the receiving
    server. Above them, paler, is the balance for a stage, in the colour of the server that rows are
    for; below, the redistribution of arrived rows, in the colour of the sending server. With many
    servers, these two have one track each for all. Times are simulated (`fastjax.simulate` with
    `synchronization="barrier"`): a stage begins when the one before is over everywhere. Balance and
    redistribution go on meanwhile, so bars of two stages may overlap, the earlier one on top. A bar
    reaches from the first row that flows to the last that arrives. Planning is not in the picture,
    and `Plan.predicted_time`, which includes it, is another model: the two differ somewhat. With
    one server, nothing is staged, and the right shows the rows that each device sends and receives.

    Args:
      plan: from `fastjax.make_plan`.
      ax: two axes to draw into; by default those of a new figure, which gets a title.

    Returns:
      The figure.

    Raises:
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    if ax is None:
        height = _tracks_height(plan)
        figure = mpl.figure.Figure(figsize=(13, height), layout="constrained")
        ax = figure.subplots(1, 2, width_ratios=[1, 1.7])
        figure.suptitle(_title(plan))
    return plot_panels(plan, ("traffic", "stages"), ax)


def plot_panels(
    plan: Schedule, panels: Sequence[str] | None = None, ax: Sequence[Axes] | None = None
) -> Figure:
    """Draws a plan, as `Plan.plot` does.

    Args:
      plan: from `fastjax.make_plan`.
      panels: which of `PANELS`, in any order; by default all that show something.
      ax: as many axes to draw them into; by default those of a new figure, which gets a title.

    Returns:
      The figure.

    Raises:
      ArgumentError: there is no such panel, or not one of the axes for each.
      UnsupportedError: matplotlib is not installed.
    """
    matplotlib()
    flows: Flows | None = None
    if panels is None:
        flows = simulate_by_barrier(plan)
        panels = _telling(plan, flows)
    _check_panels(panels)
    axes = _new_axes(plan, panels) if ax is None else list(np.ravel(np.asarray(ax, dtype=object)))
    if len(axes) != len(panels):
        raise ArgumentError(
            f"ax must be one of the axes for each panel, {len(panels)} in all, got {len(axes)}."
        )
    if flows is None and set(panels) & set(_DRAWN_BY_TIME):
        flows = simulate_by_barrier(plan)
    for panel, place in zip(panels, axes, strict=True):
        if flows is not None and panel in _DRAWN_BY_TIME:
            _DRAWN_BY_TIME[panel](plan, flows, place)
        else:
            _DRAWN[panel](plan, place)
    return axes[0].figure


def _telling(plan: Schedule, flows: Flows) -> tuple[str, ...]:
    """The panels that show something of their own: one run of stages is what the tiles show."""
    if not _is_staged(plan):
        return _WITHOUT_SCALE_OUT
    one_run = len(stage_runs(plan, flows)) == 1
    return tuple(panel for panel in PANELS if not (one_run and panel == "matrices"))


def _check_panels(panels: Any) -> None:
    given = () if isinstance(panels, str) or not isinstance(panels, Sequence) else panels
    if not given or len(set(given)) < len(given) or not set(given) <= set(PANELS):
        raise ArgumentError(
            "panels must be a sequence of different ones of "
            f"{', '.join(map(repr, PANELS))}, got {panels!r}."
        )


def draw_plan(plan: Schedule, path: str | os.PathLike[str]) -> None:
    """Draws a plan into a file, as `plot_plan` does.

    Args:
      plan: from `fastjax.make_plan`.
      path: the file, of a type that matplotlib writes: .png, .svg, .pdf, ...

    Raises:
      ArgumentError: matplotlib writes no such type.
      UnsupportedError: matplotlib is not installed.
      OSError: the file cannot be written.
    """
    types = matplotlib().figure.Figure().canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".").lower() not in types:
        known = ", ".join(f".{name}" for name in sorted(types))
        raise ArgumentError(f"{path}: the name of a picture must end in one of {known}.")
    plot_plan(plan).savefig(path, dpi=150)


def _is_staged(plan: Schedule) -> bool:
    return plan.topology.servers > 1 and plan.num_stages > 0


def _tracks_height(plan: Schedule) -> float:
    tracks = plan.topology.servers if _is_staged(plan) else plan.topology.num_devices
    return float(np.clip(0.6 * tracks, 4.8, 7.5))


def _new_axes(plan: Schedule, panels: Sequence[str]) -> list[Any]:
    """Axes of a new figure, in the order of the panels: three in a line, or one that is wide."""
    narrow = [panel for panel in panels if panel not in _WIDE]
    wide = [panel for panel in panels if panel in _WIDE]
    lines = [narrow] * bool(narrow) + [[panel] for panel in wide]
    heights = {"matrices": 3.6, "stages": _tracks_height(plan)}
    inches = [4.3 if line is narrow else heights[line[0]] for line in lines]
    figure = matplotlib().figure.Figure(figsize=(14, sum(inches) + 0.5), layout="constrained")
    grid = figure.add_gridspec(len(lines), 1, height_ratios=inches)
    places: dict[str, Any] = {}
    for line, cell in zip(lines, grid, strict=True):
        parts = cell.subgridspec(1, len(line))
        for panel, part in zip(line, parts, strict=True):
            places[panel] = figure.add_subplot(part)
    figure.suptitle(_title(plan))
    return [places[panel] for panel in panels]


def _title(plan: Schedule) -> str:
    topology, bound = plan.topology, plan.lower_bound()
    text = f"{plan.scheduler}: {topology.servers} x {topology.devices_per_server} devices, "
    if plan.num_stages:
        text += f"{plan.num_stages} stage{'s' if plan.num_stages > 1 else ''}, "
    text += f"{plan.predicted_time() * 1e6:.4g} µs predicted"
    return text + (f", {plan.predicted_time() / bound:.2f} x the lower bound" if bound else "")


__all__ = ["PANELS", "draw_plan", "plot_panels", "plot_plan"]
