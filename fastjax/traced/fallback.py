"""Whether programs for a platform use a backend of ours, or operations of JAX in its place."""

from __future__ import annotations

import warnings

from fastjax import handlers
from fastjax.errors import FallbackWarning, UnsupportedError

BUILT_FOR = ("cuda", "rocm")
_ADVICE = "docs/how_to/install.md says how to install it"
_warned: set[tuple[str, str]] = set()  # platforms and reasons


def needed(platform: str, fallback: str) -> bool:
    """Whether a program for a platform gets operations of JAX.

    The first time that a GPU's does, for each reason, a warning says so.

    Args:
      platform: the platform.
      fallback: the option, when the program was traced.

    Raises:
      UnsupportedError: it would, and the option forbids that.
    """
    if may_use_handlers(platform, fallback):
        return False
    why = handlers.unusable(platform)
    if fallback != "jax":
        instead = f"{_ADVICE}; or allow" if platform in BUILT_FOR else "Allow"
        raise UnsupportedError(
            f"fastjax cannot exchange on {platform}: {why}; and fallback={fallback!r} forbids "
            f"jax.lax.ragged_all_to_all in its place. {instead} that: "
            "fastjax.options(fallback='jax'), or FASTJAX_FALLBACK=jax."
        )
    if platform != "tpu" and (platform, why) not in _warned:
        _warned.add((platform, why))
        advice = f" {_ADVICE}." if platform in BUILT_FOR else ""
        warnings.warn(
            f"programs for {platform} use jax.lax.ragged_all_to_all in place of fastjax's "
            f"exchanges, without planning: {why}.{advice} fastjax.options(fallback='error') makes "
            "this an error.",
            FallbackWarning,
            stacklevel=2,
        )
    return True


def may_use_handlers(platform: str, fallback: str) -> bool:
    """Whether a program for a platform may use handlers of ours.

    Args:
      platform: the platform.
      fallback: the option, when the program was traced.
    """
    if fallback == "never" and platform in BUILT_FOR:
        return True
    return not handlers.unusable(platform)
