"""JAX, started with as many devices as a command wants."""

from __future__ import annotations

import contextlib

import jax

from fastjax.errors import OptionError


def start_backend(devices: int, platform: str) -> None:
    """Starts JAX with that many devices.

    Raises:
      OptionError: it has been started otherwise before.
    """
    with contextlib.suppress(RuntimeError):  # it has started; whether it fits shows below
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_platforms", platform)
    found = jax.devices()
    if len(found) < devices or found[0].platform != platform:
        raise OptionError(
            f"this needs {devices} {platform} devices, but JAX has started with {len(found)} of "
            f"{found[0].platform}. Run it in a process of its own."
        )


__all__ = ["start_backend"]
