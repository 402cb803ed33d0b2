"""What was built and installed."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from pythons import ended, printed

import fastjax
import fastjax._core
from fastjax import handlers

ROOT = Path(__file__).parents[2]
INSTALLED = Path(fastjax.__file__).parent


def _pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_installed_package_is_tested():
    assert INSTALLED != ROOT / "fastjax"


def test_built_with_the_headers_of_the_oldest_jaxlib():
    assert fastjax._core.ffi_api_version == (0, 3)


def test_the_build_pins_the_oldest_jaxlib_that_is_allowed():
    pyproject = _pyproject()
    (built,) = re.findall(r"'jaxlib==([\d.]+)'", str(pyproject["build-system"]["requires"]))
    (oldest,) = re.findall(r"'jax>=([\d.]+)'", str(pyproject["project"]["dependencies"]))
    assert built == oldest


def test_versions_agree():
    assert fastjax.__version__ == importlib.metadata.version("fastjax")
    assert fastjax.__version__ == _pyproject()["project"]["version"]


def test_plugins_are_the_packages_that_are_looked_for_and_of_this_version():
    project = _pyproject()["project"]
    for package in handlers._GPU_PLUGINS.values():
        name = package.replace("_", "-")
        extra = package.removeprefix("fastjax_").removesuffix("_plugin")
        assert f"{name}=={project['version']}" in project["optional-dependencies"][extra]
        plugin = tomllib.loads((ROOT / f"packaging/{extra}/pyproject.toml").read_text())
        assert plugin["project"]["name"] == name
        assert plugin["tool"]["scikit-build"]["wheel"]["packages"] == [package]
        assert (ROOT / f"packaging/{extra}/{package}/__init__.py").is_file()


def test_typing_marker_is_installed():
    assert (INSTALLED / "py.typed").is_file()


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="the generator writes the type of a capsule differently"
)
def test_stub_is_installed_and_up_to_date(tmp_path: Path):
    stub = tmp_path / "_core.pyi"
    generate = "-m", "nanobind.stubgen", "-q", "-m", "fastjax._core", "-o", stub
    printed(*generate, cwd=tmp_path)  # it looks for modules here first
    assert (INSTALLED / "_core.pyi").read_text() == stub.read_text(), "run `make stub`"


def in_source_tree(program):
    return ended("-c", program, without=("PYTHONSAFEPATH", "PYTHONPATH"), cwd=ROOT)


def test_source_tree_borrows_the_installed_module():
    """Python started in the repository finds fastjax/ there, which has no compiled module."""
    child = in_source_tree("import fastjax; print(fastjax.__file__, fastjax._core.__file__)")
    assert child.returncode == 0, child.stderr
    package, core = map(Path, child.stdout.split())
    assert package.parent == ROOT / "fastjax"
    assert core.parent == Path(fastjax._core.__file__).parent


def test_source_tree_says_what_is_missing():
    child = in_source_tree(
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.distribution = missing\n"
        "import fastjax"
    )
    assert child.returncode == 1
    assert "ImportError: fastjax's compiled part is missing" in child.stderr
    assert "install the package with `pip install .`" in child.stderr
