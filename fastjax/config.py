"""Options: for a scope, or from the environment. docs/reference.md has the table of all.

The environment is read once: variables of the network between processes when it is opened, others
when fastjax is imported. Options are part of `jax.jit`'s cache key: a program traced under other
options is traced anew. A variable whose name is almost one of ours is warned of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fastjax.errors import OptionError, OptionWarning
from fastjax.scheduling import check_scheduler
from fastjax.scopes import Scope
from fastjax.topology import Topology

_CHOICES = {"overflow": ("error", "drop"), "fallback": ("jax", "error", "never")}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of calls that give none of their own.

    Attributes:
      scheduler: one of `fastjax.schedulers()`.
      topology: the fabric; by default that of the processes.
      timeout: seconds that a device waits for the others of its group.
      check_overlaps: whether exchanges look for output slices that overlap, and refuse them.
      overflow: rows that slices would take from beyond the operand, or put beyond the output.
        "error": the exchange fails. "drop": those rows are discarded, for programs that find it out
        themselves and try again with more room.
      fallback: the exchange of a program for a platform without a backend of fastjax here. "jax":
        `jax.lax.ragged_all_to_all`, without planning. "error": an error, when it is lowered.
        "never": for CUDA and ROCm fastjax's custom calls all the same, as if its library were
        here, for programs that run elsewhere; for others an error.
    """

    scheduler: str = "auto"
    topology: Topology | None = None
    timeout: float = 60.0
    check_overlaps: bool = False
    overflow: str = "error"
    fallback: str = "jax"

    def __post_init__(self) -> None:
        check_scheduler(self.scheduler, "scheduler")
        if self.topology is not None and not isinstance(self.topology, Topology):
            raise OptionError(f"topology must be a fastjax.Topology, got {self.topology!r}.")
        try:
            seconds = float(self.timeout)
        except (TypeError, ValueError):
            seconds = math.nan
        # A bound in milliseconds that int64 holds; the comparison is false for nan.
        if not 0 < seconds <= 1e9:
            raise OptionError(
                f"timeout must be seconds, above 0 and at most 1e9, got {self.timeout!r}."
            )
        object.__setattr__(self, "timeout", seconds)
        if not isinstance(self.check_overlaps, bool):
            raise OptionError(f"check_overlaps must be True or False, got {self.check_overlaps!r}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(f"{name} must be one of {choices}, got {getattr(self, name)!r}.")

    @property
    def timeout_ms(self) -> int:
        """The timeout in whole milliseconds, at least one."""
        return max(1, round(self.timeout * 1e3))


def _switch(environ: Mapping[str, str], name: str) -> bool:
    value = environ.get(name, "").strip() or "0"
    if value not in ("0", "1"):
        raise OptionError(f"{name} must be 0 or 1, got {value!r}.")
    return value == "1"


def from_environment(environ: Mapping[str, str]) -> Options:
    """Options as the environment sets them."""
    found: dict[str, Any] = {}
    for field in ("scheduler", "timeout", *_CHOICES):
        variable = f"FASTJAX_{field.upper()}"
        if environ.get(variable):
            found[field] = environ[variable]
    try:
        options = Options(**found)
    except OptionError as error:
        given = ", ".join(f"FASTJAX_{k.upper()}={v!r}" for k, v in found.items())
        raise OptionError(f"environment ({given}): {error}") from None
    check_overlaps = _switch(environ, "FASTJAX_CHECK_OVERLAPS")
    return dataclasses.replace(options, check_overlaps=check_overlaps)


_PREFIX = "FASTJAX_"
_VARIABLES = (
    *("SCHEDULER", "TIMEOUT", "CHECK_OVERLAPS", "OVERFLOW", "FALLBACK", "STATS"),
    *("UCX_LIBRARY", "UCX_NICS", "UCX_TRANSPORTS"),
    *("GPU_MULTIPROCESSORS", "NCCL_LIBRARY", "EMULATE_GPU"),
)


def warn_of_misspellings(environ: Mapping[str, str]) -> None:
    """Warns of variables that are almost ours: nobody reads them."""
    for variable in environ:
        name = variable.removeprefix(_PREFIX)
        if not variable.startswith(_PREFIX) or name in _VARIABLES:
            continue
        for meant in difflib.get_close_matches(name, _VARIABLES, n=1, cutoff=0.75):
            warnings.warn(
                f"the environment variable {variable} has no effect; is {_PREFIX}{meant} meant?",
                OptionWarning,
                stacklevel=2,
            )


warn_of_misspellings(os.environ)
_environment = from_environment(os.environ)
_scope = jax.make_user_context(default_value=_environment)


def current() -> Options:
    """The options in force."""
    return _scope.value


def options(
    *,
    scheduler: str | None = None,
    topology: Topology | None = None,
    timeout: float | None = None,
    check_overlaps: bool | None = None,
    overflow: str | None = None,
    fallback: str | None = None,
) -> Scope[Options]:
    """Sets options for the calls traced inside `with fastjax.options(...)`; a decorator, too.

    Calling it alone sets nothing, and warns. The returned scope may be entered repeatedly.

    Args:
      scheduler: one of `fastjax.schedulers()`.
      topology: a `fastjax.Topology` with as many devices as the axes it is used with.
      timeout: seconds that a device waits for the others of its group.
      check_overlaps: True: output slices that overlap, where it is not defined which rows stay,
        are an error. For looking for mistakes: each exchange sorts all slices.
      overflow: "error" or "drop": rows out of range; see `fastjax.Options`. Sizes that disagree are
        errors all the same. An exchange that drops plans for the rows that are left, so `plan=`
        gives it a topology and a scheduler only. Layers of experts have room for all rows that they
        send, or drop by options of their own.
      fallback: "jax", "error" or "never": the exchange of programs for platforms without a
        backend here; see `fastjax.Options`.

    Raises:
      OptionError: a value means nothing.
    """
    given = {
        "scheduler": scheduler,
        "topology": topology,
        "timeout": timeout,
        "check_overlaps": check_overlaps,
        "overflow": overflow,
        "fallback": fallback,
    }
    given = {name: value for name, value in given.items() if value is not None}
    dataclasses.replace(current(), **given)  # refused here, not where a scope is entered

    def enter(undo: contextlib.ExitStack) -> Options:
        merged = dataclasses.replace(current(), **given)
        undo.enter_context(_scope(merged))
        return merged

    return Scope("fastjax.options", enter)


class NetworkOptions(NamedTuple):
    """How processes reach each other.

    Attributes:
      library: UCX's libucp: a path or a name that the loader knows, "wheel", or nothing.
      nics: network devices; device k of a process uses the k-th, modulo. None: UCX chooses.
      transports: UCX_TLS of our contexts, or nothing.
    """

    library: str
    nics: tuple[str, ...]
    transports: str


def network_from_environment(environ: Mapping[str, str]) -> NetworkOptions:
    """How the environment says that processes reach each other.

    Raises:
      OptionError: a variable means nothing.
    """
    given = environ.get("FASTJAX_UCX_NICS", "").strip()
    nics = tuple(nic.strip() for nic in given.split(",")) if given else ()
    if not all(re.fullmatch(r"[\w.:@-]+", nic) for nic in nics):
        raise OptionError(
            "FASTJAX_UCX_NICS must be network devices, separated by commas (eth0,eth1 or "
            f"mlx5_0:1,mlx5_1:1); got {','.join(nics)!r}."
        )
    transports = environ.get("FASTJAX_UCX_TRANSPORTS", "").strip()
    if not re.fullmatch(r"(\^?[\w:\\]+(,[\w:\\]+)*)?", transports):
        raise OptionError(
            "FASTJAX_UCX_TRANSPORTS must be transports, separated by commas, as UCX_TLS takes "
            f"them (tcp,sm,self or ^ud); got {transports!r}."
        )
    meant = "the path of UCX's libucp.so.0, a name that the loader knows, or 'wheel'"
    return NetworkOptions(_library(environ, "FASTJAX_UCX_LIBRARY", meant), nics, transports)


def _library(environ: Mapping[str, str], name: str, meant: str) -> str:
    value = environ.get(name, "").strip()
    if "/" in value and not Path(value).is_file():
        raise OptionError(f"{name} must be {meant}; there is no file {value!r}.")
    return value


class GpuOptions(NamedTuple):
    """How GPUs are used.

    Attributes:
      multiprocessors: how many of a GPU's kernels may take; 0: all, beside what computes 32.
      nccl: NCCL or RCCL: a path or a name that the loader knows, or nothing.
      emulate: CPU devices run the GPU transport, on GPUs that the host emulates.
    """

    multiprocessors: int
    nccl: str
    emulate: bool


def gpu_from_environment(environ: Mapping[str, str]) -> GpuOptions:
    """How the environment says that GPUs are used.

    Raises:
      OptionError: a variable means nothing.
    """
    count = environ.get("FASTJAX_GPU_MULTIPROCESSORS", "").strip() or "0"
    if not re.fullmatch(r"[0-9]{1,6}", count):
        raise OptionError(
            "FASTJAX_GPU_MULTIPROCESSORS must be a number of multiprocessors, or 0 for all; got "
            f"{count!r}."
        )
    meant = "the path of libnccl.so.2 or librccl.so.1, or a name that the loader knows"
    nccl = _library(environ, "FASTJAX_NCCL_LIBRARY", meant)
    return GpuOptions(int(count), nccl, _switch(environ, "FASTJAX_EMULATE_GPU"))


def stats_from_environment(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for statistics of exchanges.

    Raises:
      OptionError: the variable means nothing.
    """
    return _switch(environ, "FASTJAX_STATS")
