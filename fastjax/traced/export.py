"""The custom calls that `jax.export` must accept in programs with exchanges."""

from __future__ import annotations

import jax

from fastjax.traced.contract import CALLS


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """Returns the `disabled_checks` for `jax.export.export` of programs with exchanges.

    JAX refuses to export custom calls that it does not know to be stable. fastjax's are: exported
    programs run with later versions, as long as the version in their names is known. The list
    includes the call that takes their place on platforms without a backend.
    """
    targets = (*CALLS, "ragged_all_to_all")
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in targets]
