"""What a layer of experts does when, in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastjax.chunking.resources import LayerTimes
from fastjax.errors import ArgumentError
from fastjax.plot.drawing import add_boxes, colours_of, legend, matplotlib, note, without_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESOURCE_NAMES = {"network": "NICs", "inside": "links inside", "experts": "experts"}
_BACK = ("sums", "back")
_PALE = 0.45  # of the colour, on the way back
_GAP = 0.9  # between layers, in resources
_MOST_TEXTS = 400


def plot_layers(layers: Sequence[LayerTimes]) -> Figure:
    """Draws when NICs, links inside servers and experts work on which chunk of a layer.

    Args:
      layers: of `fastjax.simulation.layer_time`, one below the other; for one, in one chunk and in
        several.

    Returns:
      The figure.

    Raises:
      ArgumentError: there are no layers.
      UnsupportedError: matplotlib is not installed.
    """
    mpl = matplotlib()
    if not layers:
        raise ArgumentError("layers must be one or more, got none.")
    used = {task.resource for layer in layers for task in layer.tasks}
    resources = [resource for resource in RESOURCE_NAMES if resource in used]
    height = 1.4 + 0.3 * len(layers) * (len(resources) + _GAP)
    figure = mpl.figure.Figure(figsize=(11, max(2.4, height)), layout="constrained")
    place = figure.add_subplot()
    if not resources:
        note(place, "nothing moves and no expert works")
        return figure
    colours = colours_of(max(layer.chunks for layer in layers))
    right = max(layer.total for layer in layers) * 1e6
    tops = [number * (len(resources) + _GAP) for number in range(len(layers))]
    for layer, top in zip(layers, tops, strict=True):
        _draw(layer, resources, top, colours, right, place)
    _finish(resources, tops, right, place)
    return figure


def in_words(layer: LayerTimes) -> str:
    """What it is, and how long it takes."""
    way = "deduplicated" if layer.deduplicated else "a row for each choice"
    parts = f"{layer.chunks} chunks" if layer.chunks > 1 else "1 chunk"
    return f"{way}, {parts}: {layer.total * 1e6:,.0f} µs"


def _draw(
    layer: LayerTimes, resources: list[str], top: float, colours: np.ndarray, right: float, ax: Axes
) -> None:
    shown = [task for task in layer.tasks if task.resource in resources]
    start, end = (np.array([getattr(p, name) for p in shown]) * 1e6 for name in ("start", "end"))
    y = top + np.array([resources.index(task.resource) for task in shown]) + 0.07
    colour = colours[[task.chunk for task in shown]]
    back = np.array([task.part in _BACK for task in shown], bool)
    colour[back, :3] = 1 - _PALE * (1 - colour[back, :3])
    if shown:
        add_boxes(ax, start, end - start, y, 0.86, colour)
    for task, left, length, low in zip(shown, start, end - start, y, strict=True):
        if length > 0.02 * right and len(ax.texts) < _MOST_TEXTS:
            ax.text(
                left + length / 2, low + 0.43, str(task.chunk + 1), ha="center", va="center",
                fontsize="x-small", color="black" if task.part in _BACK else "white",
            )  # fmt: skip
    title = in_words(layer)
    ax.vlines(layer.total * 1e6, top, top + len(resources), color="black", lw=1)
    if layer.backward_from is not None:
        middle = layer.backward_from * 1e6
        ax.vlines(middle, top, top + len(resources), color="black", lw=1, ls="--")
        title += f", backward from {middle:,.0f} µs"
    ax.text(0, top - 0.12, title, fontsize="small", ha="left", va="bottom")


def _finish(resources: list[str], tops: list[float], right: float, ax: Axes) -> None:
    places = [top + row + 0.5 for top in tops for row in range(len(resources))]
    ax.set_yticks(places, labels=[RESOURCE_NAMES[resource] for resource in resources] * len(tops))
    ax.tick_params(axis="y", length=0, labelsize="x-small")
    ax.set_ylim(tops[-1] + len(resources) + 0.1, -_GAP)
    ax.set_xlim(0, right * 1.01)
    ax.set_xlabel("µs; numbers and colours: chunks")
    without_frame(ax, "bottom")
    dark, pale = "0.3", str(1 - _PALE * 0.7)
    legend(ax, [("to the experts, and their work", dark), ("back", pale)])
