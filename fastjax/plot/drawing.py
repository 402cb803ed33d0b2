"""What the pictures have in common."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastjax.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_LABELS = 16
_MOST_EDGED_BARS = 200


def matplotlib() -> Any:
    """The package, with the parts of it that are used here.

    Raises:
      UnsupportedError: it is not installed.
    """
    try:
        for part in ("collections", "colors", "figure", "patches"):
            importlib.import_module(f"matplotlib.{part}")
    except ImportError as error:
        raise UnsupportedError(
            f"a picture needs matplotlib, which is missing ({error}): pip install 'fastjax[plot]'"
        ) from None
    return importlib.import_module("matplotlib")


def colours_of(chunks: int) -> np.ndarray:
    """One for each chunk, shape (chunks, 4)."""
    maps = matplotlib().colormaps
    if chunks <= 10:
        return maps["tab10"](np.arange(chunks))
    return maps["turbo"](np.linspace(0.03, 0.97, chunks))


def add_boxes(
    ax: Axes, x: Any, width: Any, y: Any, height: Any, colour: Any, **options: Any
) -> None:
    """Boxes with those left and upper edges, all at once: fast where there are many."""
    x, width, y, height = np.broadcast_arrays(*np.atleast_1d(x, width, y, height))
    corners = np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]])
    # White edges tell bars apart; where there are many, edges of their colour keep them visible.
    few = len(x) < _MOST_EDGED_BARS
    look = {"edgecolors": "white" if few else colour, "linewidths": 0.6 if few else 0.2}
    ax.add_collection(
        matplotlib().collections.PolyCollection(
            np.moveaxis(corners, -1, 0), facecolors=colour, **look | options
        )
    )


def every_so_many(count: int) -> np.ndarray:
    """The numbers below count, or some of them, as many as have room for labels."""
    return np.arange(0, count, -(-count // _MOST_LABELS))


def without_frame(ax: Axes, *kept: str) -> None:
    """Takes the frame away, but for those sides."""
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(side in kept)


def legend(ax: Axes, colours: Iterable[tuple[str, Any]], **where: Any) -> None:
    """Names colours: above the upper right corner in one line, if nobody says where."""
    handles = [matplotlib().patches.Patch(color=colour, label=name) for name, colour in colours]
    corner = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
    look = {"ncols": len(handles), "frameon": False, "fontsize": "small"}
    ax.legend(handles=handles, **look | (where or corner))


def note(ax: Axes, text: str) -> None:
    """Says in the middle why there is nothing to see."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
    ax.set_xticks([])
    ax.set_yticks([])
    without_frame(ax)
