"""What pictures show, read back from matplotlib, and timelines made by hand."""

import numpy as np
from matplotlib.collections import LineCollection, PolyCollection

from fastjax.simulation import MESSAGE_DTYPE, TIMED_DTYPE, Fabric, Timeline


def bars(ax):
    """Every bar: (left, right, top, bottom) in units of the axes."""
    found = []
    for collection in ax.collections:
        if isinstance(collection, LineCollection):
            continue
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((left, right, top, bottom))
    return found


def overlaps(drawn):
    """Pairs of bars that cover each other in part."""
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            apart_in_time = a[1] <= b[0] + 1e-6 or b[1] <= a[0] + 1e-6
            if not (apart_in_time or a[3] <= b[2] + 1e-9 or b[3] <= a[2] + 1e-9):
                yield a, b


def texts(ax):
    """All texts inside and beside the axes."""
    return [text.get_text() for text in ax.texts]


def timeline_of(messages, topology, *, row_bytes=1, **fields):
    """A timeline with these messages: (phase, stage, src, dst, rows, ready, start, end)."""
    made = np.array(messages, MESSAGE_DTYPE)
    given = {
        "scheduler": "by hand",
        "fabric": Fabric(),
        "transfers": np.zeros(0, TIMED_DTYPE),
        "completion_time": float(made["end"].max(initial=0)),
        "planning_time": 0.0,
        "lower_bound": 0.0,
    }
    return Timeline(topology=topology, row_bytes=row_bytes, messages=made, **given | fields)
