"""benchmarks/emulated_cluster train: a job that trains, and what is made of its times."""

import json
import os

import pytest
from emulated_cluster import __main__ as command
from emulated_cluster import system, training
from emulated_cluster.options import TrainingOptions

RECORD = {
    "fabric": {"servers": 2, "rails": 1, "rate": 10**8},
    "options": {"steps": 3, "rounds": 2, "sequences": 1, "width": 8},
    "losses": [5.5, 5.0],
    "layers": [
        {"layer": "fastjax auto", "all_s": [1.0, 2.0]},
        {"layer": training.DENSE, "all_s": [3.0, 8.0]},
    ],
    "machine": {
        "cpu": "a CPU",
        "usable_cores": 2,
        "memory_gib": 1,
        "system": "Linux",
        "load_average": 0.5,
        "glibc_tunables": "",
    },
    "versions": {"jax": "1", "jaxlib": "2", "numpy": "3", "python": "4", "fastjax": "5"},
}


def test_page():
    page = training.page(RECORD, "a title")
    assert page.startswith("# a title\n")
    assert "| fastjax auto | 1.500 | 1.250 | 1.750 | 1.000 | 2.000 | 3.50 |" in page
    assert "| dense, padded | 5.500 | 4.250 | 6.750 | 3.000 | 8.000 | 1.00 |" in page
    assert "loss 5.500 to 5.000. NICs of 100 Mbit/s" in page


@pytest.mark.parametrize("name", ["steps", "rounds", "sequences", "width", "timeout"])
def test_refused(name, capsys):
    assert command.main(["train", f"--{name}", "0"]) == 2
    assert f"--{name} must be above 0." in capsys.readouterr().err


def test_a_scheduler_that_there_is_not(capsys):
    assert command.main(["train", "--schedulers", "auto", "fastest"]) == 2
    assert "--schedulers fastest: there are auto, " in capsys.readouterr().err


def test_the_planner_is_told_of_the_rate():
    assert TrainingOptions(rate="8mbit").topology()["scale_out_bandwidth"] == 1e6


def test_a_step_ends_with_its_slowest_process():
    assert training._slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]


@pytest.mark.nightly
def test_two_servers(tmp_path, capsys):
    """All layers train, and nothing is left behind."""
    reason = system.why_not()
    if reason:
        pytest.skip(f"no emulated cluster: {reason}")
    name = f"fjr{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    words = "--servers 2 --rails 1 --rate 1gbit --steps 1 --rounds 1 --sequences 1 --width 16"
    words += " --schedulers fast"
    file = tmp_path / "record.json"
    assert command.main(["train", *words.split(), "--name", name, "--json", str(file)]) == 0
    assert "| dense, padded |" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert [len(entry["all_s"]) for entry in record["layers"]] == [1] * len(record["layers"])
    layers = {entry["layer"] for entry in record["layers"]}
    assert layers == {"fastjax fast", training.DENSE}
    assert len(record["losses"]) == 1
    assert system.namespaces(f"{name}-") == []
