"""The panels of `Plan.plot`: what is drawn is what the transfers say, added up one by one here."""

import itertools

import matplotlib.figure
import numpy as np
import pytest
from pictures import bars, texts

from fastjax import Topology, make_plan, traffic
from fastjax.plot.matrices import draw_matrices, stage_runs
from fastjax.plot.nics import draw_nics, nic_seconds
from fastjax.schedule.flows import simulate_by_barrier
from fastjax.schedule.transfers import SCALE_OUT


def panel(plan, name):
    """That panel alone."""
    ax = matplotlib.figure.Figure(figsize=(6, 3)).add_subplot()
    if name == "nics":
        draw_nics(plan, ax)
    else:
        draw_matrices(plan, simulate_by_barrier(plan), ax)
    return ax


def plan_of(scheduler="fast", servers=3, devices=4, **rates):
    matrix = traffic.pair_zipf(servers * devices, 500, seed=2)
    return make_plan(
        matrix, Topology(servers, devices, **rates), scheduler=scheduler, row_bytes=4096
    )


def crossing(plan):
    return [t for t in plan.transfers.tolist() if t[0] == SCALE_OUT]


def test_nics_before_and_after():
    nics = (50e9,) * 3 + (25e9,) + (0,) + (50e9,) * 7
    plan = plan_of(nic_bandwidths=nics)
    loads = np.zeros((2, 2, 12))  # after, received, device
    for i in range(12):
        for j in range(12):
            loads[0, :, [i, j]] += np.diag([plan.traffic[i, j] * (i // 4 != j // 4)] * 2)
    for _, _, src, dst, _, _, _, rows in crossing(plan):
        loads[1, 0, src] += rows
        loads[1, 1, dst] += rows
    wanted = loads * 4096 / np.where(np.array(nics) > 0, nics, np.nan)
    assert loads[1, :, 4].sum() == 0 < loads[0, :, 4].min()
    wanted[1, :, 4] = 0
    np.testing.assert_allclose(nic_seconds(plan), wanted)
    assert len(bars(panel(plan, "nics"))) == 4 * 12


@pytest.mark.parametrize("scheduler", ["fast", "spreadout", "rails", "direct"])
def test_matrices_are_the_stages(scheduler):
    plan = plan_of(scheduler, servers=4, devices=2)
    wanted = np.zeros((plan.num_stages, 4, 4), int)
    for _, stage, src, dst, _, _, _, rows in crossing(plan):
        wanted[stage, src // 2, dst // 2] += rows
    flows = simulate_by_barrier(plan)
    runs = stage_runs(plan, flows)
    crossed = flows.messages[flows.messages["phase"] == SCALE_OUT]
    assert [run.first for run in runs] == [0, *(run.last + 1 for run in runs[:-1])]
    assert runs[-1].last == plan.num_stages - 1
    for run in runs:
        stages = slice(run.first, run.last + 1)
        np.testing.assert_array_equal(run.rows, wanted[stages].sum(axis=0))
        mine = crossed[(crossed["stage"] >= run.first) & (crossed["stage"] <= run.last)]
        assert run.seconds == mine["end"].max() - mine["ready"].min()
        for part in wanted[stages]:
            assert not ((part > 0) & (wanted[run.first] == 0)).any()
    for run, later in itertools.pairwise(runs):
        assert ((wanted[later.first] > 0) & (run.rows == 0)).any()
    ax = panel(plan, "matrices")
    cells = np.ma.filled(ax.images[0].get_array().astype(float), np.nan)
    assert np.nansum(cells) == wanted.sum()
    assert texts(ax) == [str(run) for run in runs]


@pytest.mark.parametrize("name", ["nics", "matrices"])
def test_panels_that_have_nothing_to_show_say_so(name):
    assert texts(panel(plan_of(servers=1), name)) == ["nothing crosses servers"]


@pytest.mark.parametrize(("scheduler", "shown"), [("fast", True), ("direct", False)])
def test_one_run_of_stages_has_no_matrices_of_its_own(scheduler, shown):
    titles = [ax.get_title() for ax in plan_of(scheduler).plot().axes]
    assert any("rows from each server" in title for title in titles) == shown


@pytest.mark.parametrize(
    ("scheduler", "servers", "devices"),
    [
        *(("fast", *shape) for shape in [(1, 1), (2, 1), (13, 1), (40, 4)]),
        *((scheduler, 4, 2) for scheduler in ("direct", "rails", "spreadout")),
    ],
)
def test_every_shape_can_be_drawn(tmp_path, scheduler, servers, devices):
    plan_of(scheduler, servers, devices).plot().savefig(tmp_path / "plan.png", dpi=40)
    assert (tmp_path / "plan.png").stat().st_size
