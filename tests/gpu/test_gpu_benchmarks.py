"""`make gpu`: its parts and limits, and all of its measurements once, tiny, on the emulated GPU."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from gpu_check import machine, moves, report
from gpu_check.lineup import MEASUREMENTS, SANITIZERS
from gpu_check.measurements import Timed, interleaved, measurement
from gpu_check.parts import FAILED, PASSED, SKIPPED, STOPPED
from gpu_check.results import NOT_ENDED

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable


def of_gpu_check(*arguments):
    return {"args": [PYTHON, ROOT / "benchmarks" / "gpu_check", *arguments], "cwd": ROOT}


def gpu_check(*arguments):
    return subprocess.run(
        **of_gpu_check(*arguments),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


# Those that compile, and the tests, which are run as such.
OTHERS = ("programs", "driver", "nccl", "kernels", "tests")
EMULATED = ("--emulated", "--installed", "--skip", *OTHERS)


def record_in(folder):
    return json.loads((folder / "gpu.json").read_text())


def statuses(record):
    return {part["name"]: part["status"] for part in record["parts"]}


def logs_in(folder):
    """What the archive holds."""
    with tarfile.open(folder / "gpu_logs.tar.gz") as archive:
        members = archive.getmembers()
        return {member.name: archive.extractfile(member).read() for member in members}


def test_all_measurements_on_the_emulated_gpu(tmp_path):
    out = tmp_path / "out"
    files = ("--folder", str(tmp_path / "all"), "--out", str(out))
    done = gpu_check(*EMULATED, *files, "--commit", "abc")
    logs = "\n".join(log.read_text() for log in (tmp_path / "all").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    record = record_in(out)
    assert record["commit"] == "abc"
    assert record["emulated"]
    assert statuses(record) == {
        **dict.fromkeys(("package", *OTHERS, *SANITIZERS), SKIPPED),
        **dict.fromkeys(MEASUREMENTS, PASSED),
    }
    assert set(record["results"]) == set(MEASUREMENTS)
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
    table = (out / "gpu.md").read_text()
    assert table in done.stdout
    assert "these times mean nothing" in table
    assert "- package: the fastjax that is installed is used" in table
    assert done.stdout.startswith("Skipped:\n  package: the fastjax that is installed is used\n")
    assert sorted(file.name for file in out.iterdir()) == ["gpu.json", "gpu.md", "gpu_logs.tar.gz"]
    logs = logs_in(out)
    assert set(logs) == {f"gpu_logs/{name}.log" for name in MEASUREMENTS}
    assert logs["gpu_logs/planning.log"] == (tmp_path / "all" / "planning.log").read_bytes()


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    done = gpu_check("--folder", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "an NVIDIA GPU: nvidia-smi lists none" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--skip", "kernel"), "no part is called kernel"),
        (("--wheels", "/nowhere"), "there are no wheels in /nowhere"),
    ],
)
def test_arguments_that_mean_nothing(tmp_path, arguments, text):
    done = gpu_check("--emulated", "--installed", "--folder", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert text in done.stderr


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(n, marks=pytest.mark.nightly) for n in (signal.SIGINT, signal.SIGKILL)),
    ],
)
def test_one_that_is_stopped_leaves_what_it_had(tmp_path, number):
    """It is stopped while it measures exchanges: it has one measurement of those or more."""
    started = of_gpu_check(*EMULATED, "--folder", str(tmp_path))
    # Where these tests are run in the background, children are told to ignore Ctrl-C.
    started["args"] = ["env", "--default-signal=INT", *started["args"]]
    with subprocess.Popen(**started, stdout=subprocess.PIPE, text=True) as child:
        wait_until(lambda: record_in(tmp_path)["results"]["exchange"]["figures"], child)
        child.send_signal(number)
        said, _ = child.communicate()
    killed = number == signal.SIGKILL
    left = left_behind(tmp_path)
    assert killed or left == 0
    record = record_in(tmp_path)
    assert record["results"]["against_jax"]["figures"]
    assert record["results"]["exchange"]["figures"]
    found = statuses(record)
    assert [found[name] for name in MEASUREMENTS] == [
        PASSED,
        NOT_ENDED if killed else STOPPED,
        NOT_ENDED,
    ]
    assert "against_jax | passed" in (tmp_path / "gpu.md").read_text()
    wanted = {"against_jax"} if killed else {"against_jax", "exchange"}
    assert set(logs_in(tmp_path)) >= {f"gpu_logs/{name}.log" for name in wanted}
    assert killed or "these times mean nothing" in said
    assert (
        child.returncode
        == {
            signal.SIGTERM: 128 + signal.SIGTERM,
            signal.SIGINT: -signal.SIGINT,  # Python's own way to end by it
            signal.SIGKILL: -signal.SIGKILL,
        }[number]
    )


def left_behind(folder):
    """How many processes are told to write there; they are ended."""
    found = 0
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder / "exchange.json").encode() in command.read_bytes().split(b"\0"):
                os.kill(int(command.parent.name), signal.SIGKILL)
                found += 1
    return found


def wait_until(reached, child):
    """Waits as long as the child runs; the test's own time-out is the bound."""
    while child.poll() is None:
        with contextlib.suppress(OSError, LookupError):
            if reached():
                return
        time.sleep(0.05)
    raise AssertionError(f"it has ended before, with status {child.returncode}")


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_no_measurements_of_a_cpu_for_those_of_a_gpu(tmp_path):
    file = tmp_path / "planning.json"
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("benchmarks", "tests/support"))
    done = subprocess.run(
        [PYTHON, "-m", "gpu_check.planning", "--json", file],
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cuda,cpu"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1
    assert "GPU" in done.stdout or "cuda" in done.stderr
    assert not file.exists() or json.loads(file.read_text())["figures"] == []


def test_every_round_has_every_case():
    order = []
    cases = {name: Timed(lambda name=name: order.append(name), 10) for name in "abc"}
    series = interleaved(cases, 4, warm_seconds=0)
    assert [sorted(order[i : i + 3]) for i in range(0, len(order), 3)] == [list("abc")] * 6
    assert [len(times) for times in series.values()] == [4, 4, 4]
    made = measurement("this", {"a": [1.0, 2.0, 3.0], "copy": [1.0], "other": [4.0]}, "a", bytes=7)
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
        "skipped": [{"what": "memcheck", "why": "there is none"}],
        "parts": [{"name": "kernels", "status": FAILED, "seconds": 1.0, "detail": "a | b"}],
        "results": {"kernels": kernels},
    }
    table = report.page(record)
    assert "| gather | 1 MiB | 5 | 2.0 (1.0-3.0) | 0 | 0.950 | at least 0.90: met |" in table
    assert (
        "| gather (WRONG) | 1 MiB | 5 | 2.0 (1.0-3.0) | 0 | 0.500 | at least 0.90: missed |"
        in table
    )
    assert "| kernels | failed | 1 | a / b |" in table
    assert "- memcheck: there is none" in table
