"""The parts of a run: commands, each with a time limit and a log, and which are skipped here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from gpu_check import machine

ROOT = Path(__file__).resolve().parents[2]
# With this, a GPU that JAX finds but cannot use is an error. That it finds one, the measurements
# see for themselves.
CUDA = {"JAX_PLATFORMS": "cuda,cpu", "FASTJAX_FALLBACK": "error"}
EMULATED = {"JAX_PLATFORMS": "cpu", "FASTJAX_EMULATE_GPU": "1", "FASTJAX_FALLBACK": "error"}
# The most seconds of each, in the order of how much they are wanted.
MEASUREMENTS = {"against_jax": 120, "exchange": 120, "layer": 120, "planning": 80}
SANITIZERS = ("memcheck", "racecheck", "initcheck")
TARGETS = ("gpu_driver_test", "gpu_kernels", "nccl_smoke")


@dataclasses.dataclass
class Part:
    """A command, and how it went.

    Attributes:
      name: of the part; its log is NAME.log, its measurements are NAME.json if it takes any.
      seconds: after so many it is stopped.
      environment: variables beyond those of this process.
      needs: names of parts without which this one means nothing.
      skip: why it is not run here; empty if it is.
      detail: the last line of its log, or why there is none.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    skip: str = ""
    status: str = "not ended"
    took: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What is run, on what.

    Attributes:
      folder: for all that is made.
      emulated: whether the emulated GPU takes the place of one, and all is tiny.
      installed: whether the fastjax that Python has is used, instead of one that is built.
      built: a build folder of CMake's, whose programs are used instead of new ones.
    """

    folder: Path
    emulated: bool = False
    installed: bool = False
    built: Path | None = None

    def groups(self) -> list[list[Part]]:
        """Those of a group run side by side, since nothing of theirs is timed."""
        return [
            [self._package(), self._programs()],
            [self._driver_test(), self._tests(), *self._sanitizers(), self._nccl()],
            [self._kernels()],
            *([self._measurement(name)] for name in MEASUREMENTS),
        ]

    def left_out(self) -> dict[str, str]:
        """What the parts that are run leave out, and why."""
        found = {}
        version = ".".join(map(str, machine.nccl()[1]))
        if self.emulated:
            why = "there is none; those on CPU devices are run instead"
            found["of tests: those on a GPU"] = why
        if not machine.has_ucx():
            what = "of package: exchanges between processes; of tests: jobs of two processes"
            found[what] = "libucx is not in Python's environment"
        elif not self.emulated and machine.nccl()[1] < machine.NCCL_OF_SHARED_GPUS:
            has = f"NCCL is {version}" if version else "there is no NCCL"
            first = ".".join(map(str, machine.NCCL_OF_SHARED_GPUS))
            why = f"{has}; from {first} on, ranks may share a GPU"
            found["of tests: two processes over NCCL"] = why
        return found

    @property
    def _site(self) -> Path:
        return self.folder / "site"

    def _program(self, path: str) -> str:
        return str((self.built or self.folder / "programs") / path)

    @property
    def _library(self) -> str:
        return self._program("gpu/libfastjax_cuda.so")

    def _environment(self) -> dict[str, str]:
        # Behind ours: packages that this Python has from elsewhere.
        given = os.environ.get("PYTHONPATH", "").split(":")
        site = "" if self.installed else self._site
        ours = (site, ROOT / "benchmarks", ROOT / "tests", ROOT / "tests/support", *given)
        paths = {"PYTHONPATH": ":".join(str(path) for path in ours if path)}
        return paths | (EMULATED if self.emulated else CUDA)

    def _needs_package(self) -> tuple[str, ...]:
        return () if self.installed else ("package",)

    def _needs_programs(self) -> tuple[str, ...]:
        return () if self.built else ("programs",)

    def _package(self) -> Part:
        if self.installed:
            return Part("package", (), 0, skip="the fastjax that is installed is used")
        # UCX is for exchanges between processes, of which some are tried on one GPU.
        defines = {"FASTJAX_UCX": "ON" if machine.has_ucx() else "OFF"}
        defines |= {"FASTJAX_ANY_FFI_HEADERS": "ON", "FASTJAX_ROCM": "OFF"} | self._cuda()
        command = (
            *(sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--no-index", "--upgrade"),
            *("--target", str(self._site), f"-Cbuild-dir={self.folder / 'package'}"),
            # The version of scikit-build-core is the machine's too, which may be older than ours.
            f"-Cminimum-version={importlib.metadata.version('scikit-build-core')}",
            *(f"-Ccmake.define.{name}={value}" for name, value in defines.items()),
            ".",
        )
        return Part("package", command, self._to_build(240))

    def _cuda(self) -> dict[str, str]:
        """Options of CMake: the library of this GPU's architecture."""
        if self.emulated and shutil.which("nvcc") is None:
            return {"FASTJAX_CUDA": "OFF"}
        known = re.fullmatch(r"(\d+)\.(\d+)", machine.gpu().get("compute_cap", ""))
        architecture = "".join(known.groups()) if known else "90" if self.emulated else ""
        chosen = {"FASTJAX_CUDA_ARCHITECTURES": architecture} if architecture else {}
        return {"FASTJAX_CUDA": "ON"} | chosen

    def _programs(self) -> Part:
        if self.built is not None:
            return Part("programs", (), 0, skip=f"those of {self.built} are used")
        options = {"CMAKE_BUILD_TYPE": "Release", "FASTJAX_BUILD_PYTHON": "OFF"}
        options |= {"FASTJAX_BUILD_TESTS": "ON", "FASTJAX_BUILD_BENCHMARKS": "ON"}
        options |= {"FASTJAX_UCX": "OFF", "FASTJAX_ROCM": "OFF"}
        # A library of their own: what keeps the package from being built keeps none of them.
        options |= {"FASTJAX_CUDA": "OFF"} if self.emulated else self._cuda()
        defines = " ".join(f"-D{name}={value}" for name, value in options.items())
        library = "fastjax_fake_nccl_smoke" if self.emulated else "fastjax_cuda"
        targets = " ".join((*TARGETS, library))
        script = f'cmake -S . -B "$1" -G Ninja {defines} && cmake --build "$1" --target {targets}'
        command = ("sh", "-c", script, "sh", self._program(""))
        return Part("programs", command, self._to_build(150))

    def _to_build(self, seconds: float) -> float:
        """Machines without a GPU have fewer cores, and nobody lends them."""
        return 4 * seconds if self.emulated else seconds

    def _driver_test(self) -> Part:
        return Part("driver", self._driver(), 90, needs=self._needs_programs())

    def _driver(self, *options: str) -> tuple[str, ...]:
        given = ("--small",) if self.emulated else (*options, self._library)
        return (self._program("tests/cpp/kernels/gpu_driver_test"), *given)

    def _sanitizers(self) -> list[Part]:
        program = shutil.which("compute-sanitizer")
        missing = "there is no compute-sanitizer on PATH, in CUDA_HOME or in /usr/local/cuda"
        skip = "" if program else missing
        if self.emulated:
            skip = "compute-sanitizer looks at kernels on a GPU, and there is none"
        # The test itself looks at what every call returns, also of those that are meant to fail.
        options = {"memcheck": ("--report-api-errors", "no")}
        return [
            Part(
                tool,
                (
                    *(program or "", "--tool", tool, "--error-exitcode", "9"),
                    *(*options.get(tool, ()), *self._driver("--small")),
                ),
                120,
                needs=self._needs_programs(),
                skip=skip,
            )
            for tool in SANITIZERS
        ]

    def _tests(self) -> Part:
        # Versions of pytest and of all else are those of the machine, not those that we pin:
        # pyproject.toml, which wants our pytest (an older one heeds no -o minversion), is not read,
        # and what they warn of is not looked at.
        command = (
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(ROOT)),
            *("-o", "markers=gpu", "--import-mode=importlib", "-p", "no:cacheprovider"),
            *(*self._test_plugins(), "-ra", "-v"),
            *(("-m", "not gpu") if self.emulated else ("-k", "not cpu and not emulated")),
            *("tests/gpu/test_gpu.py", "tests/test_loopback.py"),
            # Those of emulated GPUs are run by all tests, and take longer than this part may.
            *(() if self.emulated else ("tests/exchange_checks/test_exchange_checks.py",)),
        )
        # Others use the GPU too. Programs are what users get, optimised.
        environment = self._environment() | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {} if self.emulated else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
        return Part("tests", command, 200, environment, self._needs_package())

    def _test_plugins(self) -> tuple[str, ...]:
        """With workers, a test that crashes or hangs ends its own, and the others go on."""
        options: tuple[str, ...] = ()
        if importlib.util.find_spec("xdist"):
            options += ("-n", "2" if self.emulated else "10", "--dist", "loadgroup")
        if importlib.util.find_spec("pytest_timeout"):
            options += ("--timeout", "60", "--timeout-method", "thread")
        return options

    def _nccl(self) -> Part:
        # A step that hangs is named, which takes less than the part may.
        command = (self._program("tests/cpp/backends/gpu/nccl/nccl_smoke"), "--limit", "20")
        if self.emulated:
            path = self._program("tests/cpp/backends/gpu/nccl/libfastjax_fake_nccl_smoke.so")
        else:
            path = machine.nccl()[0]
            command += (self._library,)
        skip = "" if path else "there is no NCCL, in Python's environment or by the loader"
        environment = {"FASTJAX_NCCL_LIBRARY": path, "NCCL_DEBUG": "WARN"}
        return Part("nccl", command, 120, environment, self._needs_programs(), skip)

    def _kernels(self) -> Part:
        given = ("--tiny",) if self.emulated else ("--library", self._library)
        command = (self._program("benchmarks/cpp/gpu_kernels"), *given, *self._json("kernels"))
        return Part("kernels", command, 100, needs=self._needs_programs())

    def _measurement(self, name: str) -> Part:
        command = (sys.executable, "-m", f"gpu_check.{name}", *self._json(name))
        command += ("--tiny",) if self.emulated else ()
        return Part(name, command, MEASUREMENTS[name], self._environment(), self._needs_package())

    def _json(self, name: str) -> tuple[str, str]:
        return "--json", str(self.folder / f"{name}.json")
