"""Pictures of the tables: how far from the lower bound, planning included, the preset's incast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paper import tables
from paper.contest import ABLATIONS
from paper.grids import DRAWS, ZIPF
from paper.verdicts import over_bound, own_incast

Cell = dict[str, Any]

# In the order in which they are drawn.
STYLES: dict[str, dict[str, Any]] = {
    "spreadout": {"color": "#999999", "marker": "D", "linestyle": ":"},
    "direct": {"color": "#666666", "marker": "s", "linestyle": "--"},
    "pxn": {"color": "#8c6d46", "marker": "p", "linestyle": "--"},
    "two-tier": {"color": "#b07aa1", "marker": "v", "linestyle": "--"},
    "as published": {"color": "#c23b22", "marker": "x", "linestyle": "-"},
    "rails": {"color": "#2a9d4b", "marker": "^", "linestyle": "-"},
    "relay": {"color": "#e1a100", "marker": "<", "linestyle": "-"},
    "balanced": {"color": "#7ac74f", "marker": ">", "linestyle": "-"},
    "fast": {"color": "#1f6fb4", "marker": "o", "linestyle": "-"},
    "auto": {"color": "#000000", "marker": "+", "linestyle": "none"},
}
NAMES = {"direct": "direct (RCCL)", "pxn": "pxn (NCCL)", "two-tier": "two-tier (DeepEP)"}
_PRESETS = {"h200": "H200, 450 : 50 GB/s", "mi300x": "MI300X, 448 : 12.5 GB/s"}


def draw_all(cells: Sequence[Cell], folder: Path) -> list[str]:
    """Writes the pictures of the tables that there are; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, draw in PICTURES.items():
        figure = draw(cells)
        if figure is not None:
            _label(figure)
            figure.savefig(folder / name, dpi=110)
            made.append(name)
    return made


def _label(figure: Any) -> None:
    """The legend above, in as many lines as it needs, and what is upward."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    columns = min(len(names), int(figure.get_figwidth() / 1.1))
    figure.legend(
        handles, names, loc="outside upper center", ncols=columns, frameon=False, fontsize=8
    )
    figure.supylabel("time above the lower bound, %\nplanning and incast included", fontsize=9)


def lines(
    cells: Sequence[Cell],
    table: str,
    *,
    x: Callable[[Cell], float],
    across: str,
    log: bool,
    kinds: tuple[str, ...] = (),
) -> Any:
    """A panel for each preset and value of `across`, a line for each contestant.

    Of the traffic of these kinds, or of all.
    """
    chosen = [c for c in tables.of_table(cells, table) if not kinds or c["workload"] in kinds]
    if not chosen:
        return None
    figure, panels = _panels(chosen, across)
    for (preset, value), panel in panels.items():
        group = [c for c in chosen if (c["preset"], c[across]) == (preset, value)]
        for name, style in STYLES.items():
            size = 9 if name == "auto" else 4.5
            points = medians(group, name, x)
            label = NAMES.get(name, name)
            panel.plot(*points, label=label, markersize=size, linewidth=1.2, **style)
        if log:
            panel.set_xscale("log")
        _set_axes(panel)
        if table in _X_TICKS:
            panel.set_xticks(_X_TICKS[table])
            panel.xaxis.set_major_formatter("{x:g}")
    figure.supxlabel(_X_LABELS[table], fontsize=9)
    return figure


def bars(cells: Sequence[Cell]) -> Any:
    """What each idea is worth: a panel for each preset and number of servers."""
    chosen = tables.of_table(cells, "ablations")
    if not chosen:
        return None
    names = ("fast", *ABLATIONS, "as published", "direct")
    sizes = list(dict.fromkeys(cell["size"] for cell in chosen))
    figure, panels = _panels(chosen, "servers")
    for (preset, servers), panel in panels.items():
        group = [c for c in chosen if (c["preset"], c["servers"]) == (preset, servers)]
        for index, size in enumerate(sizes):
            here = [c for c in group if c["size"] == size]
            heights = [medians(here, name, lambda _: 0.0)[1][0] for name in names]
            places = np.arange(len(names)) + (index - (len(sizes) - 1) / 2) * 0.26
            panel.bar(places, heights, 0.24, label=f"{size / 1e6:g} MB a device")
        _set_axes(panel)
        panel.grid(False, axis="x")
        panel.set_xticks(range(len(names)), names, rotation=40, ha="right")
    return figure


def _panels(cells: Sequence[Cell], across: str) -> tuple[Any, dict[tuple[str, Any], Any]]:
    """An empty figure, and its panels by preset and value of `across`."""
    from matplotlib.figure import Figure

    presets = list(dict.fromkeys(cell["preset"] for cell in cells))
    values = list(dict.fromkeys(cell[across] for cell in cells))
    flat = len(values) == 1
    shape = (1, len(presets)) if flat else (len(presets), len(values))
    size = (3.4 * shape[1] + 1, 2.5 * shape[0] + 1)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False)
    panels = {}
    for i, preset in enumerate(presets):
        for j, value in enumerate(values):
            panel = axes[0][i] if flat else axes[i][j]
            panels[preset, value] = panel
            name = _PRESETS.get(preset, preset)
            if flat:
                panel.set_title(name, fontsize=9)
                continue
            if i == 0:
                panel.set_title(_name(across, value), fontsize=9)
            if j == 0:
                panel.set_ylabel(name, fontsize=9)
    return figure, panels


def medians(
    cells: Sequence[Cell], name: str, x: Callable[[Cell], float]
) -> tuple[list[float], list[float]]:
    """Per cent above the bound, medians over seeds, by what lies on the horizontal axis."""
    places = sorted({x(cell) for cell in cells})
    return places, [
        100 * float(np.median([over_bound(c, name, own_incast(c)) for c in cells if x(c) == at]))
        - 100
        for at in places
    ]


def _name(across: str, value: Any) -> str:
    if across == "size":
        return f"{value / 1e6:g} MB a device"
    return f"{value} servers of 8" if across == "servers" else str(value)


def _set_axes(panel: Any) -> None:
    panel.set_yscale("log")
    panel.set_ylim(0.1, 4000)
    panel.set_yticks([0.1, 1, 10, 100, 1000])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
    panel.grid(True, which="major", linewidth=0.4, alpha=0.5)
    panel.set_axisbelow(True)


_X_LABELS = {"size": "MB a device", "skew": "exponent of Zipf's law", "servers": "servers of 8"}
_X_TICKS = {"size": (1, 4, 16, 65, 250, 1000), "servers": (2, 4, 8, 12, 20, 40)}
_KINDS = ("balanced", "random", ZIPF), (DRAWS, "expert 0.8", "trained")


def _sizes(cells: Sequence[Cell], kinds: tuple[str, ...]) -> Any:
    return lines(
        cells, "size", x=lambda c: c["size"] / 1e6, across="workload", log=True, kinds=kinds
    )


PICTURES: dict[str, Callable[[Sequence[Cell]], Any]] = {
    "paper_size.png": lambda cells: _sizes(cells, _KINDS[0]),
    "paper_size_mild.png": lambda cells: _sizes(cells, _KINDS[1]),
    "paper_skew.png": lambda cells: lines(
        [cell | {"reading": cell["workload"].rpartition(" ")[0]} for cell in cells],
        "skew",
        x=lambda c: float(c["workload"].split()[-1]),
        across="reading",
        log=False,
    ),
    "paper_servers.png": lambda cells: lines(
        cells, "servers", x=lambda c: c["servers"], across="size", log=True
    ),
    "paper_ablations.png": bars,
}
