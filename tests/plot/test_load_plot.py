"""The picture of devices' rows, before and after levelling."""

import numpy as np
import pytest
from pictures import bars, texts

from fastjax import plot
from fastjax.errors import ArgumentError


def test_bars_are_rows_by_the_mean():
    before, after = [8, 0, 4, 4], [4, 4, 4, 4]
    (ax,) = plot.plot_loads(before, after, servers=2).axes
    heights = [high for _, _, _, high in bars(ax)]
    assert heights == pytest.approx([2, 0, 1, 1, 1, 1, 1, 1])
    assert texts(ax) == []
    assert [t.get_text()[-4:] for t in ax.get_legend().get_texts()] == ["2.00", "1.00"]


def test_no_rows():
    (ax,) = plot.plot_loads([0, 0], [0, 0], servers=1).axes
    assert all(high == 0 for _, _, _, high in bars(ax))


@pytest.mark.parametrize(
    ("before", "after", "servers"), [([], [], 1), ([1, 2], [3], 1), ([1, 2, 3], [1, 2, 3], 2)]
)
def test_devices_must_fit(before, after, servers):
    with pytest.raises(ArgumentError, match="rows before as after"):
        plot.plot_loads(np.array(before), after, servers=servers)
