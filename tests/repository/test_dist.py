"""What a release is made of: the wheels and the source distribution of `make dist`.

The variable FASTJAX_DIST, as `make dist` and `make dist-test` set it, names their folder. The tests
whose names have "install" in them, which `make dist-test` adds, install wheels into new
environments: with no compiler and no cmake, and only what the package index has.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gpu_binaries import exported, needed

ROOT = Path(__file__).parents[2]
GIVEN = os.environ.get("FASTJAX_DIST")
DIST = Path(GIVEN or "dist").resolve()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
GLIBC = (2, 28)
WHEELS = {"cp311-cp311": ["3.11"], "cp312-abi3": ["3.12", "3.13"]}
# Without a library of C++: it is linked in.
SYSTEM = r"lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-x86-64\.so\.2"
BUILD_TOOLS = ["c++", "g++", "gcc", "cc", "clang++", "clang", "cmake", "ninja", "make", "ld"]

pytestmark = pytest.mark.skipif(not GIVEN, reason="make dist builds wheels and checks them")


def wheel(tag: str) -> Path:
    (found,) = DIST.glob(f"fastjax-{VERSION}-{tag}-manylinux_2_28_x86_64.whl")
    return found


@pytest.fixture(params=WHEELS)
def unpacked(request, tmp_path) -> Path:
    with zipfile.ZipFile(wheel(request.param)) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_there_are_a_wheel_for_each_python_and_the_sources():
    found = {path.name for path in DIST.iterdir() if path.is_file()}
    assert found == {wheel(tag).name for tag in WHEELS} | {f"fastjax-{VERSION}.tar.gz"}


def test_wheels_have_the_package_and_nothing_else(unpacked):
    package = unpacked / "fastjax"
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    sources = {
        path.relative_to(ROOT / "fastjax")
        for pattern in ("*.py", "*.pyi", "py.typed")
        for path in (ROOT / "fastjax").rglob(pattern)
    }
    (module,) = files - sources
    assert re.fullmatch(r"_core\.(cpython-311-x86_64-linux-gnu|abi3)\.so", str(module))
    assert sources <= files
    assert {path.name for path in unpacked.iterdir()} == {"fastjax", f"fastjax-{VERSION}.dist-info"}


def test_wheels_have_the_licences_of_what_is_linked_in(unpacked):
    folder = unpacked / f"fastjax-{VERSION}.dist-info/licenses"
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    wanted = [ROOT / "LICENSE", *(ROOT / "licenses").glob("*.txt")]
    assert found == {path.relative_to(ROOT) for path in wanted}


def module_of(unpacked: Path) -> Path:
    (module,) = (unpacked / "fastjax").glob("_core.*.so")
    return module


def test_the_module_shows_nothing_but_what_python_loads(unpacked):
    assert exported(module_of(unpacked)) == ["PyInit__core"]


def test_the_module_needs_nothing_but_an_old_glibc(unpacked):
    module = module_of(unpacked)
    assert needed(module)
    assert [name for name in needed(module) if not re.fullmatch(SYSTEM, name)] == []
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", module.read_bytes())
    assert versions
    assert max((int(major), int(minor)) for major, minor in versions) <= GLIBC


def test_the_module_was_optimized(unpacked):
    """What zig compiles without optimization checks itself for undefined behaviour."""
    assert b"__ubsan" not in module_of(unpacked).read_bytes()


def test_the_sources_can_be_built_from():
    with tarfile.open(DIST / f"fastjax-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "fastjax/py.typed"} <= names
    assert {f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir()} <= names
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {".github", "build", "dist", ".venv"}


PLUGINS = {"cuda13": "cuda", "rocm7": "rocm"}


def plugins() -> list[Path]:
    """A wheel for each of them."""
    found = sorted((DIST / "plugins").glob("*.whl"))
    return found or pytest.skip("make dist-plugins builds them")


def test_extras_bring_the_plugins():
    """By the names and the version that their wheels have."""
    extras = PROJECT["optional-dependencies"]
    for extra, path in zip(PLUGINS, plugins(), strict=True):
        assert path.name.startswith(f"fastjax_{extra}_plugin-{VERSION}-py3-none-")
        assert f"fastjax-{extra}-plugin=={VERSION}" in extras[extra]


def find_python(version: str) -> str:
    found = subprocess.run(
        [ROOT / ".ci/find_python", version], check=True, capture_output=True, text=True
    ).stdout.strip()
    return found or pytest.skip(f"there is no Python {version}")


class Environment:
    """A new virtual environment, whose programs find no others than its own."""

    def __init__(self, python: str, folder: Path) -> None:
        subprocess.run([python, "-m", "venv", folder], check=True)
        self.python = folder / "bin/python"
        kept = ("HOME", "LANG", "TMPDIR", "SSL_", "PIP_", "XDG_", "NO_PROXY", "HTTP", "no_", "http")
        self.variables = {k: v for k, v in os.environ.items() if k.startswith(kept)}
        self.variables["PATH"] = str(folder / "bin")

    def run(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            [self.python, "-P", *arguments],
            env=self.variables | {"JAX_PLATFORMS": "cpu"},
            cwd=self.python.parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def first_example(page: Path) -> str:
    match = re.search(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    assert match is not None
    return match[1]


# Device i sends to device j, of four devices in two processes; no two sums are equal.
SIZES = np.array([[1, 2, 0, 4], [3, 0, 5, 1], [0, 6, 1, 2], [2, 1, 3, 1]])
IN_TWO_PROCESSES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import multiprocess
arguments = {"send_sizes": json.loads(sys.argv[3])}
done = multiprocess.run(sys.argv[2], "exchange", processes=2, devices=2, arguments=arguments)
print(json.dumps([one | {"received": one["received"].tolist()} for one in done]))
"""


