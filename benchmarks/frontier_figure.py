"""The picture of what frontier.py found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Frontier = list[tuple[int, int]]

# In the order in which they are drawn.
STYLES: dict[str, dict[str, Any]] = {
    "textbook": {"color": "#c23b22", "marker": "x", "markersize": 5.5, "linestyle": "none"},
    "shifted": {"color": "#777777", "marker": "D", "markersize": 4, "linestyle": "none"},
    "optimum": {"color": "#2a9d4b", "marker": "s", "markersize": 7, "linewidth": 2},
    "planner": {"color": "#1f6fb4", "marker": "o", "markersize": 3.5, "linewidth": 1},
}
HOLLOW = ("shifted", "optimum")
NAMES = {"shifted": "shifted pairs", "planner": "planner, all it looks at"}


def undominated(frontier: Frontier) -> Frontier:
    """Those that nothing with as few matchings is shorter than."""
    kept: Frontier = []
    for k, length in sorted(frontier):
        if not kept or length < kept[-1][1]:
            kept.append((k, length))
    return kept


def draw(cells: Sequence[dict[str, Any]], paths: Sequence[Path]) -> None:
    """A panel for each workload, downwards, and number of servers.

    Args:
      cells: as `frontier.measure` makes them; a line, or a mark, for each seed.
      paths: files to write, in the format that each one's name says.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    workloads = list(dict.fromkeys(c["workload"] for c in cells))
    servers = list(dict.fromkeys(c["servers"] for c in cells))
    size = (2.5 * len(servers) + 0.6, 2.1 * len(workloads) + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(workloads), len(servers), sharex="col", sharey=True, squeeze=False)
    shown = [who for who in STYLES if any(cell[who] for cell in cells)]
    styles = {
        who: {**STYLES[who], **({"markerfacecolor": "none"} if who in HOLLOW else {})}
        for who in shown
    }
    for row, workload in zip(axes, workloads, strict=True):
        row[0].set_ylabel(workload, fontsize=9)
        for panel, n in zip(row, servers, strict=True):
            group = [c for c in cells if (c["workload"], c["servers"]) == (workload, n)]
            for who, style in styles.items():
                for cell in group:
                    points = undominated(cell[who] or [])
                    above = [100 * (length / cell["bound"] - 1) for _, length in points]
                    panel.plot([k for k, _ in points], above, alpha=0.6, **style)
            set_axes(panel, n)
    for panel, n in zip(axes[0], servers, strict=True):
        panel.set_title(f"{n} servers", fontsize=9)
    figure.supxlabel("matchings", fontsize=9)
    figure.supylabel("length above the bound, %", fontsize=9)
    handles = [Line2D([], [], label=NAMES.get(who, who), **styles[who]) for who in shown]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9
    )
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names and dates that would make every SVG another one.
        with rc_context({"svg.hashsalt": "frontier"}):
            dated = path.suffix == ".svg"
            figure.savefig(path, dpi=150, metadata={"Date": None} if dated else None)


def set_axes(panel: Any, servers: int) -> None:
    """From as many matchings as a server has peers to more than any textbook needs."""
    panel.set_xscale("log", base=2)
    panel.set_xlim((servers - 1) / 1.3, 1.3 * servers**2)
    steps = range(0, 2 * servers.bit_length(), 1 if servers < 32 else 2)
    panel.set_xticks([servers * 2**k for k in steps if 2**k <= servers])
    panel.xaxis.set_major_formatter("{x:g}")
    # Straight near 0, where a logarithm ends.
    panel.set_yscale("symlog", linthresh=0.1, linscale=0.5)
    panel.set_ylim(-0.04, 400)
    panel.set_yticks([0, 0.1, 1, 10, 100])
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.tick_params(labelsize=8)
    panel.grid(True, which="major", linewidth=0.4, alpha=0.5)
    panel.set_axisbelow(True)
