"""Which parts there are, in what order, and how long each may take."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from gpu_check import machine
from gpu_check.parts import Part

# With this, a GPU that JAX finds but cannot use is an error. That it finds one, the measurements
# see for themselves.
CUDA = {"JAX_PLATFORMS": "cuda,cpu"}
MEASUREMENTS = {"planning": 80, "exchange": 120, "against_jax": 120}  # and the most seconds each


class Lineup:
    """Parts in groups: those of a group run side by side, since nothing of theirs is timed.

    Args:
      root: the source.
      folder: for all that is made.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.site = folder / "site"
        self.programs = folder / "programs"
        self.library = self.site / "fastjax" / "libfastjax_cuda.so"

    def on_gpu(self) -> list[list[Part]]:
        measured = {"PYTHONPATH": self._paths(self.site), **CUDA}
        return [
            [self._package(), self._programs()],
            [self._driver_test(), self._tests(), *self._sanitizers()],
            [self._kernels()],
            *([self._measurement(name, measured, needs=("package",))] for name in MEASUREMENTS),
        ]

    def emulated(self, programs: Path | None) -> list[list[Part]]:
        """The same measurements with what is installed here, tiny, on the emulated GPU."""
        environment = {
            "PYTHONPATH": self._paths(),
            "JAX_PLATFORMS": "cpu",
            "FASTJAX_EMULATE_GPU": "1",
        }
        groups = [[self._measurement(name, environment, "--tiny")] for name in MEASUREMENTS]
        if programs is not None:
            test = str(programs / "tests/cpp/gpu_driver_test")
            groups.insert(0, [Part("driver", (test, "--small"), 60)])
            timed = str(programs / "benchmarks/cpp/gpu_kernels")
            json = self.folder / "kernels.json"
            command = (timed, "--tiny", "--json", str(json))
            groups.append([Part("kernels", command, 60, json=json)])
        return groups

    def _paths(self, *first: Path) -> str:
        # Behind ours: packages that this Python has from elsewhere.
        given = os.environ.get("PYTHONPATH", "").split(":")
        ours = (*first, self.root / "benchmarks", self.root / "tests")
        return ":".join([*map(str, ours), *(path for path in given if path)])

    def _package(self) -> Part:
        # UCX is for exchanges between processes, of which one test tries some on one GPU.
        ucx = "ON" if importlib.util.find_spec("libucx") else "OFF"
        defines = {"FASTJAX_UCX": ucx, "FASTJAX_ANY_FFI_HEADERS": "ON", "FASTJAX_CUDA": "ON"}
        defines["FASTJAX_ROCM"] = "OFF"
        if machine.architecture():
            defines["FASTJAX_CUDA_ARCHITECTURES"] = machine.architecture()
        settings = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
        command = (
            *(sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--no-index", "--upgrade"),
            *("--target", str(self.site), f"-Cbuild-dir={self.folder / 'package'}"),
            # The version of scikit-build-core is the machine's too, which may be older than ours.
            f"-Cminimum-version={importlib.metadata.version('scikit-build-core')}",
            *(*settings, "."),
        )
        return Part("package", command, 240)

    def _programs(self) -> Part:
        options = {"CMAKE_BUILD_TYPE": "Release", "FASTJAX_BUILD_PYTHON": "OFF"}
        options |= {"FASTJAX_BUILD_TESTS": "ON", "FASTJAX_BUILD_BENCHMARKS": "ON"}
        options |= {"FASTJAX_UCX": "OFF", "FASTJAX_CUDA": "OFF", "FASTJAX_ROCM": "OFF"}
        defines = " ".join(f"-D{name}={value}" for name, value in options.items())
        script = (
            f'cmake -S . -B "$1" -G Ninja {defines} && '
            'cmake --build "$1" --target gpu_driver_test gpu_kernels'
        )
        command = ("sh", "-c", script, "sh", str(self.programs))
        return Part("programs", command, 150)

    def _driver_test(self) -> Part:
        return Part("driver", self._driver(), 90, needs=("package", "programs"))

    def _driver(self, *options: str) -> tuple[str, ...]:
        program = self.programs / "tests/cpp/gpu_driver_test"
        return (str(program), *options, str(self.library))

    def _sanitizers(self) -> list[Part]:
        program = shutil.which("compute-sanitizer") or "compute-sanitizer"
        # The test itself looks at what every call returns, also of those that are meant to fail.
        options = {"memcheck": ("--report-api-errors", "no")}
        return [
            Part(
                tool,
                (
                    *(program, "--tool", tool, "--error-exitcode", "9", *options.get(tool, ())),
                    *self._driver("--small"),
                ),
                120,
                needs=("package", "programs"),
            )
            for tool in ("memcheck", "racecheck", "initcheck")
        ]

    def _tests(self) -> Part:
        # Versions of pytest and of all else are those of the machine, not those that we pin:
        # pyproject.toml, which wants our pytest (an older one heeds no -o minversion), is not read,
        # and what they warn of is not looked at.
        command = (
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(self.root)),
            *("-o", "markers=gpu", "--import-mode=importlib", "-p", "no:cacheprovider"),
            *(*self._test_plugins(), "-ra", "-v", "-k", "not cpu"),
            *("tests/test_gpu.py", "tests/test_loopback.py", "tests/test_gpu_processes.py"),
        )
        environment = {
            "PYTHONPATH": self._paths(self.site),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # others use the GPU too
            **CUDA,
        }
        return Part("tests", command, 200, environment, needs=("package",))

    def _test_plugins(self) -> tuple[str, ...]:
        """With workers, a test that crashes or hangs ends its own, and the others go on."""
        options: tuple[str, ...] = ()
        if importlib.util.find_spec("xdist"):
            options += ("-n", "6", "--dist", "loadgroup")
        if importlib.util.find_spec("pytest_timeout"):
            options += ("--timeout", "60", "--timeout-method", "thread")
        return options

    def _kernels(self) -> Part:
        program = str(self.programs / "benchmarks/cpp/gpu_kernels")
        json = self.folder / "kernels.json"
        command = (program, "--library", str(self.library), "--json", str(json))
        return Part("kernels", command, 100, needs=("package", "programs"), json=json)

    def _measurement(
        self, name: str, environment: dict[str, str], *options: str, needs: tuple[str, ...] = ()
    ) -> Part:
        json = self.folder / f"{name}.json"
        command = (sys.executable, "-m", f"gpu_check.{name}", "--json", str(json), *options)
        return Part(name, command, MEASUREMENTS[name], environment, needs, json)
