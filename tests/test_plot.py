"""Pictures of plans: what is drawn is what the plan does, when it does it in lock step."""

import sys

import matplotlib.figure
import numpy as np
import pytest
from pictures import bars, overlaps, rounded, texts
from plan_problems import SCHEDULERS

import fastjax
from fastjax import Topology, make_plan, traffic
from fastjax.errors import ArgumentError, UnsupportedError
from fastjax.plot import draw_plan, plot_plan
from fastjax.schedule.steps import shares_of, steps_of
from fastjax.schedule.transfers import BALANCE, PHASES, SCALE_OUT


def swatches(ax):
    """The colour that each server has beside the axis."""
    patches = sorted((p for p in ax.patches if p.get_x() < 0), key=lambda p: p.get_y())
    return [rounded(patch.get_facecolor()) for patch in patches]


def test_bars_are_the_stages():
    plan = make_plan(
        traffic.pair_zipf(12, 500, seed=2), Topology(3, 4), scheduler="fast", row_bytes=4096
    )
    figure = plot_plan(plan)
    _, right = figure.axes[:2]
    drawn = bars(right)
    colours = swatches(right)
    assert len(set(colours)) == 3
    steps = steps_of(plan)
    wanted = 0
    for phase in PHASES:
        shares = shares_of(plan, phase)
        wanted += len(shares.stage)
        assert len(shares.stage)
        for stage, server, other, seconds in zip(
            shares.stage, shares.server, shares.other, shares.seconds, strict=True
        ):
            begin = steps.begin(phase, stage) * 1e6
            matches = [
                bar
                for bar in drawn
                if np.allclose(bar[:2], (begin, begin + seconds * 1e6))
                and server <= bar[2] < bar[3] <= server + 1
                and bar[4] == colours[other]
            ]
            assert matches, (phase, stage, server, other)
    assert len(drawn) == wanted
    names = [label.get_text() for label in right.get_yticklabels()]
    assert names == ["server 0", "server 1", "server 2"]
    assert right.get_xlim()[1] >= steps.end * 1e6
    title = figure.get_suptitle()
    assert f"fast: 3 x 4 devices, {plan.num_stages} stages" in title
    assert f"{plan.predicted_time() / plan.lower_bound():.2f} x the lower bound" in title


def test_bars_of_one_lane_do_not_overlap():
    plan = make_plan(
        traffic.pair_zipf(12, 500, seed=2), Topology(3, 4), scheduler="fast", row_bytes=4096
    )
    assert list(overlaps(bars(plot_plan(plan).axes[1]))) == []


def test_heat_map_is_the_traffic():
    matrix = traffic.expert_popularity(8, 300)
    left = plot_plan(make_plan(matrix, Topology(2, 4))).axes[0]
    np.testing.assert_array_equal(left.images[0].get_array(), matrix)
    assert left.get_xlabel() == "to server"
    one = plot_plan(make_plan(matrix, Topology(1, 8))).axes[0]
    assert one.get_ylabel() == "from device"


def test_many_servers_have_one_lane_each_and_two_for_what_moves_inside():
    matrix = traffic.pair_zipf(160, 64)
    plan = make_plan(matrix, Topology(40, 4), scheduler="fast", row_bytes=2**20)
    left, right = plot_plan(plan).axes[:2]
    blocks = matrix.reshape(40, 4, 40, 4).sum(axis=(1, 3))
    np.testing.assert_array_equal(left.images[0].get_array(), blocks)
    assert len(swatches(right)) == len(set(swatches(right))) == 40
    drawn = bars(right)
    lanes = {int(np.floor(bar[2])) for bar in drawn}
    assert lanes == {-2, *range(40), 41}
    assert {"balance", "redistribute"} <= set(texts(right))
    between = [bar for bar in drawn if 0 <= bar[2] < 40]
    assert len(between) == len(shares_of(plan, SCALE_OUT).stage)
    labels = right.get_yticklabels()
    assert 10 <= len(labels) <= 20
    steps = steps_of(plan)
    inside = [bar for bar in drawn if bar[2] < 0]
    widths = [bar[1] - bar[0] for bar in inside]
    np.testing.assert_allclose(widths, steps.seconds[BALANCE] * 1e6, atol=1e-6)


def test_local_rows_that_do_not_fit_beside_the_stages():
    matrix = np.zeros((4, 4), int)
    matrix[0, 1], matrix[0, 2] = 10**6, 1
    right = plot_plan(make_plan(matrix, Topology(2, 2), scheduler="fast", row_bytes=64)).axes[1]
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


def test_axes_of_ones_own():
    figure = matplotlib.figure.Figure()
    axes = figure.subplots(2, 1)
    plan = make_plan(traffic.uniform(4, 100), Topology(2, 2))
    assert plot_plan(plan, tuple(axes)) is figure
    assert len(axes[0].images) == 1
    assert bars(axes[1])
    assert figure.get_suptitle() == ""


@pytest.mark.parametrize(
    ("scheduler", "servers", "devices"),
    [
        *(("fast", *shape) for shape in [(1, 1), (1, 8), (2, 1), (13, 1)]),
        *((scheduler, 4, 2) for scheduler in SCHEDULERS),
    ],
)
def test_every_shape_can_be_drawn(tmp_path, scheduler, servers, devices):
    matrix = traffic.pair_zipf(servers * devices, 100)
    plan = make_plan(matrix, Topology(servers, devices), scheduler=scheduler, row_bytes=64)
    draw_plan(plan, tmp_path / "plan.svg")
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize(
    ("name", "start"), [("plan.png", b"\x89PNG"), ("plan.PDF", b"%PDF"), ("plan.svg", b"<?xml")]
)
def test_files_are_of_the_type_of_their_name(tmp_path, name, start):
    plan = make_plan(traffic.uniform(4, 100), Topology(2, 2))
    draw_plan(plan, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["plan", "plan.doc", ".png"])
def test_unknown_types_are_refused(tmp_path, name):
    plan = make_plan(traffic.uniform(4, 100), Topology(2, 2))
    with pytest.raises(ArgumentError, match=r"must end in one of .*\.pdf, .*\.png, .*\.svg"):
        draw_plan(plan, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_matplotlib_is_not_needed_until_something_is_drawn(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.collections", None)
    plan = make_plan(traffic.uniform(4, 100), Topology(2, 2))
    message = r"needs matplotlib, .* pip install 'fastjax\[plot\]'"
    with pytest.raises(UnsupportedError, match=message):
        plot_plan(plan)
    with pytest.raises(UnsupportedError, match=message):
        fastjax.plot.draw_plan(plan, tmp_path / "plan.png")
