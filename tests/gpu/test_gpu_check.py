"""What `make gpu` is made of: its parts and their limits, what it skips, its files, its wheels."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
from gpu_check import lineup, machine, results, wheels
from gpu_check.lineup import Lineup
from gpu_check.parts import (
    FAILED,
    OUT_OF_TIME,
    PASSED,
    SKIPPED,
    STOPPED,
    Outcome,
    Part,
    run_together,
)

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable


def run(parts, folder, *, passed=None, seconds=100, meanwhile=lambda: None):
    outcomes = []
    deadline = time.monotonic() + seconds
    passed = set() if passed is None else passed
    run_together(parts, passed, folder, ROOT, deadline, outcomes.append, meanwhile)
    return {outcome.name: outcome for outcome in outcomes}


# ---- parts


def test_parts_end_by_themselves_or_by_their_limit(tmp_path):
    # For longer than a test may take, so that this one fails if it waits for what was stopped.
    sleeps = "import subprocess; subprocess.run(['sleep', '600'])"
    parts = [
        Part("good", (PYTHON, "-c", "print('fine')"), 60),
        Part("bad", (PYTHON, "-c", "print('sorry'); raise SystemExit(3)"), 60),
        Part("slow", (PYTHON, "-c", sleeps), 0.5),
        Part("absent", ("no-such-program",), 60),
        Part("needy", (PYTHON, "-c", ""), 60, needs=("other",)),
        Part("unwanted", ("no-such-program",), 60, needs=("other",), skip="nobody wants it"),
    ]
    passed = set()
    outcomes = run(parts, tmp_path, passed=passed)
    assert {name: each.status for name, each in outcomes.items()} == {
        "good": PASSED,
        "bad": FAILED,
        "slow": OUT_OF_TIME,
        "absent": FAILED,
        "needy": SKIPPED,
        "unwanted": SKIPPED,
    }
    assert outcomes["good"].detail == "fine"
    assert outcomes["bad"].detail == "exit status 3: sorry"
    assert "no-such-program" in outcomes["absent"].detail
    assert outcomes["needy"].detail == "needs other"
    assert outcomes["unwanted"].detail == "nobody wants it"
    assert passed == {"good"}


def test_no_part_begins_after_the_deadline(tmp_path):
    outcomes = run([Part("late", (PYTHON, "-c", ""), 60)], tmp_path, seconds=0)
    assert outcomes == {"late": Outcome("late", SKIPPED, 0.0, "no time was left")}


def test_parts_of_a_run_that_is_stopped(tmp_path):
    """One has ended before, and says so; the other is ended, with what it has started."""
    outcomes = {}
    parts = [
        Part("short", ("true",), 60),
        Part("long", ("sh", "-c", "sleep 600 & echo $!; wait"), 60),
    ]

    def stop():
        if "short" in outcomes and (tmp_path / "long.log").read_text().count("\n") > 1:
            raise KeyboardInterrupt

    def end(outcome):
        outcomes[outcome.name] = outcome.status

    with pytest.raises(KeyboardInterrupt):
        run_together(parts, set(), tmp_path, ROOT, time.monotonic() + 100, end, stop)
    assert outcomes == {"short": PASSED, "long": STOPPED}
    sleeper = Path("/proc", (tmp_path / "long.log").read_text().split()[-1], "stat")
    with contextlib.suppress(OSError):  # it is gone
        while sleeper.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)


# ---- files


@pytest.fixture
def files(tmp_path):
    made = results.Results(tmp_path, tmp_path)
    made.begin(
        {"schema": "x"}, [Part("one", (), 1, json=tmp_path / "one.json"), Part("two", (), 1)]
    )
    return made


def record_in(folder):
    return json.loads((folder / "gpu.json").read_text())


def test_measurements_are_written_as_they_come(tmp_path, files):
    assert record_in(tmp_path)["results"] == {}
    for text, wanted in [
        ('{"figures": [1', {}),  # it is being written
        ('{"figures": [1]}', {"one": {"figures": [1]}}),
        ('{"figures": [1, 2', {"one": {"figures": [1]}}),
        ('{"figures": [1, 2]}', {"one": {"figures": [1, 2]}}),
    ]:
        (tmp_path / "one.json").write_text(text)
        files.look()
        assert record_in(tmp_path)["results"] == wanted
    (tmp_path / "one.json").unlink()
    files.look()
    assert record_in(tmp_path)["results"] == {"one": {"figures": [1, 2]}}


def test_outcomes_are_written_as_they_come(tmp_path, files):
    (tmp_path / "two.log").write_text("said\n")
    files.add(Outcome("two", PASSED, 1.26, "fine"))
    two, one = record_in(tmp_path)["parts"]
    assert two == {"name": "two", "status": PASSED, "seconds": 1.3, "detail": "fine"}
    assert (one["name"], one["status"]) == ("one", results.NOT_ENDED)
    with tarfile.open(tmp_path / "gpu_logs.tar.gz") as archive:
        assert archive.getnames() == ["gpu_logs/two.log"]
        assert archive.extractfile("gpu_logs/two.log").read() == b"said\n"


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path, files, monkeypatch):
    def fails(*_, **__):
        raise OSError("no room")

    before = (tmp_path / "gpu_logs.tar.gz").read_bytes()
    monkeypatch.setattr(tarfile.TarFile, "addfile", fails)
    (tmp_path / "two.log").write_text("said\n")
    with pytest.raises(OSError, match="no room"):
        files.add(Outcome("two", PASSED))
    assert (tmp_path / "gpu_logs.tar.gz").read_bytes() == before
    assert record_in(tmp_path)["parts"][0]["name"] == "two"


def test_a_record_is_written_even_if_no_page_can_be_made_of_it(tmp_path, files):
    assert record_in(tmp_path)["schema"] == "x"
    assert "KeyError" in files.page
    assert (tmp_path / "gpu.md").read_text() == files.page


def test_long_logs_lose_their_middle(tmp_path):
    log = tmp_path / "long.log"
    log.write_bytes(bytes(range(100)))
    assert results.shortened(log, 100) == bytes(range(100))
    first, note, last = results.shortened(log, 21).partition(b"\n[... 80 bytes ...]\n")
    assert (first, last) == (bytes(range(10)), bytes(range(90, 100)))
    assert note


@pytest.mark.parametrize(
    ("outcomes", "well"),
    [
        ({"one": PASSED, "two": SKIPPED}, True),
        ({"one": SKIPPED, "two": SKIPPED}, False),
        ({"one": FAILED, "two": SKIPPED}, False),
        ({"wheels": FAILED, "one": PASSED, "two": SKIPPED}, False),
    ],
)
def test_only_what_was_said_to_be_skipped_may_be(tmp_path, outcomes, well):
    """Of "two" it was said before; "one" needs something that failed, or had no time left."""
    made = results.Results(tmp_path, tmp_path)
    made.begin({"schema": "x"}, [Part("one", (), 1), Part("two", (), 1, skip="why")])
    for name, status in outcomes.items():
        made.add(Outcome(name, status))
    assert made.all_well() is well


# ---- what is skipped


@pytest.fixture
def bare(monkeypatch):
    """A machine with a GPU, and none of what may be missing."""
    monkeypatch.setattr(machine, "has_ucx", lambda: False)
    monkeypatch.setattr(machine, "nccl", lambda: ("", ()))
    monkeypatch.setattr(machine, "architecture", lambda: "90")
    monkeypatch.setattr(lineup.shutil, "which", lambda _: None)


def planned(*arguments, **options):
    made = Lineup(ROOT, Path("/nowhere"), *arguments, **options)
    parts = {part.name: part for group in made.groups() for part in group}
    return parts, {skip.what: skip.why for skip in made.skips(parts.values())}


def test_what_is_missing_is_said_before(bare):
    parts, skips = planned()
    assert "there is no compute-sanitizer" in skips["memcheck, racecheck, initcheck"]
    assert "there is no NCCL" in parts["nccl"].skip or "nccl_smoke" in parts["nccl"].skip
    (left_out,) = [why for what, why in skips.items() if "jobs of two processes" in what]
    assert left_out.startswith("libucx is not in Python's environment; WHEELS=folder")
    assert "-Ccmake.define.FASTJAX_UCX=OFF" in parts["package"].command
    assert {name for name, part in parts.items() if part.skip} == {*lineup.SANITIZERS, "nccl"}


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ((), "there is no NCCL; from 2.30.3 on, ranks may share a GPU"),
        ((2, 28, 9), "NCCL is 2.28.9; from 2.30.3 on, ranks may share a GPU"),
        ((2, 30, 3), None),
    ],
)
def test_nccl_that_has_no_two_ranks_on_a_gpu(bare, monkeypatch, version, why):
    monkeypatch.setattr(machine, "has_ucx", lambda: True)
    monkeypatch.setattr(machine, "nccl", lambda: ("libnccl.so.2" if version else "", version))
    monkeypatch.setattr(lineup.shutil, "which", lambda name: f"/bin/{name}")
    parts, skips = planned()
    assert skips.get("of tests: two processes over NCCL") == why
    assert "-Ccmake.define.FASTJAX_UCX=ON" in parts["package"].command
    assert not any("jobs of two processes" in what for what in skips)


def test_the_smoke_test_of_nccl(bare, monkeypatch):
    monkeypatch.setattr(machine, "nccl", lambda: ("/lib/libnccl.so.2", (2, 28, 9)))
    parts, _ = planned()
    assert parts["nccl"].skip == ""
    assert parts["nccl"].environment["FASTJAX_NCCL_LIBRARY"] == "/lib/libnccl.so.2"
    assert "nccl_smoke" in parts["programs"].command[2]
    # A step that hangs is named before the part has to end.
    _, option, limit, library = parts["nccl"].command
    assert option == "--limit"
    assert library.endswith(".so")
    assert 2 * float(limit) < parts["nccl"].seconds
    parts, _ = planned(emulated=True)
    assert parts["nccl"].skip == ""
    assert parts["nccl"].environment["FASTJAX_NCCL_LIBRARY"].endswith(f"lib{lineup.FAKE_NCCL}.so")
    assert lineup.FAKE_NCCL in parts["programs"].command[2]
    assert len(parts["nccl"].command) == 3


def test_all_that_can_runs_on_the_emulated_gpu(bare):
    parts, skips = planned(emulated=True)
    assert {name for name, part in parts.items() if part.skip} - {"nccl"} == {*lineup.SANITIZERS}
    assert skips["of tests: those on a GPU"].startswith("there is none")
    assert parts["tests"].environment["FASTJAX_EMULATE_GPU"] == "1"
    assert "not gpu" in parts["tests"].command
    assert "-Ccmake.define.FASTJAX_CUDA=OFF" in parts["package"].command  # there is no nvcc
    assert parts["package"].seconds == 4 * planned()[0]["package"].seconds
    for name in ("kernels", *lineup.MEASUREMENTS):
        assert "--tiny" in parts[name].command
        assert "--library" not in parts[name].command
    installed, _ = planned(emulated=True, installed=True, programs=Path("/built"))
    assert installed["tests"].needs == installed["kernels"].needs == ()
    assert installed["kernels"].command[0].startswith("/built/")


def test_nccl_of_this_python_or_of_the_loader(tmp_path, monkeypatch):
    """Its version is what it says itself."""
    nvidia = tmp_path / "nvidia" / "nccl"
    (nvidia / "lib").mkdir(parents=True)
    (nvidia / "lib" / "libnccl.so.2").touch()
    monkeypatch.syspath_prepend(tmp_path)
    said = {}
    monkeypatch.setattr(machine, "output", lambda *command: said.get(command[-1], ""))
    ask = machine.nccl.__wrapped__
    assert ask() == ("", ())
    said["libnccl.so.2"] = "23003"
    assert ask() == ("libnccl.so.2", (2, 30, 3))
    said[str(nvidia / "lib" / "libnccl.so.2")] = "NCCL version 2.28.9\n22809"
    assert ask() == (str(nvidia / "lib" / "libnccl.so.2"), (2, 28, 9))


# ---- wheels


def wheel(folder, name):
    """Of a package with a value, and nothing else."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    contents = {
        f"{name}/__init__.py": "value = 7\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(packed.getvalue())


