"""Tests of the CPU path with CPU devices that play GPUs: a part of them, apart."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]

# File: which of its tests, and how many these are at least.
CHOSEN = {
    "test_exchange": ("scheduler or traffic or data_type", 60),
    "test_gpu": ("(rank and float32) or planned or bad", 10),
    "test_transforms": ("gradients or bad", 15),
    "test_errors": ("gradient or bad or damaged", 34),
    "test_overlaps": ("refuses or looks", 7),
}


def test_with_emulated_gpus(tmp_path: Path):
    """In one process, since starting one takes longer than most of the tests."""
    chosen = " or ".join(f"({file} and ({words}))" for file, (words, _) in CHOSEN.items())
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"),
            *(f"tests/{file}.py" for file in CHOSEN),
            *("-k", chosen, f"--junit-xml={report}"),
        ],
        cwd=ROOT,
        env={**os.environ, "FASTJAX_EMULATE_GPU": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    cases = ET.parse(report).iter("testcase")
    passed = Counter(
        case.get("classname", "").rpartition(".")[2] for case in cases if not len(case)
    )
    assert {file for file, (_, least) in CHOSEN.items() if passed[file] < least} == set(), passed
