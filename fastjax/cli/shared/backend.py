"""JAX, started with as many devices as a command wants."""

from __future__ import annotations

import contextlib

import jax

from fastjax.errors import OptionError


def start_backend(devices: int) -> None:
    """Starts JAX with that many CPU devices.

    Raises:
      OptionError: it has been started otherwise before.
    """
    with contextlib.suppress(RuntimeError):  # it has started; whether it fits shows below
        jax.config.update("jax_num_cpu_devices", devices)
        jax.config.update("jax_platforms", "cpu")
    found = jax.devices()
    if len(found) < devices or found[0].platform != "cpu":
        raise OptionError(
            f"this needs {devices} CPU devices, but JAX has started with {len(found)} of "
            f"{found[0].platform}. Run it in a process of its own."
        )


__all__ = ["start_backend"]