def test_wheels_are_on_the_path_of_every_part(tmp_path, monkeypatch):
    name = "fastjax_test_of_wheels"
    wheel(tmp_path / "wheels", name)
    target = tmp_path / "site"
    outcomes = run([wheels.installation(tmp_path / "wheels", target)], tmp_path)
    assert outcomes["wheels"].status == PASSED, outcomes["wheels"].detail
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/given")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    assert machine._packaged(name, "__init__.py") == []
    wheels.use(target)
    assert machine._packaged(name, "__init__.py") == [str(target / name / "__init__.py")]
    assert os.environ["PATH"].startswith(f"{target / 'bin'}:")
    environment = Lineup(ROOT, tmp_path, emulated=True)._environment()
    assert environment["PYTHONPATH"].split(":")[-2:] == [str(target), "/given"]
    said = f"import {name}; print({name}.value)"
    outcomes = run([Part("part", (PYTHON, "-c", said), 60, environment)], tmp_path)
    assert outcomes["part"].detail == "7"
    wheels.remove(target)
    assert not target.exists()


def test_a_wheel_that_cannot_be_installed_is_said(tmp_path):
    """The run goes on without, and fails."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "broken-1.0-py3-none-any.whl").write_text("no wheel")
    skipped = ("programs", "driver", "nccl", "kernels", "tests")
    skipped += tuple(lineup.MEASUREMENTS)
    done = subprocess.run(
        [
            *(PYTHON, ROOT / "benchmarks" / "gpu_check", "--emulated", "--installed"),
            *("--folder", tmp_path / "all", "--wheels", tmp_path / "wheels", "--skip", *skipped),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (outcome,) = [
        part for part in record_in(tmp_path / "all")["parts"] if part["status"] != SKIPPED
    ]
    assert (outcome["name"], outcome["status"]) == ("wheels", FAILED)
    with tarfile.open(tmp_path / "all" / "gpu_logs.tar.gz") as archive:
        assert archive.getnames() == ["gpu_logs/wheels.log"]


def test_wheels_where_they_would_be_installed_are_left_alone(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "thing")
    kept = sorted(file.name for file in folder.iterdir())
    done = subprocess.run(
        [
            *(PYTHON, ROOT / "benchmarks" / "gpu_check", "--emulated", "--installed"),
            *("--folder", tmp_path, "--wheels", folder),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "keep them in another folder" in done.stderr
    assert sorted(file.name for file in folder.iterdir()) == kept
