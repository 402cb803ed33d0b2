"""What `jax.export` must be told of programs with exchanges."""

from __future__ import annotations

import jax

from fastjax.traced.contract import CALLS


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """What to give `jax.export.export` as `disabled_checks`.

    JAX refuses to export custom calls that it does not know to be stable. fastjax's are: programs
    that were exported run with later versions, as long as the version in their names is known.
    Among them is what takes their place on platforms without a backend.
    """
    targets = (*CALLS, "ragged_all_to_all")
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]


__all__ = ["export_checks"]
