"""Which handlers XLA calls on which platform."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import jax

from fastjax import _core, config

_GPU_LIBRARIES = {"cuda": "libfastjax_cuda.so", "rocm": "libfastjax_rocm.so"}
# Packages that have nothing but such a library.
_GPU_PLUGINS = {"cuda": "fastjax_cuda13_plugin", "rocm": "fastjax_rocm7_plugin"}
_NCCL = {"cuda": "libnccl.so.2", "rocm": "librccl.so.1"}
_emulates = False


def register() -> None:
    """Tells JAX of fastjax's handlers, whatever platforms it may turn out to have.

    Nothing is loaded: a GPU's library is when the first program for it is lowered.

    Raises:
      OptionError: the environment says something about GPUs that means nothing.
    """
    global _emulates  # noqa: PLW0603  # the environment is read once
    gpu = config.gpu_from_environment(os.environ)
    _emulates = gpu.emulate
    for platform in _GPU_LIBRARIES:
        nccl = [gpu.nccl] if gpu.nccl else _find_nccl(platform)
        _core.set_gpu_options(platform, str(_library(platform)), gpu.multiprocessors, nccl)
        _register(_core.gpu_registrations(platform), platform.upper())
    _register(_core.registrations(gpu.emulate), "cpu")


def emulates_gpus() -> bool:
    """Whether CPU devices emulate GPUs."""
    return _emulates


def are_cpus(platform: str) -> bool:
    """Whether a platform's devices are CPUs that have a backend of ours, and emulate no GPUs."""
    return platform == "cpu" and not (unusable(platform) or emulates_gpus())


def platforms_built() -> list[str]:
    """The GPU platforms, "cuda" and "rocm", that this installation has a library for."""
    return [platform for platform in _GPU_LIBRARIES if _library(platform).exists()]


def unusable(platform: str) -> str:
    """Why programs for a platform cannot use a backend of ours, here; empty if they can.

    Loads a GPU's library.
    """
    if platform == "cpu":
        return ""
    if platform not in _GPU_LIBRARIES:
        return "fastjax has no backend for it"
    if platform not in platforms_built():
        return "fastjax's library for it is not installed"
    try:
        _core.gpu_tally(platform)
    except RuntimeError as error:
        return str(error)
    return ""


def _library(platform: str) -> Path:
    """The library that was built with fastjax, or else that of the plugin; it need not exist."""
    built = Path(_core.__file__).parent / _GPU_LIBRARIES[platform]
    if built.exists():
        return built
    spec = importlib.util.find_spec(_GPU_PLUGINS[platform])
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / _GPU_LIBRARIES[platform]
        if path.exists():
            return path
    return built


def _find_nccl(platform: str) -> list[str]:
    """Names and paths of NCCL or RCCL; the first that JAX has loaded already will be used."""
    found = [_NCCL[platform]]
    if platform == "cuda" and importlib.util.find_spec("nvidia") is not None:
        spec = importlib.util.find_spec("nvidia.nccl")
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder) / "lib" / _NCCL[platform]
            found += [str(path)] if path.exists() else []
    return found


def _register(targets: dict, platform: str) -> None:
    for target, handler in targets.items():
        jax.ffi.register_ffi_target(target, handler, platform=platform)
