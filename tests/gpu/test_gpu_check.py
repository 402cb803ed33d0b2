"""`make gpu`: its measurements once, tiny, on the emulated GPU."""

import json
import tarfile
from pathlib import Path

import pytest
from gpu_check import machine
from gpu_check.parts import MEASUREMENTS, SANITIZERS
from pythons import ended

ROOT = Path(__file__).parents[2]
# Those that compile, and the tests, which are run as such.
OTHERS = ("package", "programs", "driver", "nccl", "kernels", "tests")


def gpu_check(*arguments):
    return ended(ROOT / "benchmarks" / "gpu_check", *arguments, timeout=280)


def test_all_measurements_on_the_emulated_gpu(tmp_path):
    folder, out = tmp_path / "all", tmp_path / "out"
    options = ("--folder", folder, "--out", out, "--commit", "abc", "--skip", *OTHERS)
    done = gpu_check("--emulated", *options)
    logs = "\n".join(log.read_text() for log in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    record = json.loads((out / "gpu.json").read_text())
    assert record["commit"] == "abc"
    assert record["emulated"]
    assert {part["name"]: part["status"] for part in record["parts"]} == {
        **dict.fromkeys((*OTHERS, *SANITIZERS), "skipped"),
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
    assert "package: skipped (0 s) --skip names it\n" in done.stdout
    assert sorted(file.name for file in out.iterdir()) == ["gpu.json", "gpu.md", "gpu_logs.tar.gz"]
    with tarfile.open(out / "gpu_logs.tar.gz") as archive:
        assert set(archive.getnames()) == {f"gpu_logs/{name}.log" for name in MEASUREMENTS}
        log = archive.extractfile("gpu_logs/planning.log")
        assert log.read() == (folder / "planning.log").read_bytes()


@pytest.mark.skipif(bool(machine.gpu()), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    done = gpu_check("--folder", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "an NVIDIA GPU: nvidia-smi lists none" in done.stderr
    assert not (tmp_path / "none").exists()
