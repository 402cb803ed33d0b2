"""The grid that auto's choice is judged on: cells, verdict, tables, and going on after a stop."""

import json

import auto_grid
import auto_tables
import numpy as np
import pytest
import to_markdown

from fastjax import Topology, make_plan

SMALL = ["--topologies", "2x4", "--fabrics", "450:50", "--workloads", "single flow", "uniform"]
SMALL += ["--sizes", "1024", "1048576"]


def cell(behind=0.0, **changes):
    found = {"predicted": 1.0, "stages": 2, "simulated": 0.8}
    return {
        "topology": "2x4",
        "fabric": "450:50",
        "workload": "uniform",
        "size": 2**20,
        "seed": 0,
        "lower_bound": 0.5,
        "schedulers": {"fast": found},
        "best": "fast",
        "chosen": "direct",
        "auto": 1 + behind,
        "behind": behind,
        "looking": 0.25,
    } | changes


def test_auto_grid_measures_all_schedulers():
    key = {"topology": "2x4", "fabric": "448:12.5", "workload": "hot sender", "size": 2**22}
    found = auto_grid.measure(key | {"seed": 1})
    assert list(found["schedulers"]) == auto_grid.contestants()
    assert {"auto", "optimal"}.isdisjoint(found["schedulers"])
    predicted = [each["predicted"] for each in found["schedulers"].values()]
    share = found["behind"] + found["looking"]
    assert share == pytest.approx(found["auto"] / min(predicted) - 1)
    assert found["looking"] > 0
    assert predicted[list(found["schedulers"]).index(found["best"])] <= min(predicted) * 1.001
    assert found["schedulers"]["fast"]["simulated"] >= found["lower_bound"]
    # Device 0 sends to 8 devices, 4 of them elsewhere, over 4 NICs: 4 MiB each.
    assert found["lower_bound"] == pytest.approx(2**22 / 12.5e9)


def test_auto_grid_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    path, measured = tmp_path / "grid.json", []
    part = tmp_path / "grid.json.part"

    def stop_at_third(key, simulated):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(key)
        return cell(**key)

    monkeypatch.setattr(auto_grid, "measure", stop_at_third)
    arguments = [*SMALL, "--json", str(path)]
    with pytest.raises(KeyboardInterrupt):
        auto_grid.main(arguments)
    assert not path.exists()
    with part.open("a") as file:
        file.write('{"topology": "2x4", "cut')
    later = []
    monkeypatch.setattr(
        auto_grid, "measure", lambda key, _: later.append(key) or cell(behind=0.5, **key)
    )
    assert auto_grid.main(arguments) == 1
    assert len(later) == 2
    assert all(key not in measured for key in later)
    assert not part.exists()
    record = json.loads(path.read_text())
    assert [c["behind"] for c in record["cells"]] == [0, 0, 0.5, 0.5]
    capsys.readouterr()


def test_auto_grid_starts_anew_with_another_planner(tmp_path, monkeypatch):
    part = tmp_path / "grid.json.part"
    part.write_text("another planner\n" + json.dumps(cell()) + "\n")
    assert auto_grid.finished(part, auto_grid.fingerprint(True)) == {}
    part.write_text(auto_grid.fingerprint(True) + "\n" + json.dumps(cell()) + "\n")
    assert auto_grid.finished(part, auto_grid.fingerprint(True)) != {}
    assert auto_grid.finished(part, auto_grid.fingerprint(False)) == {}
    part.write_text("")
    assert auto_grid.finished(part, auto_grid.fingerprint(True)) == {}


@pytest.mark.parametrize(("behind", "status"), [(0.0, 0), (0.0099, 0), (0.0101, 1)])
def test_auto_grid_verdict(behind, status, monkeypatch, capsys):
    monkeypatch.setattr(auto_grid, "measure", lambda key, _: cell(behind=behind, **key))
    assert auto_grid.main(SMALL) == status
    shown = capsys.readouterr().out
    worst = "single flow, 1 KiB: direct, fast is better" if status else "-"
    assert f"| 2x4 | 450:50 | 4 | {behind:.2%} | {4 * status} | - | 25% | {worst} |" in shown


def test_auto_grid_tables():
    cells = [cell(), cell(topology="1x8", best="direct"), cell(topology="8x8", best="direct")]
    assert "| uniform | 450:50 | fast 1, direct 1 |" in auto_tables.winners(cells)
    table = auto_tables.model_against_simulator(cells)
    assert "| fast | 3 | 1.250 | 1.250 | 1.250 | 1.250 | 1.250 |" in table


def test_plans_are_simulated_where_no_senders_meet():
    topology, traffic = Topology(2, 2), np.ones((4, 4), int)
    for scheduler, simulated in (("fast", True), ("spreadout", True), ("direct", False)):
        plan = make_plan(traffic, topology, scheduler=scheduler)
        assert ("simulated" in auto_grid.times(plan, True)) == simulated
        assert "simulated" not in auto_grid.times(plan, False)
    alone = make_plan(np.eye(4, dtype=int), topology, scheduler="direct")
    assert "simulated" in auto_grid.times(alone, True)


def test_its_page():
    page = to_markdown.PAGES[auto_tables.SCHEMA]
    text = page(auto_grid.records.stamp(auto_tables.SCHEMA) | {"cells": [cell(0.5)]}, "title")
    assert text.startswith("# title\n\n1 cells.")
    assert "| 2x4 | 450:50 | 1 | 50.00% | 1 | - | 25% | uniform, 1 MiB: direct, fast" in text


def test_it_refuses_impossible_numbers(capsys):
    for arguments in (["--seeds", "0"], ["--sizes", "0"]):
        with pytest.raises(SystemExit, match="2"):
            auto_grid.main(arguments)
        assert "--seeds and --sizes must be 1 or more." in capsys.readouterr().err


@pytest.mark.parametrize(("size", "name"), [(7, "7 B"), (2**13, "8 KiB"), (3 * 2**30, "3 GiB")])
def test_names_of_sizes(size, name):
    assert auto_tables.size_name(size) == name
