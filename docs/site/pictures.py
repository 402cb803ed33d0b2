"""Draws docs/pictures: `make pictures`.

One is a sketch, one is drawn by a command of fastjax, one shows what levelling does, and the others
are figures of the notebook on how it works, which are simulated. They are the same bytes wherever
matplotlib is the same.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib import patches

from fastjax import traffic
from fastjax.chunking import levelling
from fastjax.cli import main
from fastjax.simulation import PRESETS

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
LAYER = (
    "simulate --model deepseek-v3 --devices 32 --preset h200 --exponent 0.4 "
    "--schedulers fast direct --seconds-per-row 0.22e-6 --chunks 4 --draw"
)
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


def balance() -> None:
    """Rows of devices by the mean, with experts at home and levelled: DeepSeek-V3's shape."""
    routing, servers, experts = traffic.ROUTINGS["deepseek-v3"], 4, 256
    counts = np.bincount(routing.choices(32, 4096, exponent=0.43).ravel(), minlength=experts)
    size = 3 * 7168 * 2048 * 2  # bytes of an expert in bf16
    seconds = levelling.row_seconds(size, "gpu")
    model = levelling.Levelling(PRESETS["h200"].topology(servers), 4, size, seconds, "gpu")
    home, levelled = counts.reshape(32, -1).sum(1), model.deal(counts)[1].sum(1)
    figure, ax = plt.subplots(figsize=(8.4, 3.2), layout="constrained")
    looks = ((home, "experts at home", "#f4b183", 0.9), (levelled, "levelled", "#1f5fa8", 0.45))
    for rows, name, colour, width in looks:
        shares = rows / rows.mean()
        label = f"{name}: at most {shares.max():.2f}"
        ax.bar(range(32), shares, width, color=colour, label=label)
    ax.axhline(1, color="black", lw=0.8, ls="--")
    for edge in range(8, 32, 8):
        ax.axvline(edge - 0.5, color="0.85", lw=0.6, zorder=0)
    ax.set(xlabel="device", ylabel="rows / mean", xlim=(-0.7, 31.7))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=2, fontsize="small")
    plt.savefig(PICTURES / "balance.svg")
    plt.close(figure)


def draw_all() -> int:
    """Returns the exit status: not 0 where a command failed."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "fastjax"}
    if status := main([*LAYER.split(), str(PICTURES / "layer.svg")]):
        return status
    balance()
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
