"""The parts of a run: commands, each with a time limit and a log."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_check import machine

ROOT = Path(__file__).resolve().parents[2]
# With this, a GPU that JAX finds but cannot use is an error. That it finds one, the measurements
# see for themselves.
CUDA = {"JAX_PLATFORMS": "cuda,cpu", "FASTJAX_FALLBACK": "error"}
EMULATED = {"JAX_PLATFORMS": "cpu", "FASTJAX_EMULATE_GPU": "1"}
# The most seconds of each, in the order of how much they are wanted.
MEASUREMENTS = {"against_jax": 120, "exchange": 120, "layer": 120, "planning": 80}
SANITIZERS = ("memcheck", "racecheck", "initcheck")


@dataclasses.dataclass
class Part:
    """A command, and how it went.

    Attributes:
      name: of the part; its log is NAME.log, its measurements are NAME.json if it takes any.
      command: to run.
      seconds: after so many it is stopped.
      needs: the part without which this one means nothing.
      environment: variables beyond those of this process.
      skip: why it is not run here; empty if it is.
      status: in a word.
      took: seconds.
      detail: the last line of its log, or why there is none.
    """

    name: str
    command: Sequence[str | Path]
    seconds: float
    needs: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skip: str = ""
    status: str = "not ended"
    took: float = 0.0
    detail: str = ""


def groups(folder: Path, emulated: bool) -> list[list[Part]]:
    """All parts; those of a group run side by side, since nothing of theirs is timed.

    Args:
      folder: for all that is made.
      emulated: whether the emulated GPU takes the place of one, and all is tiny.
    """
    site, programs = folder / "site", folder / "programs"
    # Behind ours: packages that this Python has from elsewhere.
    given = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    paths = (site, ROOT / "benchmarks", ROOT / "tests", ROOT / "tests/support", *given)
    environment = {"PYTHONPATH": ":".join(map(str, paths))} | (EMULATED if emulated else CUDA)
    # Others use the GPU too. Programs are what users get, optimised.
    tested = {**environment, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if not emulated:
        tested["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
    slower = 4 if emulated else 1  # machines without a GPU have fewer cores, and nobody lends them
    library = () if emulated else (programs / "gpu/libfastjax_cuda.so",)
    tiny = ("--tiny",) if emulated else ()
    driver = (programs / "tests/cpp/kernels/gpu_driver_test",)
    small = (*driver, "--small", *library)
    kernels = (programs / "benchmarks/cpp/gpu_kernels", "--json", folder / "kernels.json", *tiny)
    return [
        [
            Part("package", _install(site, folder / "package", emulated), 240 * slower),
            Part("programs", _build(programs, emulated), 150 * slower),
        ],
        [
            Part("driver", small if emulated else (*driver, *library), 90, "programs"),
            Part("tests", _pytest(emulated), 200, "package", tested),
            *(_sanitizer(tool, small, emulated) for tool in SANITIZERS),
            _nccl(programs, library),
        ],
        [
            Part(
                "kernels",
                (*kernels, *(("--library", *library) if library else ())),
                100,
                "programs",
            )
        ],
        *(
            [Part(name, (*_measure(name, folder), *tiny), seconds, "package", environment)]
            for name, seconds in MEASUREMENTS.items()
        ),
    ]


def _measure(name: str, folder: Path) -> Sequence[str | Path]:
    return (sys.executable, "-m", f"gpu_check.{name}", "--json", folder / f"{name}.json")


def _install(site: Path, objects: Path, emulated: bool) -> Sequence[str | Path]:
    # UCX is for exchanges between processes, of which some are tried on one GPU.
    defines = {"FASTJAX_UCX": "ON" if machine.has_ucx() else "OFF"}
    defines |= {"FASTJAX_ANY_FFI_HEADERS": "ON", "FASTJAX_ROCM": "OFF"} | _cuda(emulated)
    return (
        *(sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"),
        *("--no-build-isolation", "--no-deps", "--no-index", "--upgrade"),
        *("--target", site, f"-Cbuild-dir={objects}"),
        # The version of scikit-build-core is the machine's too, which may be older than ours.
        f"-Cminimum-version={importlib.metadata.version('scikit-build-core')}",
        *(f"-Ccmake.define.{name}={value}" for name, value in defines.items()),
        ".",
    )


def _build(programs: Path, emulated: bool) -> Sequence[str | Path]:
    # A library of their own: what keeps the package from being built keeps none of them.
    options = {"CMAKE_BUILD_TYPE": "Release", "FASTJAX_BUILD_PYTHON": "OFF"}
    options |= {"FASTJAX_BUILD_TESTS": "ON", "FASTJAX_BUILD_BENCHMARKS": "ON"}
    options |= {"FASTJAX_UCX": "OFF", "FASTJAX_ROCM": "OFF"} | _cuda(emulated)
    defines = " ".join(f"-D{name}={value}" for name, value in options.items())
    library = "fastjax_fake_nccl_smoke" if emulated else "fastjax_cuda"
    targets = f"gpu_driver_test gpu_kernels nccl_smoke {library}"
    script = f'cmake -S . -B "$1" -G Ninja {defines} && cmake --build "$1" --target {targets}'
    return ("sh", "-c", script, "sh", programs)


def _cuda(emulated: bool) -> dict[str, str]:
    """Options of CMake: the library of this GPU's architecture."""
    if emulated:
        return {"FASTJAX_CUDA": "OFF"}
    known = re.fullmatch(r"(\d+)\.(\d+)", machine.gpu().get("compute_cap", ""))
    chosen = {"FASTJAX_CUDA_ARCHITECTURES": "".join(known.groups())} if known else {}
    return {"FASTJAX_CUDA": "ON"} | chosen


