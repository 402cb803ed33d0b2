"""`make gpu`: its parts and limits, and all of its measurements once, tiny, on the emulated GPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_check import __main__ as gpu_main
from gpu_check import machine, moves, report
from gpu_check.figures import Timed, figure, interleaved
from gpu_check.parts import FAILED, OUT_OF_TIME, PASSED, SKIPPED, Part, run_together

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable


def of_gpu_check(*arguments):
    return {
        "args": [PYTHON, "-m", "gpu_check", *arguments],
        "cwd": ROOT,
        "env": {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
    }


def gpu_check(*arguments):
    return subprocess.run(
        **of_gpu_check(*arguments),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_all_measurements_on_the_emulated_gpu(tmp_path):
    done = gpu_check("--emulated", "--folder", str(tmp_path), "--commit", "abc")
    logs = "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert record["commit"] == "abc"
    assert record["emulated"]
    assert {part["name"]: part["status"] for part in record["parts"]} == dict.fromkeys(
        ("planning", "exchange", "against_jax"), PASSED
    )
    for name, result in record["results"].items():
        assert result["figures"]
        for made in result["figures"]:
            assert made["right"] is True, made
            assert 0 < made["us"]["min"] <= made["us"]["median"] <= made["us"]["max"]
            if name == "planning":
                assert made["moved"] == {}
                continue
            assert made["moved"]["exchanges"] >= 1
            # A rank's rows for itself are copied at least; a tiny loopback has 2 x 2 ranks.
            assert made["moved"]["copied"] > 0
            assert bool(made["moved"]["sent"]) == ("2x2" in made["what"]), made
    (note,) = record["results"]["against_jax"]["notes"]
    assert "ragged-all-to-all" in note
    table = (tmp_path / "gpu.md").read_text()
    assert table in done.stdout
    assert "these times mean nothing" in table


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    done = gpu_check("--folder", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "an NVIDIA GPU: nvidia-smi lists none" in done.stderr
    assert not (tmp_path / "none").exists()


def test_one_that_is_stopped_leaves_its_record(tmp_path):
    with subprocess.Popen(
        **of_gpu_check("--emulated", "--folder", str(tmp_path)), stdout=subprocess.PIPE, text=True
    ) as child:
        end = time.monotonic() + 60
        while not (tmp_path / "planning.log").exists() and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        said, _ = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == []
    assert "these times mean nothing" in said


def test_a_record_is_written_even_if_no_table_can_be_made_of_it(tmp_path):
    record = {"schema": "of another kind"}
    assert "KeyError" in gpu_main.write(tmp_path, record)
    assert json.loads((tmp_path / "gpu.json").read_text()) == record


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_no_figures_of_a_cpu_for_those_of_a_gpu(tmp_path):
    file = tmp_path / "planning.json"
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("benchmarks", "tests"))
    done = subprocess.run(
        [PYTHON, "-m", "gpu_check.planning", "--json", file],
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cuda,cpu"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "GPU" in done.stdout or "cuda" in done.stderr
    assert not file.exists() or json.loads(file.read_text())["figures"] == []


def test_parts_end_by_themselves_or_by_their_limit(tmp_path):
    sleeps = "import subprocess; subprocess.run(['sleep', '60'])"
    parts = [
        Part("good", (PYTHON, "-c", "print('fine')"), 60),
        Part("bad", (PYTHON, "-c", "print('sorry'); raise SystemExit(3)"), 60),
        Part("slow", (PYTHON, "-c", sleeps), 0.5),
        Part("absent", ("no-such-program",), 60),
        Part("needy", (PYTHON, "-c", ""), 60, needs=("other",)),
    ]
    passed = set()
    start = time.monotonic()
    outcomes = run_together(parts, passed, tmp_path, ROOT, start + 100)
    assert time.monotonic() - start < 50
    assert {each.name: each.status for each in outcomes} == {
        "good": PASSED,
        "bad": FAILED,
        "slow": OUT_OF_TIME,
        "absent": FAILED,
        "needy": SKIPPED,
    }
    detail = {each.name: each.detail for each in outcomes}
    assert detail["good"] == "fine"
    assert detail["bad"] == "exit status 3: sorry"
    assert "no-such-program" in detail["absent"]
    assert passed == {"good"}


def test_no_part_begins_after_the_deadline(tmp_path):
    (outcome,) = run_together(
        [Part("late", (PYTHON, "-c", ""), 60)], set(), tmp_path, ROOT, time.monotonic()
    )
    assert (outcome.status, outcome.detail) == (SKIPPED, "no time was left")


def test_every_round_has_every_case():
    order = []
    cases = {name: Timed(lambda name=name: order.append(name), 10) for name in "abc"}
    series = interleaved(cases, 4, warm_seconds=0)
    assert [sorted(order[i : i + 3]) for i in range(0, len(order), 3)] == [list("abc")] * 6
    assert [len(times) for times in series.values()] == [4, 4, 4]
    made = figure("this", {"a": [1.0, 2.0, 3.0], "copy": [1.0], "other": [4.0]}, "a", bytes=7)
    assert (made.share_of_copy, made.ratios, made.bytes) == (0.5, {"other": 2.0}, 7)


def test_what_was_moved_is_said_in_multiples_of_the_bytes():
    counted = dict.fromkeys(("exchanges", "kernels", "messages", *moves.BYTES), 0)
    assert moves.moves_of({}, 8) == ""
    assert moves.moves_of(counted, 8) == "nothing; 0 messages, 0 launches"
    counted |= {"kernels": 3, "messages": 2, "packed": 400, "sent": 800, "copied": 50}
    assert moves.moves_of(counted, 1000) == (
        "1.25x (packed 0.40, sent 0.80, copied 0.05); 2 messages, 3 launches"
    )


def test_table_of_kernels_says_what_was_missed():
    times = {"runs": 3, "min": 1.0, "p25": 1.0, "median": 2.0, "p75": 3.0, "max": 3.0}
    case = {"case": "gather", "bytes": 1000, "runs": 5, "us": times, "right": True}
    cases = [
        {**case, "share_of_copy": 0.95, "goal": 0.9},
        {**case, "share_of_copy": 0.5, "goal": 0.9, "right": False},
        {**case, "share_of_copy": 0.5, "goal": None},
    ]
    kernels = {
        "sizes": [{"bytes": 1 << 20, "copy_us": times, "cases": cases}],
        "one_row_us": dict.fromkeys(("launch", "waited", "uploaded", "empty_stream"), times),
    }
    record = {
        "emulated": False,
        "commit": "abc",
        "gpu": {"name": "GPU", "driver_version": "1"},
        "machine": {"cpu": "CPU", "cores": 2},
        "versions": {"jax": "0"},
        "parts": [{"name": "kernels", "status": FAILED, "seconds": 1.0, "detail": "a | b"}],
        "results": {"kernels": kernels},
    }
    table = report.markdown(record)
    assert "| gather | 1 MiB | 5 | 2.0 (1.0-3.0) | 0 | 0.950 | at least 0.90: met |" in table
    assert (
        "| gather (WRONG) | 1 MiB | 5 | 2.0 (1.0-3.0) | 0 | 0.500 | at least 0.90: missed |"
        in table
    )
    assert "| kernels | failed | 1 | a / b |" in table
