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
    parts = (rf"define XLA_FFI_API_{part}\s+(\d+)" for part in ("MAJOR", "MINOR"))
    return ".".join(_found(header, part) or "?" for part in parts)


def _found(path: Path, pattern: str) -> str | None:
    """What the group of a pattern is in a file; None where there is no such file or text."""
    try:
        found = re.search(pattern, path.read_text())
    except OSError:
        return None
    return found.group(1).strip() if found else None


def machine() -> dict[str, object]:
    """The computer, as far as it bears on speed."""
    cpu = _found(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)")
    memory = _found(Path("/proc/meminfo"), r"MemTotal:\s*(\d+)")
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu or platform.processor() or "unknown",
        "usable_cores": usable_cores(),
        "copy_threads": _core.copy_threads(),
        "memory_gib": None if memory is None else round(int(memory) / 2**20, 1),
        "transparent_huge_pages": _found(pages, r"\[(\w+)\]"),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def usable_cores() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
