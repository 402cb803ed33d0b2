"""Layers that frameworks have, and that call jax.lax.ragged_all_to_all, run under the swap.

Each framework has a program of its own. FASTJAX_INTEGRATION=1, as `make integration` sets it, says
that tunix is there; FASTJAX_MAXTEXT is the root of a source tree of MaxText.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(program: str, *folders: str, cwd: Path) -> None:
    search = os.pathsep.join([str(HERE), *folders])
    done = subprocess.run(
        [sys.executable, HERE / program],
        cwd=cwd,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_tunix(tmp_path: Path):
    if importlib.util.find_spec("tunix") is None:
        assert "FASTJAX_INTEGRATION" not in os.environ
        pytest.skip("there is no tunix; make integration installs it")
    run("tunix_layer.py", cwd=tmp_path)


def test_maxtext(tmp_path: Path):
    if "FASTJAX_MAXTEXT" not in os.environ:
        pytest.skip("make integration runs it if MAXTEXT= is the root of a source tree of MaxText")
    run("maxtext_layer.py", str(Path(os.environ["FASTJAX_MAXTEXT"]) / "src"), cwd=tmp_path)
