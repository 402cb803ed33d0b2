"""The command line: environment report and benchmark."""

import json
import math
import os
import subprocess

import jax
import numpy as np
import pytest
from plan_problems import SCHEDULERS
from pythons import CPU, ended, printed
from refusals import refused

import fastjax
from fastjax.cli import main
from fastjax.cli.bench import command as bench
from fastjax.cli.bench import schemes
from fastjax.cli.shared import machine, workloads

TINY = ["--rows", "64", "--row-bytes", "64", "--rounds", "2", "--latency-rounds", "2"]


def test_report_names_everything():
    report = printed("-m", "fastjax", environment=CPU | {"FASTJAX_TIMEOUT": "7.5"})
    for word in (
        fastjax.__version__,
        machine.versions()["jax"],
        "built for 0.3",
        "jax.lax.ragged_all_to_all: fastjax has no backend for it",
        "copy threads",
        ", ".join(fastjax.schedulers()),
        "7.5 s (from FASTJAX_TIMEOUT)",
        "auto (default; set FASTJAX_SCHEDULER to change)",
        "not collected (default; set FASTJAX_STATS to change)",
    ):
        assert word in report


def test_unknown_command_and_help(capsys: pytest.CaptureFixture[str]):
    assert main(["fly"]) == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fastjax {fastjax.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    ["", "plan --generate uniform --devices 4 --servers 2", f"bench {' '.join(TINY)} --devices 2"],
)
def test_who_reads_may_have_enough(arguments):
    """As `| head` has: no words, and no failure."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as closed:
        where = {"capture_output": False, "stdout": closed, "stderr": subprocess.PIPE}
        done = ended("-m", "fastjax", *arguments.split(), environment=CPU, **where)
    assert (done.returncode, done.stderr) == (0, "")


def test_bench_in_a_process_of_its_own(tmp_path):
    path = tmp_path / "new" / "record.json"
    words = "bench", *TINY, "--devices", "4", "--json", path
    found = printed("-m", "fastjax", *words, environment=CPU)
    assert found.rstrip().rfind("Exchanges") > found.rfind("Latency")
    record = json.loads(path.read_text())
    assert record["schema"] == bench.SCHEMA
    assert record["workload"]["devices"] == 4
    assert np.sum(record["workload"]["traffic"]) == 4 * 64
    assert record["machine"]["usable_cores"] >= 1
    assert set(record["versions"]) >= {"fastjax", "jax", "jaxlib", "numpy", "python"}
    found = [(entry["scheme"], entry["servers"]) for entry in record["schemes"]]
    assert found == [
        *((s, split) for split in ("1x4", "2x2", "4x1") for s in SCHEDULERS),
        (schemes.DENSE, "-"),
        (schemes.DENSE_WORST, "-"),
        (schemes.ALL_GATHER, "-"),
        (schemes.COPY, "-"),
    ]
    for entry in record["schemes"]:
        assert entry["runs"] == len(entry["all_ms"]) >= 1
        assert entry["min_ms"] <= entry["p25_ms"] <= entry["median_ms"]
        assert entry["median_ms"] <= entry["p75_ms"] <= entry["max_ms"]
        assert entry["wrong"] == (None if entry["scheme"] == schemes.COPY else 0)
        assert ("plan" in entry) == (entry["scheme"] in SCHEDULERS)
    assert [e["name"] for e in record["latency"]][:2] == [
        "empty call",
        "empty call, same arguments",
    ]
    assert record["latency"][0]["by_empty"] == 1


@pytest.mark.parametrize("skew", workloads.SKEWS)
def test_bench_options(skew: str, tmp_path):
    path = tmp_path / "record.json"
    arguments = ["--generate", skew, "--servers", "2", "--schedulers", "fast"]
    arguments += ["--exponent", "1.2", "--seed", "3", "--json", str(path)]
    assert main(["bench", *TINY, *arguments]) == 0
    record = json.loads(path.read_text())
    first = record["schemes"][0]
    assert (first["scheme"], first["servers"]) == ("fast", "2x4")
    assert len(record["schemes"]) == 5
    traffic = workloads.make_traffic(skew, 8, 64, 1.2, 3)
    assert record["workload"]["traffic"] == traffic.tolist()


def test_bench_fails_on_wrong_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A scheme that moves nothing gets every row wrong that should have arrived."""
    monkeypatch.setattr(fastjax, "fast_ragged_all_to_all", lambda _, output, *__, **___: output)
    arguments = ["--servers", "1", "--schedulers", "direct"]
    assert main(["bench", *TINY, *arguments]) == 1
    assert f"{8 * 64} rows are wrong" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--devices 64", "needs 64 CPU devices, but JAX has started with 8"),
        ("--servers 3", "--servers 3 does not divide 8"),
        *((f"--{name} 0", f"argument --{name}: must be 1 or more, got 0")
          for name in ("devices", "servers", "rows", "row-bytes", "rounds", "latency-rounds")),
        *((f"--exponent={x}", f"argument --exponent: must be from 0 to 20, got {x}")
          for x in (math.nextafter(0, -1), math.nextafter(20, 21), math.nan)),
        ("--rows many", "argument --rows: invalid int value: 'many'"),
        ("--row-bytes 6", "--row-bytes 6 is no whole number of float32"),
        ("--schedulers optimal", "argument --schedulers: invalid choice: 'optimal'"),
    ],
)  # fmt: skip
def test_bench_refuses(capsys: pytest.CaptureFixture[str], options: str, told: str):
    assert jax.device_count() == 8  # JAX has started, whichever tests ran before
    assert main(["bench", *options.split()]) == 2
    assert told in capsys.readouterr().err


def test_reference_places_every_row():
    traffic = np.array([[1, 2, 0], [0, 0, 3], [2, 0, 1]])
    meta = workloads.metadata(traffic)
    operand = np.arange(1, 10).reshape(3, 3, 1)
    result = workloads.reference(operand, np.zeros((3, 5, 1), int), meta)
    np.testing.assert_array_equal(
        result[:, :, 0], [[1, 7, 8, 0, 0], [2, 3, 0, 0, 0], [4, 5, 6, 9, 0]]
    )


def test_wrong_rows_sees_every_bit():
    want = np.zeros((4, 3), np.float32)
    got = want.copy()
    assert workloads.wrong_rows(got, want) == 0
    got[1, 2] = -0.0
    got[3] = np.nan
    assert workloads.wrong_rows(got, want) == 2
    refused(ValueError, lambda: workloads.wrong_rows(got.astype(np.float64), want), "want float32")
