"""Pictures of plans: what is drawn is what the plan does, when the simulator has it done."""

import sys

import hypothesis
import matplotlib.figure
import numpy as np
import pytest
from pictures import bars, texts
from plan_problems import SCHEDULERS, problems, scheduled, topologies

from fastjax import Topology, make_plan, simulate, traffic
from fastjax.errors import UnsupportedError
from fastjax.plot import plot_plan
from fastjax.plot.loads import draw_nics, nic_seconds
from fastjax.plot.stages import barriers, shares_of
from fastjax.schedule.flows import simulate_by_barrier
from fastjax.schedule.transfers import PHASES, REDISTRIBUTE, SCALE_OUT


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@hypothesis.settings(max_examples=25)
@hypothesis.given(problem=problems(topologies((2, 4), (1, 3))))
def test_shares_and_ends_of_every_stage(scheduler, problem):
    """Added up one transfer after the other."""
    plan = scheduled(problem, scheduler)
    m, flows = plan.topology.devices_per_server, simulate_by_barrier(plan)
    timeline = simulate(plan, synchronization="barrier")
    np.testing.assert_array_equal(flows.messages, timeline.messages)
    assert flows.end == timeline.completion_time
    for phase in PHASES:
        rows, begin, end = {}, {}, {}
        for t in timeline.transfers[timeline.transfers["phase"] == phase]:
            other = t["origin"] if phase == REDISTRIBUTE else t["target"]
            key = (int(t["stage"]), int(t["src"]) // m, int(other) // m)
            rows[key] = rows.get(key, 0) + int(t["rows"])
            begin[key] = min(begin.get(key, np.inf), t["start"])
            end[key] = max(end.get(key, 0), t["end"])
        shares = shares_of(plan, flows, phase)
        keys = sorted(rows)
        assert list(zip(shares.stage, shares.server, shares.other, strict=True)) == keys
        np.testing.assert_array_equal(shares.start, [begin[key] for key in keys])
        np.testing.assert_array_equal(shares.end, [end[key] for key in keys])
        together = [[rows[k] for k in keys if k[:2] == key[:2]] for key in keys]
        before = [[rows[k] for k in keys if k[:2] == key[:2] and k < key] for key in keys]
        total = np.array([sum(each) for each in together])
        np.testing.assert_allclose(shares.share * total, [rows[key] for key in keys])
        np.testing.assert_allclose(shares.below * total, [sum(each) for each in before], atol=1e-6)
    sent = timeline.messages[timeline.messages["phase"] == SCALE_OUT]
    for stage, last in enumerate(barriers(plan, flows)):
        assert last == sent["end"][sent["stage"] == stage].max(initial=0)


def test_heat_map_is_the_traffic():
    matrix = traffic.expert_popularity(8, 300)
    left = plot_plan(make_plan(matrix, Topology(2, 4))).axes[0]
    np.testing.assert_array_equal(left.images[0].get_array(), matrix)


def test_local_rows_that_do_not_fit_beside_the_stages():
    matrix = np.zeros((4, 4), int)
    matrix[0, 1], matrix[0, 2] = 10**6, 1
    right = plot_plan(make_plan(matrix, Topology(2, 2), scheduler="fast", row_bytes=64)).axes[-1]
    assert "local" in texts(right)


@pytest.mark.parametrize("servers", [1, 2])
def test_plans_without_scale_out_show_what_devices_send(servers):
    matrix = np.kron(np.eye(servers, dtype=int), np.array([[7, 5, 1], [0, 0, 2], [4, 0, 0]]))
    right = plot_plan(make_plan(matrix, Topology(servers, 3))).axes[1]
    sends, receives = ([bar.get_width() for bar in group] for group in right.containers)
    assert sends == [6, 2, 4] * servers
    assert receives == [4, 5, 3] * servers


def test_nothing_to_exchange():
    figure = plot_plan(make_plan(np.zeros((4, 4), int), Topology(2, 2)))
    assert "no rows" in texts(figure.axes[1])
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
