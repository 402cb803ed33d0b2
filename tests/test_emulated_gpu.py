"""Tests of the CPU path with CPU devices that play GPUs: a part of them, apart."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("files", "chosen", "least"),
    [
        (["tests/test_exchange.py"], "scheduler or traffic or data_type", 60),
        (["tests/test_gpu.py"], "(rank and float32) or planned or bad", 10),
        (["tests/test_transforms.py", "tests/test_errors.py"], "gradients or bad", 30),
        (["tests/test_overlaps.py"], "refuses or looks", 7),
    ],
    ids=["exchange", "gpu", "transforms", "overlaps"],
)
def test_with_emulated_gpus(files, chosen, least):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *files),
            *(["-k", chosen] if chosen else []),
        ],
        cwd=ROOT,
        env={**os.environ, "FASTJAX_EMULATE_GPU": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed.group(1)) >= least
