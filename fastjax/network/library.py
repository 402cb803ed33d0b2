"""Where UCX is on this machine."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from fastjax.errors import UnsupportedError

SONAME = "libucp.so.0"
WHEEL = "wheel"


def find(wanted: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The library to load, and how it was found.

    Nothing is loaded here: UCX reads its own environment as it is loaded, and two versions of it
    in one process would be mixed up.

    Args:
      wanted: a path or a name that the loader knows, "wheel" for that of the `libucx` wheel, or
        nothing: the system's, or else the wheel's.
      environ: where LD_LIBRARY_PATH is.

    Raises:
      UnsupportedError: there is none.
    """
    if wanted and wanted != WHEEL:
        return wanted, "FASTJAX_UCX_LIBRARY"
    if not wanted and (found := _of_the_system(environ)):
        return found, "the system's"
    if found := _of_the_wheel():
        return found, "the libucx wheel's"
    where = "the libucx wheel is not installed" if wanted else f"there is no {SONAME}"
    raise UnsupportedError(
        f"an exchange between processes needs the UCX library, and {where}. Install it with "
        "pip install 'fastjax[ucx]', or name one with FASTJAX_UCX_LIBRARY."
    )


def _of_the_system(environ: Mapping[str, str]) -> str | None:
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        path = Path(folder) / SONAME
        if path.exists():
            return str(path)
    name = ctypes.util.find_library("ucp")
    return name if name == SONAME else None


def _of_the_wheel() -> str | None:
    spec = importlib.util.find_spec("libucx")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "lib" / SONAME
        if path.exists():
            return str(path)
    return None
