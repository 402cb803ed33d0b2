"""The GPU libraries that a build made: what is in them, and that they ask for nothing they may not.

Tested is what the installed package has, and with the variable FASTJAX_GPU_LIBRARIES, as `make
gpu-compile` sets it, what is in that folder: there all must be there, and for all architectures.
"""

import ctypes
import importlib.util
import os
import re
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from gpu_binaries import cuda_code, exported, hip_code, needed

ROOT = Path(__file__).parents[2]
BUNDLER = ROOT / "cmake" / "offload_bundler.py"
GIVEN = os.environ.get("FASTJAX_GPU_LIBRARIES")

CUDA = {"sm_80", "sm_90", "sm_100", "compute_100"}
ROCM = {"gfx90a", "gfx942", "gfx950"}


def library(vendor: str) -> Path:
    name = f"libfastjax_{vendor}.so"
    if GIVEN:
        return Path(GIVEN).resolve() / name
    spec = importlib.util.find_spec("fastjax")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    pytest.skip(f"there is no {name} in the package: it was built without a compiler for it")


def test_cuda_library_has_code_for_every_gpu():
    contents = cuda_code(library("cuda"))
    if GIVEN:
        assert CUDA in contents
    # Built for use by an older nvcc, or for other GPUs: machine code, and PTX of the newest.
    code = max(contents, key=len)
    machine = {int(name[3:]) for name in code if name.startswith("sm_")}
    assert machine
    assert code - {f"sm_{number}" for number in machine} == {f"compute_{max(machine)}"}


def test_rocm_library_has_code_for_every_gpu():
    contents = hip_code(library("rocm"))
    assert contents
    for code in contents:
        assert code == ROCM if GIVEN else code


def test_cuda_library_needs_nothing_of_cuda():
    names = needed(library("cuda"))
    assert "libc.so.6" in names
    assert [name for name in names if re.match(r"lib(cuda|nccl|nv)", name)] == []


def test_rocm_library_needs_the_hip_run_time_only():
    names = [
        name for name in needed(library("rocm")) if re.match(r"lib(amd|hip|hs|roc|rccl|nccl)", name)
    ]
    assert len(names) == 1
    assert re.fullmatch(r"libamdhip64\.so\.\d+", names[0])


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_one_name_is_exported(vendor: str):
    assert exported(library(vendor)) == ["fastjax_gpu_driver"]


class DriverStart(ctypes.Structure):
    """The first fields of the struct Driver (ffi/kernels/driver.h)."""

    _fields_ = [
        ("version", ctypes.c_int32),
        ("platform", ctypes.c_char_p),
        ("error_text", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_int)),
        ("count_devices", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))),
    ]


def test_cuda_library_answers_without_a_gpu():
    get_driver = ctypes.CDLL(str(library("cuda"))).fastjax_gpu_driver
    get_driver.restype = ctypes.POINTER(DriverStart)
    driver = get_driver().contents
    assert (driver.version, driver.platform) == (7, b"CUDA")
    count = ctypes.c_int(0)
    error = driver.count_devices(ctypes.byref(count))
    assert count.value > 0 if error == 0 else driver.error_text(error) != b"no error"


def test_the_cuda_compiler_is_pinned_once():
    """What `make gpu-compile` tries is what FASTJAX_CUDA=WHEELS brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (override,) = project["tool"]["scikit-build"]["overrides"]
    assert override["build"]["requires"] == project["dependency-groups"]["cuda-compiler"]


# ---- what cmake makes for ROCm


def elf_with(path: Path, name: str, data: bytes) -> Path:
    """An ELF file of one section, besides that of the sections' names."""
    names = b"\0names\0" + name.encode() + b"\0"
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    table = 64 + len(names) + len(data)
    header = identity + struct.pack("<2HI3QI6H", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 2, 0)
    first = struct.pack("<2I4Q2I2Q", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    second = struct.pack("<2I4Q2I2Q", 7, 1, 0, 0, 64 + len(names), len(data), 0, 0, 1, 0)
    path.write_bytes(header + names + data + first + second)
    return path


def test_bundles_of_our_bundler_are_read(tmp_path: Path):
    """The bundler by which cmake/hip_sdk.py completes a compiler."""
    contents = {"empty": b"", "one": b"\x7fELF one", "two": b"\x7fELF the second"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    targets = ["host-x86_64-unknown-linux-gnu"]
    targets += [f"hipv4-amdgcn-amd-amdhsa--{name}" for name in ("gfx90a", "gfx942")]
    command = [sys.executable, BUNDLER, "-type=o", "-bundle-align=4096", f"-output={tmp_path}/out"]
    command += [f"-targets={','.join(targets)}"]
    command += [f"-input={tmp_path}/{name}" for name in contents]
    subprocess.run(command, check=True)
    bundle = (tmp_path / "out").read_bytes()
    assert bundle.index(b"\x7fELF the second") == 2 * 4096
    assert hip_code(elf_with(tmp_path / "a.so", ".hip_fatbin", bundle)) == [{"gfx90a", "gfx942"}]
    without = bundle[:4096] + bytes(len(bundle) - 4096)
    assert hip_code(elf_with(tmp_path / "b.so", ".hip_fatbin", without)) == [set()]
