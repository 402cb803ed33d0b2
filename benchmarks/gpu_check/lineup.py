"""Which parts there are, in what order, how long each may take, and which are skipped here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from gpu_check import machine
from gpu_check.parts import Part

# With this, a GPU that JAX finds but cannot use is an error. That it finds one, the measurements
# see for themselves.
CUDA = {"JAX_PLATFORMS": "cuda,cpu", "FASTJAX_FALLBACK": "error"}
EMULATED = {"JAX_PLATFORMS": "cpu", "FASTJAX_EMULATE_GPU": "1", "FASTJAX_FALLBACK": "error"}
# The most seconds of each, in the order of how much they are wanted.
MEASUREMENTS = {"against_jax": 120, "exchange": 120, "planning": 80}
SANITIZERS = ("memcheck", "racecheck", "initcheck")
TARGETS = ("gpu_driver_test", "gpu_kernels", "nccl_smoke")
LIBRARY = "fastjax_cuda"
FAKE_NCCL = "fastjax_fake_nccl_smoke"  # for the emulated GPU
# The first NCCL that has ranks share a GPU, where it is told to.
NCCL_OF_SHARED_GPUS = (2, 30, 3)


@dataclasses.dataclass(frozen=True)
class Skip:
    """Something that will not be looked at, and why."""

    what: str
    why: str


class Lineup:
    """Parts in groups: those of a group run side by side, since nothing of theirs is timed.

    Args:
      root: the source.
      folder: for all that is made.
      emulated: whether the emulated GPU takes the place of one, and all is tiny.
      installed: whether the fastjax that Python has is used, instead of one that is built.
      programs: a build folder of CMake's, whose programs are used instead of new ones.
      left_out: names of parts that somebody wants to be skipped.
    """

    def __init__(
        self,
        root: Path,
        folder: Path,
        *,
        emulated: bool = False,
        installed: bool = False,
        programs: Path | None = None,
        left_out: Collection[str] = (),
    ) -> None:
        self.root = root
        self.folder = folder
        self.emulated = emulated
        self.installed = installed
        self.built = programs
        self.left_out = left_out
        self.programs = programs or folder / "programs"
        self.site = None if installed else folder / "site"
        self.library = self.programs / "gpu" / f"lib{LIBRARY}.so"

    def groups(self) -> list[list[Part]]:
        """All parts, those that are skipped too."""
        groups = self._all()
        unknown = set(self.left_out) - {part.name for group in groups for part in group}
        if unknown:
            raise ValueError(f"no part is called {', '.join(sorted(unknown))}")
        return [[self._left_in(part) for part in group] for group in groups]

    def _left_in(self, part: Part) -> Part:
        if part.name not in self.left_out:
            return part
        return dataclasses.replace(part, skip="--skip names it")

    def _all(self) -> list[list[Part]]:
        return [
            [self._package(), self._programs()],
            [self._driver_test(), self._tests(), *self._sanitizers(), self._nccl()],
            [self._kernels()],
            *([self._measurement(name)] for name in MEASUREMENTS),
        ]

    def skips(self, parts: Iterable[Part]) -> list[Skip]:
        """Parts that are not run here, and what is left out of those that are."""
        whys: dict[str, list[str]] = {}
        for part in parts:
            if part.skip:
                whys.setdefault(part.skip, []).append(part.name)
        return [
            *(Skip(", ".join(names), why) for why, names in whys.items()),
            *self._left_out_of_parts(),
        ]

    def _left_out_of_parts(self) -> list[Skip]:
        left_out = []
        if self.emulated:
            why = "there is none; those on CPU devices are run instead"
            left_out.append(Skip("of tests: those on a GPU", why))
        if not machine.has_ucx():
            why = "libucx is not in Python's environment; WHEELS=folder (--wheels) installs it"
            what = "of package: exchanges between processes; of tests: jobs of two processes"
            left_out.append(Skip(what, why))
        elif not self.emulated and machine.nccl()[1] < NCCL_OF_SHARED_GPUS:
            version = _dotted(machine.nccl()[1])
            has = f"NCCL is {version}" if version else "there is no NCCL"
            why = f"{has}; from {_dotted(NCCL_OF_SHARED_GPUS)} on, ranks may share a GPU"
            left_out.append(Skip("of tests: two processes over NCCL", why))
        return left_out

    def _environment(self) -> dict[str, str]:
        # Behind ours: packages that this Python has from elsewhere.
        given = os.environ.get("PYTHONPATH", "").split(":")
        tests = self.root / "tests"
        ours = (self.site, self.root / "benchmarks", tests, tests / "support", *given)
        paths = {"PYTHONPATH": ":".join(str(path) for path in ours if path)}
        return paths | (EMULATED if self.emulated else CUDA)

    def _needs(self, *names: str) -> tuple[str, ...]:
        """Those of them that are built by this run."""
        here = {"package": not self.installed, "programs": self.built is None}
        return tuple(name for name in names if here[name])

    def _package(self) -> Part:
        # UCX is for exchanges between processes, of which some are tried on one GPU.
        defines = {"FASTJAX_UCX": "ON" if machine.has_ucx() else "OFF"}
        defines |= {"FASTJAX_ANY_FFI_HEADERS": "ON", "FASTJAX_ROCM": "OFF"} | self._cuda()
        settings = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
        if self.installed:
            return Part("package", (), 0, skip="the fastjax that is installed is used")
        command = (
            *(sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--no-index", "--upgrade"),
            *("--target", str(self.site), f"-Cbuild-dir={self.folder / 'package'}"),
            # The version of scikit-build-core is the machine's too, which may be older than ours.
            f"-Cminimum-version={importlib.metadata.version('scikit-build-core')}",
            *(*settings, "."),
        )
        return Part("package", command, self._to_build(240))

    def _cuda(self) -> dict[str, str]:
        """Options of CMake: the library of this GPU's architecture."""
        if self.emulated and shutil.which("nvcc") is None:
            return {"FASTJAX_CUDA": "OFF"}
        architecture = machine.architecture() or ("90" if self.emulated else "")
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
        wanted = (*TARGETS, FAKE_NCCL if self.emulated else LIBRARY)
        targets = " ".join(wanted)
        script = f'cmake -S . -B "$1" -G Ninja {defines} && cmake --build "$1" --target {targets}'
        command = ("sh", "-c", script, "sh", str(self.programs))
        return Part("programs", command, self._to_build(150))

    def _to_build(self, seconds: float) -> float:
        """Machines without a GPU have fewer cores, and nobody lends them."""
        return 4 * seconds if self.emulated else seconds

    def _driver_test(self) -> Part:
        return Part("driver", self._driver(), 90, needs=self._needs("programs"))

    def _driver(self, *options: str) -> tuple[str, ...]:
        program = self.programs / "tests/cpp/kernels/gpu_driver_test"
        given = ("--small",) if self.emulated else (*options, str(self.library))
        return (str(program), *given)

    def _sanitizers(self) -> list[Part]:
        program = shutil.which("compute-sanitizer")
        skip = (
            ""
            if program
            else "there is no compute-sanitizer on PATH, in CUDA_HOME or in /usr/local/cuda"
        )
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
                needs=self._needs("programs"),
                skip=skip,
            )
            for tool in SANITIZERS
        ]

    def _tests(self) -> Part:
        # Versions of pytest and of all else are those of the machine, not those that we pin:
        # pyproject.toml, which wants our pytest (an older one heeds no -o minversion), is not read,
        # and what they warn of is not looked at.
        command = (
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(self.root)),
            *("-o", "markers=gpu", "--import-mode=importlib", "-p", "no:cacheprovider"),
            *(*self._test_plugins(), "-ra", "-v"),
            *(("-m", "not gpu") if self.emulated else ("-k", "not cpu")),
            *("tests/gpu/test_gpu.py", "tests/test_loopback.py"),
            # Those of emulated GPUs are run by all tests, and take longer than this part may.
            *(() if self.emulated else ("tests/exchange_checks/test_exchange_checks.py",)),
        )
        # Others use the GPU too. Programs are what users get, optimised.
        environment = self._environment() | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        environment |= {} if self.emulated else {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
        return Part("tests", command, 200, environment, self._needs("package"))

    def _test_plugins(self) -> tuple[str, ...]:
        """With workers, a test that crashes or hangs ends its own, and the others go on."""
        options: tuple[str, ...] = ()
        if importlib.util.find_spec("xdist"):
            options += ("-n", "2" if self.emulated else "10", "--dist", "loadgroup")
        if importlib.util.find_spec("pytest_timeout"):
            options += ("--timeout", "60", "--timeout-method", "thread")
        return options

    def _nccl(self) -> Part:
        path, _ = machine.nccl()
        # A step that hangs is named, which takes less than the part may.
        command = (str(self.programs / "tests/cpp/backends/gpu/nccl/nccl_smoke"), "--limit", "20")
        if self.emulated:
            path = str(self.programs / f"tests/cpp/backends/gpu/nccl/lib{FAKE_NCCL}.so")
        else:
            command += (str(self.library),)
        skip = "" if path else "there is no NCCL, in Python's environment or by the loader"
        environment = {"FASTJAX_NCCL_LIBRARY": path, "NCCL_DEBUG": "WARN"}
        return Part("nccl", command, 120, environment, self._needs("programs"), skip=skip)

    def _kernels(self) -> Part:
        program = str(self.programs / "benchmarks/cpp/gpu_kernels")
        json = self.folder / "kernels.json"
        given = ("--tiny",) if self.emulated else ("--library", str(self.library))
        command = (program, *given, "--json", str(json))
        return Part("kernels", command, 100, needs=self._needs("programs"), json=json)

    def _measurement(self, name: str) -> Part:
        json = self.folder / f"{name}.json"
        command = (sys.executable, "-m", f"gpu_check.{name}", "--json", str(json))
        command += ("--tiny",) if self.emulated else ()
        needs = self._needs("package")
        return Part(name, command, MEASUREMENTS[name], self._environment(), needs, json)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
