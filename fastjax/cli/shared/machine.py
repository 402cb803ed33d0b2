"""What a benchmark ran on, and with: for its record and for the environment report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import jax
import numpy as np

import fastjax
from fastjax import _core


def versions() -> dict[str, str]:
    """Versions of everything that matters, as text."""
    return {
        "fastjax": fastjax.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "xla_ffi_built": ".".join(map(str, _core.ffi_api_version)),
        "xla_ffi_running": running_ffi_version(),
    }


def running_ffi_version() -> str:
    """The XLA FFI API of the jaxlib that runs, from the headers that come with it."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return "unknown"
    numbers = [
        re.search(rf"define XLA_FFI_API_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR")
    ]
    return ".".join(n.group(1) if n else "?" for n in numbers)


def machine() -> dict[str, object]:
    """The computer, as far as it bears on speed."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "usable_cores": usable_cores(),
        "copy_threads": _core.copy_threads(),
        "memory_gib": _memory_gib(),
        "transparent_huge_pages": _huge_pages(),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def usable_cores() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.processor() or "unknown"


def _memory_gib() -> float | None:
    try:
        found = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return round(int(found.group(1)) / 2**20, 1) if found else None


def _huge_pages() -> str | None:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return None
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found else None


__all__ = ["machine", "running_ffi_version", "usable_cores", "versions"]
