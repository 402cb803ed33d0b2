"""`make gpu`: its measurements once, tiny, on the emulated GPU; its limits; what it leaves."""

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
from gpu_check import machine, parts
from gpu_check.__main__ import run_together
from gpu_check.parts import MEASUREMENTS, SANITIZERS, Part, Setup

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
# Those that compile, and the tests, which are run as such.
OTHERS = ("programs", "driver", "nccl", "kernels", "tests")
EMULATED = ("--emulated", "--installed", "--skip", *OTHERS)


def gpu_check(*arguments):
    return subprocess.run(
        [PYTHON, ROOT / "benchmarks" / "gpu_check", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def record_in(folder):
    return json.loads((folder / "gpu.json").read_text())


def statuses(record):
    return {part["name"]: part["status"] for part in record["parts"]}


def test_all_measurements_on_the_emulated_gpu(tmp_path):
    out = tmp_path / "out"
    done = gpu_check(
        *EMULATED, "--folder", str(tmp_path / "all"), "--out", str(out), "--commit", "abc"
    )
    logs = "\n".join(log.read_text() for log in (tmp_path / "all").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    record = record_in(out)
    assert record["commit"] == "abc"
    assert record["emulated"]
    assert statuses(record) == {
        **dict.fromkeys(("package", *OTHERS, *SANITIZERS), "skipped"),
        **dict.fromkeys(MEASUREMENTS, "passed"),
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
    assert done.stdout.startswith("Skipped:\n  package: the fastjax that is installed is used\n")
    assert sorted(file.name for file in out.iterdir()) == ["gpu.json", "gpu.md", "gpu_logs.tar.gz"]
    with tarfile.open(out / "gpu_logs.tar.gz") as archive:
        assert set(archive.getnames()) == {f"gpu_logs/{name}.log" for name in MEASUREMENTS}
        log = archive.extractfile("gpu_logs/planning.log")
        assert log.read() == (tmp_path / "all" / "planning.log").read_bytes()


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    done = gpu_check("--folder", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "an NVIDIA GPU: nvidia-smi lists none" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_no_measurements_of_a_cpu_for_those_of_a_gpu(tmp_path):
    file = tmp_path / "planning.json"
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("benchmarks", "tests/support"))
    paths += os.pathsep + os.environ.get("PYTHONPATH", "")
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


@pytest.mark.nightly
def test_one_that_is_stopped_leaves_what_it_had(tmp_path):
    """It is stopped while it measures exchanges: it has one measurement of those or more."""
    command = [PYTHON, ROOT / "benchmarks" / "gpu_check", *EMULATED, "--folder", tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while child.poll() is None and not (tmp_path / "exchange.json").exists():
            time.sleep(0.05)  # the test's own time-out is the bound
        child.send_signal(signal.SIGTERM)
        said, _ = child.communicate()
    assert child.returncode == 128 + signal.SIGTERM
    record = record_in(tmp_path)
    assert record["results"]["exchange"]["figures"]
    found = [statuses(record)[name] for name in MEASUREMENTS]
    assert found == ["passed", "stopped", "not ended"]
    assert (tmp_path / "gpu.md").read_text() in said


def test_parts_end_by_themselves_or_by_their_limit(tmp_path):
    # For longer than a test may take, so that this one fails if it waits for what was stopped.
    sleeps = "import subprocess; subprocess.run(['sleep', '600'])"
    run = [
        Part("good", (PYTHON, "-c", "print('fine')"), 60),
        Part("bad", (PYTHON, "-c", "print('sorry'); raise SystemExit(3)"), 60),
        Part("slow", (PYTHON, "-c", sleeps), 0.5),
        Part("absent", ("no-such-program",), 60),
        Part("needy", (PYTHON, "-c", ""), 60, needs=("other",)),
        Part("unwanted", ("no-such-program",), 60, needs=("other",), skip="nobody wants it"),
    ]
    late = Part("late", (PYTHON, "-c", ""), 60)
    passed = set()
    run_together(run, passed, tmp_path, time.monotonic() + 100, lambda: None)
    run_together([late], passed, tmp_path, time.monotonic(), lambda: None)
    found = {part.name: (part.status, part.detail) for part in [*run, late]}
    assert found.pop("slow")[0] == "out of time"
    status, why = found.pop("absent")
    assert status == "failed"
    assert "no-such-program" in why
    assert found == {
        "good": ("passed", "fine"),
        "bad": ("failed", "exit status 3: sorry"),
        "needy": ("skipped", "needs other"),
        "unwanted": ("skipped", "nobody wants it"),
        "late": ("skipped", "no time was left"),
    }
    assert passed == {"good"}


def test_parts_of_a_run_that_is_stopped(tmp_path):
    """One has ended before, and says so; the other is ended, with what it has started."""
    short = Part("short", ("true",), 60)
    long = Part("long", ("sh", "-c", "sleep 600 & echo $!; wait"), 60)
    log = tmp_path / "long.log"

    def stop():
        if long.status == "not ended":
            while log.read_text().count("\n") < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_together([short, long], set(), tmp_path, time.monotonic() + 100, stop)
    assert (short.status, long.status) == ("passed", "stopped")
    sleeper = Path("/proc", log.read_text().split()[-1], "stat")
    with contextlib.suppress(OSError):  # it is gone
        while sleeper.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


def test_what_is_missing_is_said_before(monkeypatch):
    """A machine with a GPU, and none of what may be missing."""
    monkeypatch.setattr(machine, "has_ucx", lambda: False)
    monkeypatch.setattr(machine, "nccl", lambda: ("", ()))
    monkeypatch.setattr(parts.shutil, "which", lambda _: None)
    setup = Setup(Path("/nowhere"))
    skipped = {part.name for group in setup.groups() for part in group if part.skip}
    assert skipped == {*SANITIZERS, "nccl"}
    assert list(setup.left_out().values()) == ["libucx is not in Python's environment"]
    monkeypatch.setattr(machine, "has_ucx", lambda: True)
    monkeypatch.setattr(machine, "nccl", lambda: ("libnccl.so.2", (2, 28, 9)))
    (why,) = setup.left_out().values()
    assert why == "NCCL is 2.28.9; from 2.30.3 on, ranks may share a GPU"
