"""fastjax: ragged all-to-all exchanges for JAX, planned on the host and run inside the program."""

import importlib.metadata as _metadata
import pathlib as _pathlib

try:
    from fastjax import _core as _core
except ImportError as _error:
    # Python started in the source tree finds this package there, without its compiled module: that
    # of the installed package serves.
    try:
        _installed = _pathlib.Path(str(_metadata.distribution("fastjax").locate_file("fastjax")))
    except _metadata.PackageNotFoundError:
        raise ImportError(
            f"fastjax's compiled part is missing ({_error}). Python found the source tree, "
            f"{__file__}: install the package with `pip install .`."
        ) from _error
    __path__.append(str(_installed))
    from fastjax import _core as _core
from fastjax import errors, moe, plot, traffic
from fastjax import handlers as _handlers
from fastjax import measurement as _measurement
from fastjax.config import Options, options
from fastjax.host.plan import Plan, make_plan
from fastjax.host.statistics import SiteStats, collect_stats, reset_stats, stats, stats_summary
from fastjax.scheduling import schedulers
from fastjax.simulation import Timeline, simulate
from fastjax.swap import swap_ragged_all_to_all
from fastjax.topology import Topology
from fastjax.traced.custom_calls import export_checks
from fastjax.traced.exchange import fast_ragged_all_to_all, fast_ragged_all_to_all_p
from fastjax.traced.plan import TracedPlan, plan_ragged_all_to_all, planning_count

__version__ = _metadata.version("fastjax")

_handlers.register()
_measurement.register()

__all__ = [
    "Options",
    "Plan",
    "SiteStats",
    "Timeline",
    "Topology",
    "TracedPlan",
    "collect_stats",
    "errors",
    "export_checks",
    "fast_ragged_all_to_all",
    "fast_ragged_all_to_all_p",
    "make_plan",
    "moe",
    "options",
    "plan_ragged_all_to_all",
    "planning_count",
    "plot",
    "reset_stats",
    "schedulers",
    "simulate",
    "stats",
    "stats_summary",
    "swap_ragged_all_to_all",
    "traffic",
]


def __dir__() -> list[str]:
    """The public names: other modules of the package are there too, for itself."""
    return [*__all__, "__version__", "network", "simulation"]
