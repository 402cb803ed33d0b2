"""How far `fast` is from the best: problems whose best is known, what is refused, and the page."""

import importlib
import json
import types

import frontier
import gap
import gap_tables
import numpy as np
import pytest
from workloads import WORKLOADS

from fastjax.errors import UnsupportedError

FREE, DEAR = "free", "10 µs, 4 MB"


def one_stage(rows, *, startup_rows, time_limit=60.0):
    """Of two servers the best is one stage, in which both send all they have."""
    assert rows.shape == (2, 2)
    assert time_limit == 3.0
    length, cost = int(rows.max()), startup_rows + int(rows.max())
    return types.SimpleNamespace(
        targets=np.array([[1, 0]]),
        lengths=np.array([length]),
        objective=float(cost),
        bound=float(cost),
        optimal=True,
        seconds=0.5,
    )


def nothing(traffic, topology, *, row_bytes=1, time_limit=60.0):
    """A bound for everyone, if not a good one."""
    return 0.0


def stand_in(monkeypatch, solve=one_stage, fluid=nothing):
    module = types.SimpleNamespace(solve_stages=solve, fluid_lower_bound=fluid)
    monkeypatch.setattr(gap.importlib, "import_module", lambda _: module)


@pytest.mark.parametrize("price", [FREE, DEAR])
def test_two_servers_need_one_stage(price, monkeypatch):
    stand_in(monkeypatch)
    cell = gap.measure("pair-zipf 0.8", 2, 1, price, 3.0)
    rows = frontier.server_rows(WORKLOADS["pair-zipf 0.8"](2, 8, gap.ROWS, 1))
    # 10 µs at 50 GB/s are 500 kB, and 4 MB are 100,000 rows.
    assert cell["startup_rows"] == pytest.approx(12_500 if price == DEAR else 0)
    assert cell["busiest"] == rows.max()
    assert cell["fast"]["matchings"] == cell["best"]["matchings"] == 1
    assert cell["fast"]["cost"] == cell["best"]["cost"] == cell["startup_rows"] + rows.max()


@pytest.mark.parametrize("price", [FREE, DEAR])
def test_against_the_solver(price):
    pytest.importorskip("scipy")
    pytest.importorskip("fastjax.optimal")
    cell = gap.measure("pair-zipf 0.8", 3, 2, price, 60.0)
    assert cell["best"]["optimal"]
    assert cell["best"]["cost"] <= cell["fast"]["cost"] <= 1.1 * cell["best"]["cost"]
    assert cell["lower_bound_s"] <= cell["fluid_s"] * (1 + 1e-6) <= cell["exchange_s"] * (1 + 2e-6)


def test_what_is_better_than_possible_is_caught(monkeypatch):
    def too_dear(rows, **how):
        answer = one_stage(rows, **how)
        answer.bound *= 2
        return answer

    stand_in(monkeypatch, solve=too_dear)
    with pytest.raises(AssertionError, match=r"fast costs \d+.*no less than .* is possible"):
        gap.measure("uniform", 2, 0, FREE, 3.0)
    stand_in(monkeypatch, fluid=lambda *_, **__: 7.0)
    with pytest.raises(AssertionError, match=r"an exchange takes .* no less than 7\.0 is possible"):
        gap.measure("uniform", 2, 0, FREE, 3.0)


def test_command(tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch)
    path = tmp_path / "new" / "gap.json"
    arguments = ["--servers", "2", "--seeds", "2", "--workloads", "uniform", "expert 0.8"]
    arguments += ["--time-limit", "3", "--json", str(path)]
    assert gap.main(arguments) == 0
    shown = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert len(record["cells"]) == 2 * 2 * len(gap.PRICES)
    assert gap_tables.page(record, "How far fast is from the best") == shown.removesuffix("\n")


def test_fluid_bound_that_was_not_solved(monkeypatch):
    def gives_up(*_, **__):
        raise UnsupportedError("not in time")

    stand_in(monkeypatch, fluid=gives_up)
    cell = gap.measure("uniform", 2, 0, FREE, 3.0)
    assert cell["fluid_s"] is None
    assert "| 2 | free | 0 | - | - | - | - |" in gap_tables.exchanges([cell])


@pytest.mark.parametrize(
    "wrong", [["--seeds", "0"], ["--servers", "1"], ["--time-limit", "0"], ["--time-limit", "-1"]]
)
def test_refuses(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        gap.main(wrong)
    assert "--time-limit above 0." in capsys.readouterr().err


def test_says_what_it_needs(capsys, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SystemExit, match="2"):
        gap.main([])
    assert "needs fastjax.optimal, which needs scipy" in capsys.readouterr().err


def cell(seed, fast, best, **others):
    answer = {"workload": "uniform", "servers": 4, "seed": seed, "price": FREE}
    answer |= {"startup_rows": 100.0, "busiest": 800}
    answer |= {"exchange_s": 1.5, "fluid_s": 1.0, "lower_bound_s": 0.8}
    answer["fast"] = {"matchings": 4, "length": 880, "cost": fast}
    answer["best"] = {"matchings": 3, "length": 800, "cost": best, "bound": 1000, "optimal": False}
    return answer | others


def test_tables():
    cells = [cell(0, 1100.0, 1000.0), cell(1, 1320.0, 1100.0), cell(2, 1200.0, 1200.0)]
    line = "| 4 | free | 3 | 0 | 10.00% | 18.00% | 20.00% | 32.00% | 4.0 | 3.0 | 10.00% | 0.00% |"
    assert gap_tables.stages(cells, "servers").splitlines()[2:] == [line]
    listed = gap_tables.worst(cells).splitlines()[2:]
    assert [row.split(" | ")[3:5] for row in listed] == [["1", "20.00%"], ["0", "10.00%"]]
    line = "| 4 | free | 3 | 50.00% | 50.00% | uniform, seed 0 | 25.00% |"
    assert gap_tables.exchanges(cells).splitlines()[2:] == [line]


def test_gaps():
    assert gap_tables.above(3, 2) == 0.5
    assert gap_tables.above(0, 0) == 0
    assert gap_tables.percent(-1e-9) == "0.00%"
