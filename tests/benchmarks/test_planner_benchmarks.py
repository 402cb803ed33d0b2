"""The scripts that plans are judged by: their workloads, bounds, verdicts and pages."""

import itertools
import json
import re

import completion
import drift_time
import frontier
import frontier_figure
import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import plan_limits
import plan_time
import pytest
import records
import textbook
import to_markdown
from plan_problems import problems, scheduled
from workloads import WORKLOADS, routed

from fastjax import Topology, make_plan
from fastjax.errors import UnsupportedError

SHAPES = [(1, 8), (2, 4), (8, 1), (3, 5)]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("servers", "per_server"), SHAPES)
def test_workloads(name, servers, per_server):
    devices, rows = servers * per_server, 4000
    traffic = WORKLOADS[name](servers, per_server, rows, 3)
    assert traffic.shape == (devices, devices)
    assert traffic.dtype == np.int64
    assert traffic.min() >= 0
    np.testing.assert_array_equal(traffic, WORKLOADS[name](servers, per_server, rows, 3))
    sent, received = traffic.sum(axis=1), traffic.sum(axis=0)
    server = np.arange(devices) // per_server
    inside = np.where(server[:, None] == server, traffic, 0)
    if name.startswith("pair-zipf"):
        assert sent.sum() == devices * rows
    elif name == "hot receiver":
        assert sorted(received) == [0] * (devices - 1) + [devices * rows]
        assert set(sent) == {rows}
    elif name == "hot sender":
        assert sorted(sent) == [0] * (devices - 1) + [devices * rows]
        assert set(received) == {rows}
    elif name == "single flow":
        assert sorted(traffic.ravel())[-2:] == [0, rows]
        assert np.trace(traffic) == 0
        assert (inside.sum() == 0) == (servers > 1)
    elif name == "permutation":
        assert set(sent) == set(received) == {rows}
        assert (traffic > 0).sum() == devices
        assert np.trace(traffic) == 0
    elif name == "mostly local":
        share = inside.sum() / traffic.sum()
        assert share == 1 if servers == 1 else share == pytest.approx(0.9, abs=0.002)
    else:
        assert set(sent) == {rows}


def test_experts_are_popular_wherever_they_are():
    hottest = {
        int(WORKLOADS["expert 0.8"](2, 4, 4000, seed).sum(axis=0).argmax()) for seed in range(8)
    }
    assert len(hottest) > 2


def test_trained_models_have_the_same_popular_experts_for_all_senders():
    found = routed()
    assert found.shape == (3, 4, 8, 8)
    traffic = WORKLOADS["trained"](2, 8, 512, 0)
    halves = slice(8), slice(8, 16)
    for columns in halves:
        nearest = []
        for rows in halves:
            # The trace's senders have 512 rows each for eight devices; here there are sixteen.
            apart = np.abs(2 * traffic[rows, columns] - found).max(axis=(2, 3))
            assert apart.min() <= 2
            nearest.append(np.unravel_index(apart.argmin(), apart.shape))
        (layer, _), (other, _) = nearest
        assert layer == other


def bound_by_hand(traffic, topology, row_bytes):
    """The definition, one row and column at a time."""
    n, m = topology.servers, topology.devices_per_server
    out, up = topology.scale_out_bandwidth, topology.scale_up_bandwidth
    found = [0.0]
    for matrix in (traffic, traffic.T):
        for s in range(n):
            crossing = sum(
                int(matrix[i, j])
                for i in range(s * m, s * m + m)
                for j in range(n * m)
                if j // m != s
            )
            found.append(crossing * row_bytes / m / out)
        for i in range(n * m):
            leaving = sum(int(matrix[i, j]) for j in range(n * m) if j != i)
            found.append(leaving * row_bytes / (up + out))
    return max(found)


@hypothesis.settings(max_examples=50)
@hypothesis.given(problem=problems(largest=10**6))
def test_lower_bound(problem):
    topology, traffic, row_bytes = problem
    bound = completion.lower_bound(traffic, topology, row_bytes)
    assert bound == pytest.approx(bound_by_hand(traffic, topology, row_bytes), rel=1e-12)
    if bound:
        judged = completion.judge(scheduled(problem, "fast"))
        assert min(judged["barrier"], judged["credit"]) >= 1 - 1e-9


