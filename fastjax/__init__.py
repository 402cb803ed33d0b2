"""fastjax: ragged all-to-all exchanges for JAX, planned on the host and run inside the program."""

from importlib.metadata import version as _version

import jax as _jax

try:
    from fastjax import _core
except ImportError as error:
    raise ImportError(
        f"fastjax's compiled part is missing ({error}). Python found {__file__}: if that is the "
        "source tree, run from another folder, or with `python -P`, to get the installed package."
    ) from error
from fastjax import errors
from fastjax.config import Options, options, schedulers
from fastjax.planning import (
    Plan,
    TracedPlan,
    make_plan,
    plan_ragged_all_to_all,
    planning_count,
)
from fastjax.ragged_all_to_all import fast_ragged_all_to_all, fast_ragged_all_to_all_p
from fastjax.swap import swap_ragged_all_to_all
from fastjax.topology import Topology

__version__ = _version("fastjax")

for _target, _handler in _core.registrations().items():
    _jax.ffi.register_ffi_target(_target, _handler, platform="cpu")

__all__ = [
    "Options",
    "Plan",
    "Topology",
    "TracedPlan",
    "errors",
    "fast_ragged_all_to_all",
    "fast_ragged_all_to_all_p",
    "make_plan",
    "options",
    "plan_ragged_all_to_all",
    "planning_count",
    "schedulers",
    "swap_ragged_all_to_all",
]
