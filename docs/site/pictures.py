"""Draws docs/pictures: `make pictures`.

One is a sketch, two are drawn by commands of fastjax, and the others are figures of the notebook on
how it works, which are simulated. They are the same bytes wherever matplotlib is the same.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib import patches

from fastjax.cli import main

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
LAYER = "simulate --model deepseek-v3 --devices 32 --preset h200"
OF_COMMANDS = {
    "layer": "--exponent 0.4 --schedulers fast direct --seconds-per-row 0.22e-6 --chunks 4",
    "balance": "--exponent 0.43 --schedulers direct --chunks 4 --balance",
}
OF_NOTEBOOK = ("stages", "pairs", "clock", "skew", "moves", "", "clock_of_servers")


def sketch() -> None:
    """Two servers of two devices: how a token crosses, and where a popular expert's rows go."""
    place = {0: (0.0, 1.0), 1: (0.0, 0.0), 2: (2.2, 1.0), 3: (2.2, 0.0)}  # of devices
    inside, crossing = "#1f5fa8", "#c0392b"
    token = {0: "token", 1: "expert 1", 2: "expert 2", 3: "expert 3"}
    rows = {0: "2 rows", 1: "2 rows", 2: "6 rows", 3: "2 rows"}
    panels = {
        "a row for each expert: 2 cross": (token, [(0, 1), (0, 2), (0, 3)]),
        "deduplicated: 1 crosses, and is copied": (token, [(0, 1), (0, 2), (2, 3)]),
        "balanced: 2 rows and their weights move": (rows, [(2, 3)]),
    }
    figure, axes = plt.subplots(1, 3, figsize=(12, 2.6), layout="constrained")
    for ax, (title, (texts, arrows)) in zip(axes, panels.items(), strict=True):
        for server in (0, 1):
            x = 2.2 * server - 0.6
            ax.add_patch(patches.Rectangle((x, -0.4), 1.2, 1.8, facecolor="0.93", edgecolor="0.6"))
            ax.text(x + 0.6, 1.5, f"server {server}", ha="center", va="bottom")
        for device, (x, y) in place.items():
            text = f"device {device}\n{texts[device]}"
            box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "0.4"}
            ax.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box, zorder=2)
        for src, dst in arrows:
            colour = inside if src // 2 == dst // 2 else crossing
            style = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 22, "shrinkB": 22}
            ax.annotate("", place[dst], place[src], arrowprops=style)
        ax.set(xlim=(-0.8, 3.0), ylim=(-0.6, 1.8), title=title)
        ax.axis("off")
    figure.text(0.495, 0.02, "over NICs", color=crossing, ha="right")
    figure.text(0.505, 0.02, "inside servers", color=inside)
    plt.savefig(PICTURES / "crossing.svg")
    plt.close(figure)


def draw_all() -> int:
    """Returns the exit status: not 0 where a command failed."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "fastjax"}
    for name, options in OF_COMMANDS.items():
        path = PICTURES / f"{name}.svg"
        if status := main([*f"{LAYER} {options} --draw".split(), str(path)]):
            return status
    sketch()
    left = iter(OF_NOTEBOOK)

    def show() -> None:
        if name := next(left):
            plt.savefig(PICTURES / f"{name}.svg")

    plt.show = show
    runpy.run_path(str(ROOT / "notebooks/06_how_it_works.py"))
    return len(list(left))


if __name__ == "__main__":
    sys.exit(draw_all())