def test_a_planner_whose_bound_differs_is_caught(monkeypatch):
    plan = make_plan(np.ones((4, 4), int), Topology(2, 2), scheduler="fast")
    monkeypatch.setattr(completion, "lower_bound", lambda *_: 7.0)
    with pytest.raises(AssertionError, match=r"but 7\.0 by hand"):
        completion.judge(plan)


def test_completion_command(tmp_path, capsys, monkeypatch):
    path = tmp_path / "new" / "completion.json"
    arguments = ["--servers", "2", "--seeds", "2", "--workloads", "pair-zipf 0.8"]
    monkeypatch.setattr(completion, "TARGETS", {"pair-zipf 0.8": {2: 1.5}})
    assert completion.main([*arguments, "--json", str(path)]) == 0
    shown = capsys.readouterr().out
    record = json.loads(path.read_text())
    (cell,) = record["cells"]
    assert len(cell["barrier"]) == 2
    assert f"| {np.median(cell['barrier']):.3f} |" in shown
    assert re.search(r"\| 1\.50 \| yes \| yes \|", shown)
    # An exchange that is as short as can be misses a target below 1.
    monkeypatch.setattr(completion, "TARGETS", {"pair-zipf 0.8": {2: 0.99}})
    assert completion.main(arguments) == 1
    assert "| 0.99 | no | no |" in capsys.readouterr().out


