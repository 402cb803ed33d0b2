"""Pictures of plans: what is drawn is what the plan does."""

import sys

import matplotlib.figure
import numpy as np
import pytest
from pictures import bars

from fastjax import Topology, make_plan, traffic
from fastjax.errors import UnsupportedError
from fastjax.plot import plot_plan
from fastjax.plot.plans import draw_nics, nic_seconds
from fastjax.schedule import SCALE_OUT


def test_heat_map_is_the_traffic():
    matrix = traffic.expert_popularity(8, 300)
    left = plot_plan(make_plan(matrix, Topology(2, 4))).axes[0]
    np.testing.assert_array_equal(left.images[0].get_array(), matrix)


def test_nothing_to_exchange():
    figure = plot_plan(make_plan(np.zeros((4, 4), int), Topology(2, 2)))
    assert not figure.axes[0].images[0].get_array().any()
    assert "lower bound" not in figure.get_suptitle()


def test_matplotlib_is_not_needed_until_something_is_drawn(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)
    plan = make_plan(traffic.uniform(4, 100), Topology(2, 2))
    message = r"needs matplotlib, .* pip install 'fastjax\[plot\]'"
    with pytest.raises(UnsupportedError, match=message):
        plot_plan(plan)


def test_nics_before_and_after():
    nics = (50e9,) * 3 + (25e9,) + (0,) + (50e9,) * 7
    topology = Topology(3, 4, nic_bandwidths=nics)
    plan = make_plan(traffic.pair_zipf(12, 500, seed=2), topology, scheduler="fast", row_bytes=4096)
    loads = np.zeros((2, 2, 12))  # after, received, device
    for i in range(12):
        for j in range(12):
            loads[0, :, [i, j]] += np.diag([plan.traffic[i, j] * (i // 4 != j // 4)] * 2)
    for phase, _, src, dst, _, _, _, rows in plan.transfers.tolist():
        loads[1, 0, src] += rows * (phase == SCALE_OUT)
        loads[1, 1, dst] += rows * (phase == SCALE_OUT)
    wanted = loads * 4096 / np.where(np.array(nics) > 0, nics, np.nan)
    assert loads[1, :, 4].sum() == 0 < loads[0, :, 4].min()
    wanted[1, :, 4] = 0
    np.testing.assert_allclose(nic_seconds(plan), wanted)
    draw_nics(plan, ax := matplotlib.figure.Figure().add_subplot())
    assert len(bars(ax)) == 4 * 12


@pytest.mark.parametrize(
    ("scheduler", "servers", "devices"),
    [
        *(("fast", *shape) for shape in [(1, 1), (2, 1), (13, 1), (40, 4)]),
        *((scheduler, 4, 2) for scheduler in ("direct", "rails", "spreadout")),
    ],
)
def test_every_shape_can_be_drawn(tmp_path, scheduler, servers, devices):
    matrix = traffic.pair_zipf(servers * devices, 500, seed=2)
    figure = make_plan(matrix, Topology(servers, devices), scheduler=scheduler).plot()
    figure.savefig(tmp_path / "plan.png", dpi=40)
    assert (tmp_path / "plan.png").stat().st_size
    assert ("load of each NIC" in {ax.get_title() for ax in figure.axes}) == (servers > 1)