def _sanitizer(tool: str, driver: Sequence[str | Path], emulated: bool) -> Part:
    program = shutil.which("compute-sanitizer")
    skip = ""
    if emulated:
        skip = "compute-sanitizer looks at kernels on a GPU, and there is none"
    elif program is None:
        skip = "there is no compute-sanitizer on PATH, in CUDA_HOME or in /usr/local/cuda"
    # The test itself looks at what every call returns, also of those that are meant to fail.
    options = ("--report-api-errors", "no") if tool == "memcheck" else ()
    command = (program or "", "--tool", tool, "--error-exitcode", "9", *options, *driver)
    return Part(tool, command, 120, "programs", skip=skip)


def _pytest(emulated: bool) -> Sequence[str | Path]:
    # Versions of pytest and of all else are those of the machine, not those that we pin:
    # pyproject.toml, which wants our pytest (an older one heeds no -o minversion), is not read,
    # and what they warn of is not looked at.
    command = (
        *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ROOT),
        *("-o", "markers=gpu", "--import-mode=importlib", "-p", "no:cacheprovider", "-ra", "-v"),
        *(("-m", "not gpu") if emulated else ("-k", "not cpu and not emulated")),
        *("tests/gpu/test_gpu.py", "tests/test_loopback.py"),
        # Those of emulated GPUs are run by all tests, and take longer than this part may.
        *(() if emulated else ("tests/exchange_checks/test_exchange_checks.py",)),
    )
    # With workers, a test that crashes or hangs ends its own, and the others go on.
    if importlib.util.find_spec("xdist"):
        command += ("-n", "2" if emulated else "10", "--dist", "loadgroup")
    if importlib.util.find_spec("pytest_timeout"):
        command += ("--timeout", "60", "--timeout-method", "thread")
    return command


def _nccl(programs: Path, library: Sequence[Path]) -> Part:
    folder = programs / "tests/cpp/backends/gpu/nccl"
    path = machine.nccl()[0] if library else str(folder / "libfastjax_fake_nccl_smoke.so")
    # A step that hangs is named, which takes less than the part may.
    command = (folder / "nccl_smoke", "--limit", "20", *library)
    environment = {"FASTJAX_NCCL_LIBRARY": path, "NCCL_DEBUG": "WARN"}
    skip = "" if path else "there is no NCCL, in Python's environment or by the loader"
    return Part("nccl", command, 120, "programs", environment, skip)
