"""How the environment says that GPUs are used, and where their libraries are looked for."""

from fastjax import config, handlers
from fastjax.config import GpuOptions


def test_gpu_from_environment(tmp_path):
    library = tmp_path / "libnccl.so.2"
    library.touch()
    assert config.gpu_from_environment({}) == GpuOptions(0, "", False)
    environ = {
        "FASTJAX_GPU_MULTIPROCESSORS": " 24 ",
        "FASTJAX_NCCL_LIBRARY": str(library),
        "FASTJAX_EMULATE_GPU": "1",
    }
    assert config.gpu_from_environment(environ) == GpuOptions(24, str(library), True)
    assert config.gpu_from_environment({"FASTJAX_NCCL_LIBRARY": "librccl.so.1"}).nccl


def test_nccl_is_looked_for_in_the_wheel_too(tmp_path, monkeypatch):
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "nvidia" / "nccl" / "__init__.py").touch()
    assert handlers._find_nccl("rocm") == ["librccl.so.1"]
    monkeypatch.syspath_prepend(tmp_path)
    assert handlers._find_nccl("cuda") == ["libnccl.so.2", str(library)]


def test_platforms_are_those_that_have_a_library(tmp_path, monkeypatch):
    monkeypatch.setattr(handlers._core, "__file__", str(tmp_path / "_core.so"))
    assert handlers.platforms_built() == []
    (tmp_path / "libfastjax_rocm.so").touch()
    assert handlers.platforms_built() == ["rocm"]


def test_libraries_are_looked_for_in_plugins_too(tmp_path, monkeypatch):
    """That which was built with fastjax comes first: it is of this very version."""
    monkeypatch.setattr(handlers._core, "__file__", str(tmp_path / "_core.so"))
    plugin = tmp_path / "path" / "fastjax_cuda13_plugin"
    plugin.mkdir(parents=True)
    monkeypatch.syspath_prepend(plugin.parent)
    assert handlers.platforms_built() == []
    (plugin / "libfastjax_cuda.so").touch()
    assert handlers.platforms_built() == ["cuda"]
    assert handlers._library("cuda") == plugin / "libfastjax_cuda.so"
    (tmp_path / "libfastjax_cuda.so").touch()
    assert handlers._library("cuda") == tmp_path / "libfastjax_cuda.so"