@pytest.mark.parametrize("command", [completion.main, frontier.main])
def test_commands_refuse(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(["--seeds", "0"])
    assert "must be 1 or more" in capsys.readouterr().err


@hypothesis.given(
    rows=st.integers(1, 7).flatmap(
        lambda n: hnp.arrays(np.int64, (n, n), elements=st.integers(0, 30))
    )
)
def test_textbook(rows):
    n = len(rows)
    carried = np.zeros_like(rows)
    found = textbook.decompose(rows)
    for targets, length in found:
        assert length > 0
        assert sorted(targets) == list(range(n))
        carried[np.arange(n), targets] += length
    assert (carried >= rows).all()
    total = sum(length for _, length in found)
    assert total == max(rows.sum(axis=0).max(), rows.sum(axis=1).max())
    assert len(found) <= n * n - 2 * n + 2


def test_fewest_matchings_of_a_frontier():
    points = [(6, 100), (3, 120), (4, 104), (9, 100)]
    assert frontier.fewest(points, 100) == 6
    assert frontier.fewest(points, 105) == 4
    assert frontier.fewest(points, 99) is None
    assert frontier.fewest(None, 100) is None
    assert frontier_figure.undominated(points) == [(3, 120), (4, 104), (6, 100)]


def test_rows_of_rails():
    traffic = np.zeros((16, 16), np.int64)
    traffic[0, 8], traffic[3, 9], traffic[1, 2], traffic[15, 0] = 9, 8, 50, 1
    np.testing.assert_array_equal(frontier.server_rows(traffic), [[0, 3], [1, 0]])


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_shifted_pairs(servers):
    rows = np.random.default_rng(servers).integers(0, 9, (servers, servers))
    rows[0, 1] = 9
    longest = [0] * servers
    for source, target in itertools.product(range(servers), repeat=2):
        shift = (target - source) % servers
        longest[shift] = max(longest[shift], rows[source, target])
    assert frontier.shifted_pairs(rows)[1] == sum(longest[1:])
    rows = np.zeros((servers, servers), int)
    rows[servers - 1, 0] = 7
    assert frontier.shifted_pairs(rows) == (1, 7)


def test_frontiers_of_the_planner(tmp_path):
    """What it looks at is no shorter than the bound, and gets within 1 % of it."""
    cell = frontier.measure("pair-zipf 0.8", 5, 0)
    assert min(length for _, length in cell["planner"]) >= cell["bound"]
    assert frontier.fewest(cell["planner"], 1.01 * cell["bound"]) < cell["textbook"][0][0]
    assert frontier.fewest(cell["planner"], cell["shifted"][0][1]) <= cell["shifted"][0][0]


def test_frontier_command(tmp_path, capsys, monkeypatch):
    arguments = ["--servers", "4", "5", "--seeds", "1", "--workloads", "uniform"]
    # Where nothing solves exactly.
    monkeypatch.setattr(frontier, "MOST_SERVERS_SOLVED", 0)
    assert frontier.main(arguments) == 0
    shown = capsys.readouterr()
    assert "optimum's frontier cannot be had here" in shown.err
    monkeypatch.setattr(frontier, "optimal_frontier", lambda rows: [(2, int(rows.sum()))])
    path = tmp_path / "frontier.json"
    figures = [tmp_path / "new" / name for name in ("frontier.svg", "frontier.png")]
    arguments += ["--json", str(path), "--figure", *map(str, figures)]
    assert frontier.main(arguments) == 0
    assert "cannot be had" not in capsys.readouterr().err
    assert "<svg" in figures[0].read_text()
    assert figures[1].read_bytes().startswith(b"\x89PNG")
    record = json.loads(path.read_text())
    assert [c["optimum"][0][0] for c in record["cells"]] == [2, 2]
    assert [c["servers"] for c in record["cells"]] == [4, 5]
    assert "![matchings against length](frontier.svg)" in frontier.page(record, "t")


@pytest.mark.parametrize("error", [ImportError, AttributeError, UnsupportedError("not in time")])
def test_optimum_that_cannot_be_had(error, monkeypatch):
    def missing(name):
        raise error

    monkeypatch.setattr(frontier.importlib, "import_module", missing)
    assert frontier.optimal_frontier(np.ones((3, 3), int)) is None


def plan_time_record():
    spread = {"runs": 9, "min": 1.0, "p25": 1.5, "median": 2.0, "p75": 2.5, "max": 3.0}
    times = {"plan_us": spread, "stages_only_us": spread, "processor_us": spread}
    planner = times | {"matchings": {"mean": 3.0, "max": 4}, "stages": {"mean": 4.0, "max": 5}}
    planner |= {"length_by_bound": {"mean": 1.005, "max": 1.02}, "predicted_by_bound": None}
    planner |= {"memory_bytes": 2048, "table_bytes": 1024}
    book = times | {"plan_us": spread | {"median": 7.0}, "processor_us": spread | {"median": 8.0}}
    book |= {"stages": 12.0, "length_by_bound": 1.0, "memory_bytes": 4096}
    books = [book | {"name": "textbook"}, book | {"name": "better", "stages": 6.0}]
    plain = {"devices": 8192, "skew": "uniform", "matrices": 2, "textbooks": []}
    return {
        "schema": plan_time.SCHEMA,
        "machine": {"cpu": "some", "usable_cores": 2, "load_average": 0.5},
        "versions": {"fastjax": "1", "compiler": "GNU"},
        "scheduler": "fast",
        "row_bytes": 4096,
        "devices_per_server": 8,
        "results": [
            plain | {"planner": planner | {"length_by_bound": None}},
            plain | {"planner": planner, "textbooks": books, "devices": 320},
        ],
    }


def test_page_of_planning_times():
    page = plan_time.page(plan_time_record(), "title")
    figures = "| 9 | 2.0 | 1.5 | 1.0 | 3.0 | 2.0 | 2.0 | 3.0 | 4.0 | {} | - | 2 | 1.0 |"
    assert "| 8,192 | uniform " + figures.format("-") in page
    assert "| 320 | uniform " + figures.format("1.005000") in page
    beside = "| 9 | 7.0 | 1.5 | 3.0 | 8.0 | 2.0 | {} | 4 | 4.0 | 3.5 | 1.0 | {} |"
    assert "| 320 | uniform | textbook " + beside.format("12.0", "4.0") in page
    assert "| 320 | uniform | better " + beside.format("6.0", "2.0") in page
    assert "Not timed in this run: 32, 64, 96, 1,024 devices." in page
    assert "| 8,192 | uniform | 1,000,000 | 2.0 | 1.5 | 2.0 | yes |" in page
    assert "| 320 | uniform | 140 | 3.0 | 4 | yes | 1.01 | 1.005000 | 1.020000 | no |" in page
    assert "| 320 | uniform | textbook | 50 | 4.0 | 3.5 | 1.0 | no | no |" in page
    assert "| 320 | uniform | better | - | 4.0 | 3.5 | 1.0 | - | - |" in page


@pytest.mark.parametrize(
    ("median", "quartile", "processor", "met"),
    [
        (7.9, 7.5, 7.8, "yes"),
        (8.1, 7.9, 9.0, "lower quartile only"),
        (9.0, 8.1, 7.9, "processor time only"),
        (9.0, 8.1, 8.1, "no"),
    ],
)
def test_who_keeps_a_limit_of_time(median, quartile, processor, met):
    times = {"plan_us": {"median": median, "p25": quartile}, "processor_us": {"median": processor}}
    assert plan_limits.met_by(times, 8) == met


@pytest.mark.parametrize(
    ("matchings", "length", "factor", "verdicts"),
    [
        (8, 1.01, 50.0, ["yes", "yes", "yes"]),
        (9, 1.0101, 49.0, ["no", "no", "no"]),
        (8, None, 50.0, ["yes", "-", "yes"]),
    ],
)
def test_verdicts(matchings, length, factor, verdicts, monkeypatch):
    monkeypatch.setattr(plan_limits, "MATCHINGS", {320: 8})
    result = plan_time_record()["results"][1]
    planner, book = result["planner"], result["textbooks"][0]
    planner["matchings"] = {"mean": 3.0, "max": matchings}
    planner["length_by_bound"] = None if length is None else {"mean": 1.0, "max": length}
    book["processor_us"] = {"median": 2.0 * factor}
    (sizes,) = plan_limits.sizes([result]).splitlines()[2:]
    first, *_ = plan_limits.times_faster([result]).splitlines()[2:]
    cells = [cell.strip() for cell in sizes.split("|")]
    assert [cells[6], cells[10], first.split("|")[8].strip()] == verdicts


def drift_time_record():
    def way(scale):
        spread = {"runs": 48, "min": 1.0, "p25": 6.0 * scale, "median": 8.0 * scale, "max": 9.0}
        return {"plan_us": spread, "matchings": 3.0 * scale, "length_by_bound": 1 + scale / 100}

    head = {key: plan_time_record()[key] for key in ("machine", "versions", "row_bytes")}
    result = {"devices": 1024, "rho": 0.999, "anew": way(2), "begun": way(1)}
    head |= {"schema": drift_time.SCHEMA, "devices_per_server": 8, "steps": 48}
    return head | {"results": [result]}


def test_page_of_drifting_traffic():
    line = "| 1,024 | 0.999 | 16.0 | 12.0 | 8.0 | 6.0 | 2.00 | 2.00 | 6.0 | 3.0 | 1.0200 | 1.0100 |"
    assert line in drift_time.page(drift_time_record(), "title")


def test_every_record_gets_its_page(tmp_path):
    root = tmp_path
    (root / "benchmarks/results").mkdir(parents=True)
    for readme in ("README.md", "benchmarks/README.md"):
        (root / readme).write_text("<!-- results -->\n<!-- /results -->\n")
    source = to_markdown.Path(to_markdown.__file__).parent / f"results/{to_markdown.SHOWN}.json"
    results = root / "benchmarks/results"
    (results / source.name).write_text(source.read_text())
    records.write(results / "plan_time.json", plan_time_record())
    records.write(results / "drift.json", drift_time_record())
    head = records.stamp(frontier.SCHEMA) | {"figures": []}
    cell = {"workload": "uniform", "servers": 4, "bound": 10, "textbook": [[7, 10]]}
    cell |= {"planner": [[3, 10]], "optimum": None, "shifted": [[3, 12]]}
    records.write(results / "frontier.json", head | {"cells": [cell]})
    pages = to_markdown.pages(root)
    assert pages[results / "plan_time.md"].startswith("# plan time\n")
    assert pages[results / "drift.md"].startswith("# drift\n")
    line = "| uniform | 4 | 1 | 7 | 3 | 1.2 | 3 | 3 | - | - | - |"
    assert line in pages[results / "frontier.md"]
    listed = pages[root / "benchmarks/README.md"]
    assert to_markdown.SHOWN in listed
    assert "plan_time" not in listed


def test_records_are_json_with_a_line_for_each_cell(tmp_path):
    record = records.stamp("some-1") | {"cells": [{"a": 1}, {"a": [2, 3]}], "none": []}
    path = tmp_path / "deep" / "record.json"
    records.write(path, record)
    assert json.loads(path.read_text()) == record
    assert '  {"a": [2, 3]}' in path.read_text().splitlines()
    assert list(itertools.islice(record, 3)) == ["schema", "machine", "versions"]
