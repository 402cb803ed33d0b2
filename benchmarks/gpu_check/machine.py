"""What the machine is, and what it lacks for this; without JAX, which a bare one may lack."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

QUERY = ("name", "driver_version", "memory.total", "compute_cap", "clocks.max.sm", "clocks.max.mem")
MODULES = (
    *("jax", "jaxlib", "numpy", "ml_dtypes", "nanobind", "scikit_build_core", "pip"),
    *("packaging", "pathspec"),  # which scikit-build-core imports
    *("pytest", "hypothesis"),
)
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "jax-cuda12-plugin"),
    *("nvidia-nccl-cu13", "nvidia-nccl-cu12", "numpy", "nanobind", "scikit-build-core", "pytest"),
)


def lacks() -> list[str]:
    """What is missing, in words; without any of it nothing is run."""
    missing = [] if gpu() else ["an NVIDIA GPU: nvidia-smi lists none"]
    programs = ("nvcc", "cmake", "ninja", *os.environ.get("CXX", "c++").split()[:1])
    missing += [f"the program {name}" for name in programs if shutil.which(name) is None]
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        missing.append(f"Python's headers: there is no {header}")
    return missing + [
        f"the Python package {module} (for {sys.executable})"
        for module in MODULES
        if importlib.util.find_spec(module) is None
    ]


def search_path() -> str:
    """PATH, with the programs of this Python's environment before all.

    Behind all is where CUDA's and the driver's are installed: not every machine has them on PATH.
    """
    toolkits = (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"))
    last = [f"{each}/bin" for each in (*toolkits, "/usr/local/cuda", "/usr/local/nvidia") if each]
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), *last])


def output(*command: str) -> str:
    """What a program writes; empty if there is none, or it fails."""
    try:
        said = subprocess.check_output(
            command, text=True, timeout=60, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.strip()


@functools.cache  # a GPU that nobody uses takes a second to answer
def gpu() -> dict[str, str]:
    """The first GPU, by nvidia-smi; empty if there is none."""
    listed = output("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
    return dict(zip(QUERY, listed.splitlines()[0].split(", "), strict=True)) if listed else {}


@functools.cache
def nccl() -> tuple[str, tuple[int, ...]]:
    """The NCCL of Python's environment, or else the loader's: its path and version, or empty ones.

    It is loaded by a process that ends, so that nothing of it stays in this one.
    """
    script = (
        "import ctypes, sys; number = ctypes.c_int(); "
        "ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number)); print(number.value)"
    )
    packaged: list[str] = []
    with contextlib.suppress(ModuleNotFoundError):  # there is no package "nvidia"
        spec = importlib.util.find_spec("nvidia.nccl")
        packaged = [*((spec and spec.submodule_search_locations) or ())]
    for name in (*(f"{folder}/lib/libnccl.so.2" for folder in packaged), "libnccl.so.2"):
        number = output(sys.executable, "-c", script, name).rpartition("\n")[2]
        if number.isdigit() and int(number) >= 10_000:  # numbered so since 2.9
            return name, (int(number) // 10_000, int(number) // 100 % 100, int(number) % 100)
    return "", ()


def has_ucx() -> bool:
    """Whether Python's environment has the libucx wheel, with UCX and its headers."""
    return importlib.util.find_spec("libucx") is not None


def commit(root: Path) -> str:
    """Of the source; "+" if it was changed since, "unknown" in a copy without its history."""
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")
    return output("git", "-C", str(root), *describe) or "unknown"


def describe() -> dict[str, str | int | float]:
    """The computer."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu.group(1).strip() if cpu else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Of what is installed, and of the compiler."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    release = re.search(r"release [\d.]+, V([\d.]+)", output("nvcc", "--version"))
    return found | ({"nvcc": release.group(1)} if release else {})
