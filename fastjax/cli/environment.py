"""The environment report: `python -m fastjax` without a command."""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import sys
from collections.abc import Mapping

import jax

import fastjax
from fastjax import _core, config, handlers, network
from fastjax.cli.shared import machine, text
from fastjax.cli.shared.text import Section


def run(_: argparse.Namespace) -> None:
    """Shows the report."""
    sys.stdout.write(f"{text.sections(collect())}\n")


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, Section]:
    """Gathers the report, by section. Starts JAX's backends."""
    found = machine.versions()
    return {
        "versions": {
            "fastjax": found["fastjax"],
            "jax, jaxlib": f"{found['jax']}, {found['jaxlib']}",
            "numpy": found["numpy"],
            "Python": found["python"],
            "XLA FFI": f"built for {found['xla_ffi_built']}, running {found['xla_ffi_running']}",
            "extras": _extras(),
        },
        "devices": _devices(),
        "platforms": _platforms(),
        "network": network.report(environ),
        "planning": {
            "schedulers": ", ".join(fastjax.schedulers()),
            "copy threads": str(_core.copy_threads()),
        },
        "options": _options(environ),
    }


def _platforms() -> Section:
    """What runs the exchanges of programs for each platform."""
    found = {}
    for platform in ("cpu", "cuda", "rocm", "tpu"):
        why = handlers.unusable(platform)
        experimental = ", experimental" * (platform in ("cuda", "rocm"))
        found[platform] = f"jax.lax.ragged_all_to_all: {why}" if why else f"fastjax{experimental}"
    return found


def _extras() -> str:
    needs = {"plot": "matplotlib", "ucx": "libucx", "optimal": "scipy"}
    found = {extra: importlib.util.find_spec(module) for extra, module in needs.items()}
    return ", ".join(
        f"{extra}: {'yes' if found[extra] else f'no {module}'}" for extra, module in needs.items()
    )


def _devices() -> Section:
    counts = collections.Counter(device.platform for device in jax.devices())
    section = {platform: str(count) for platform, count in sorted(counts.items())}
    local = f"{jax.local_device_count()} of {jax.device_count()} devices in this one"
    section["processes"] = f"{jax.process_count()}, {local}"
    return section


def _options(environ: Mapping[str, str]) -> Section:
    """Options in force, and where each came from."""
    options = config.current()

    def source(variable: str) -> str:
        return f"from {variable}" if environ.get(variable) else f"default; set {variable} to change"

    collected = "collected" if _core.collecting() else "not collected"
    topology = options.topology or "devices of a process are a server"
    return {
        "scheduler": f"{options.scheduler} ({source('FASTJAX_SCHEDULER')})",
        "timeout": f"{options.timeout:g} s ({source('FASTJAX_TIMEOUT')})",
        "fallback": f"{options.fallback} ({source('FASTJAX_FALLBACK')})",
        "topology": f"{topology} (default; set with fastjax.options)",
        "statistics": f"{collected} ({source('FASTJAX_STATS')})",
    }
