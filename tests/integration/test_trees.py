"""Layers of experts that others wrote run under the swap, and with `fastjax.moe` in their place.

FASTJAX_NAME=folder says where the source tree is of which trees/name.py knows. Where tunix is
installed, as by `make integration`, that one is run by default.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from pythons import CPU, printed

HERE = Path(__file__).parent
NAMES = sorted(file.stem for file in (HERE / "trees").glob("*.py"))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_layer(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    variable = f"FASTJAX_{name.upper()}"
    root = os.environ.get(variable)
    if root is None and name == "tunix" and (found := importlib.util.find_spec("tunix")):
        root = str(Path(str(found.origin)).parents[1])
    if root is None:
        assert name != "tunix" or "FASTJAX_INTEGRATION" not in os.environ
        pytest.skip(f"{variable} would be the root of its source tree")
    search = os.pathsep.join([str(HERE), str(HERE.parent / "support")])
    program = HERE / "run.py", name, Path(root).resolve()
    said = printed(*program, environment=CPU | {"PYTHONPATH": search}, cwd=tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}")