def what_arrives(rows: int) -> np.ndarray:
    """The rows that two_processes.exchange must return for SIZES, by device."""
    sent = np.arange(len(SIZES) * rows * 2, dtype=np.float32).reshape(len(SIZES), rows, 2)
    result = np.full_like(sent, -1)
    starts = np.cumsum(SIZES, axis=1) - SIZES
    for j in range(len(SIZES)):
        parts = [sent[i, starts[i, j] : starts[i, j] + n] for i, n in enumerate(SIZES[:, j])]
        result[j, : SIZES[:, j].sum()] = np.concatenate(parts)
    return result.reshape(-1, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tag", "version"), [(tag, version) for tag, versions in WHEELS.items() for version in versions]
)
def test_installed_without_a_compiler_it_runs(tag, version, tmp_path, capsys):
    python = find_python(version)
    environment = Environment(python, tmp_path / "environment")
    path = environment.variables["PATH"]
    assert [name for name in BUILD_TOOLS if shutil.which(name, path=path)] == []
    requirement = f"fastjax[ucx] @ {wheel(tag).as_uri()}"
    start = time.monotonic()
    environment.run("-m", "pip", "install", "--quiet", "--only-binary", ":all:", requirement)
    installed = time.monotonic()
    program = tmp_path / "example.py"
    program.write_text(first_example(ROOT / "README.md"))
    environment.run("-W", "error", program)
    ended = time.monotonic()
    with capsys.disabled():
        print(  # noqa: T201
            f"\nPython {version}: {installed - start:.0f} s to install, "
            f"{ended - start:.0f} s to README's first result"
        )
    exchange_in_two_processes(environment)


WHAT_IS_FOUND = """
import json
import fastjax
from fastjax import handlers
print(json.dumps({p: handlers.unusable(p) for p in handlers.platforms_built()}))
"""


@pytest.mark.timeout(600)
def test_installed_plugins_are_found(tmp_path):
    """They are loaded, as far as that is possible without a GPU and its driver."""
    environment = Environment(find_python("3.12"), tmp_path / "environment")
    wheels = [wheel("cp312-abi3"), *plugins()]
    environment.run("-m", "pip", "install", "--quiet", "--only-binary", ":all:", *wheels)
    found = json.loads(environment.run("-c", WHAT_IS_FOUND))
    assert list(found) == list(PLUGINS.values())
    # AMD's has to find a library of ROCm's; NVIDIA's brings what it needs.
    assert found["cuda"] == ""
    assert not found["rocm"] or "libamdhip64.so" in found["rocm"]


def exchange_in_two_processes(environment: Environment) -> None:
    support, program = ROOT / "tests/support", ROOT / "tests/repository/two_processes.py"
    printed = environment.run("-c", IN_TWO_PROCESSES, support, program, json.dumps(SIZES.tolist()))
    processes = sorted(json.loads(printed), key=lambda one: one["start"])
    assert [one["network_open"] for one in processes] == [True, True]
    received = np.concatenate([one["received"] for one in processes])
    np.testing.assert_array_equal(received, what_arrives(rows=len(received) // len(SIZES)))
