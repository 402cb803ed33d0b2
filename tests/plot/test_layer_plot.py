"""Pictures of layers in chunks: what is drawn is what the tasks say."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pictures import bars, texts

from fastjax import plot
from fastjax.chunking.resources import Parts, schedule
from fastjax.errors import ArgumentError
from fastjax.plot.layers import RESOURCE_NAMES, in_words

seconds = st.integers(0, 5)
some_parts = st.lists(st.builds(Parts, *[seconds] * 6), min_size=1, max_size=5)


def drawn(ax):
    """Start and end in seconds of the bars of each line of the picture, from above."""
    found = [[] for _ in ax.get_yticks()]
    for left, right, top, bottom in bars(ax):
        (line,) = np.flatnonzero((ax.get_yticks() > top) & (ax.get_yticks() < bottom))
        found[line].append((left / 1e6, right / 1e6))
    return [sorted(line) for line in found]


@given(st.lists(some_parts, min_size=1, max_size=3))
@example([[Parts()], [Parts(back=1.0)]])  # nothing moves in one of them
def test_resources_show_their_tasks(chunks):
    layers = [schedule(parts, deduplicated=True) for parts in chunks]
    figure = plot.plot_layers(layers)
    (ax,) = figure.axes
    used = {task.resource for layer in layers for task in layer.tasks}
    resources = [resource for resource in RESOURCE_NAMES if resource in used]
    if not resources:
        assert texts(ax) == ["nothing moves and no expert works"]
        return
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [RESOURCE_NAMES[resource] for resource in resources] * len(layers)
    wanted = [
        sorted((task.start, task.end) for task in layer.tasks if task.resource == resource)
        for layer in layers
        for resource in resources
    ]
    for line, tasks in zip(drawn(ax), wanted, strict=True):
        assert np.array(line) == pytest.approx(np.array(tasks))
    for layer in layers:
        assert in_words(layer) in texts(ax)


def test_the_backward_pass_is_marked():
    one = schedule([Parts(out=1.0, back=1.0)])
    (ax,) = plot.plot_layers([one, one.then(one)]).axes
    assert [t.partition(", backward from ")[2] for t in texts(ax) if "µs" in t] == [
        "",
        "2,000,000 µs",
    ]
    lines = [np.array(path.vertices) for c in ax.collections for path in c.get_paths()]
    marks = sorted(line[0, 0] for line in lines if len(line) == 2)
    assert marks == pytest.approx([2e6, 2e6, 4e6])


def test_no_layers():
    with pytest.raises(ArgumentError, match="layers must be one or more"):
        plot.plot_layers([])
