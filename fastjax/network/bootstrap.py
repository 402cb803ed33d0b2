"""Opens the network of this process, tells the others, and closes it in the end."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import secrets
import socket
import sys
import threading
import time
import warnings
from importlib import metadata

import jax
import jaxlib.version

from fastjax import _core, config, jax_compat
from fastjax.errors import FastjaxError, ThreadsWarning, UnsupportedError
from fastjax.network import library, modules
from fastjax.network.gather import FOLDER, Gatherer
from fastjax.network.record import WIRE_VERSION, Record
from fastjax.network.store import Store

logger = logging.getLogger(__name__)

_SECRET_BYTES = 16
_STORE_SECONDS = 30.0  # of what is known to be there already
_CLOSE_SECONDS = 2.0
_QUIET_SECONDS = 0.05  # between a launch and its arrival at an exchange

_lock = threading.Lock()
_outcome: Gatherer | FastjaxError | None = None


def ensure_open() -> None:
    """Opens the network, once in the life of a process, and never waits for another process.

    The others may come later, or never; whoever sends to them waits then, as long as an exchange
    waits.

    Raises:
      UnsupportedError: `jax.distributed.initialize()` was not called, there is no UCX library, or
        the network cannot be opened. It stays so, and the other processes are told.
      OptionError: an environment variable means nothing.
    """
    global _outcome  # noqa: PLW0603  # one network a process
    with _lock:
        first = _outcome is None
        if _outcome is None:
            with jax.profiler.TraceAnnotation("fastjax.open_network"):
                _outcome = _open()
        if isinstance(_outcome, FastjaxError):
            raise type(_outcome)(str(_outcome))
    if first:  # the network is open, even if the warning is an error
        _warn_of_threads()


def _open() -> Gatherer | FastjaxError:
    job = jax_compat.job()
    if job is None:
        return UnsupportedError(
            "the exchange spans devices of several processes, which find each other by "
            "jax.distributed; call jax.distributed.initialize() first."
        )
    store = Store(job.client)
    try:
        own = _join(store, job)
    except FastjaxError as error:
        return error
    except jax.errors.JaxRuntimeError as error:
        return UnsupportedError(f"the job's coordinator {job.coordinator} failed: {error}")
    gatherer = Gatherer(store, job.process, job.processes, own)
    gatherer.start()
    # Whatever is registered last runs first: this before JAX's own end.
    atexit.register(_close, gatherer)
    return gatherer


def _warn_of_threads() -> None:
    """Of what stops the job where many launches are queued: see docs/errors.md."""
    version = jaxlib.version.__version__
    if tuple(int(part) for part in version.split(".")[:2]) >= (0, 12) or "NPROC" in os.environ:
        return
    if jax.default_backend() != "cpu":  # it is the threads of CPU devices
        return
    devices = jax.local_device_count()
    warnings.warn(
        f"jaxlib {version} runs out of threads where launches are queued without waiting, and "
        "this job then stops in any collective. Wait for each launch, or set the environment "
        "variable NPROC, before JAX starts, to 33 for each device of a process, here "
        f"{33 * devices}; jaxlib 0.12 and newer need neither.",
        ThreadsWarning,
        stacklevel=2,
    )


def _join(store: Store, job: jax_compat.Job) -> Record:
    """Opens the network, and puts this process's record where the others look for it."""
    key = f"{FOLDER}/{job.process}"
    own = Record(metadata.version("fastjax"), WIRE_VERSION, socket.gethostname())
    try:
        own = dataclasses.replace(own, addresses=_open_network(store, job))
    except FastjaxError as error:
        # Else the others would wait for this process until their time is up.
        store.put(key, dataclasses.replace(own, error=str(error)).pack())
        raise
    try:
        first = store.put(key, own.pack())
    except jax.errors.JaxRuntimeError:
        _core.network_close(0.0)
        raise
    if not first:
        _core.network_close(0.0)
        raise UnsupportedError(
            f"process {job.process} has joined this job's exchanges before. One that was restarted "
            "cannot take the place of the one that ended, which the others still hold connections "
            "to; restart all processes of the job."
        )
    return own


def _open_network(store: Store, job: jax_compat.Job) -> bytes:
    """Opens it as the environment says; returns this process's addresses."""
    options = config.network_from_environment(os.environ)
    path, found_how = library.find(options.library)
    secret = _secret(store)
    try:
        return _core.network_open(
            job.process, job.processes, secret, path, list(options.nics), options.transports
        )
    except RuntimeError as error:
        nics = ",".join(options.nics) or "UCX chooses"
        raise UnsupportedError(
            f"the network between processes cannot be opened: {error}. The UCX library is {path} "
            f"({found_how}; FASTJAX_UCX_LIBRARY=wheel takes that of the libucx wheel), "
            f"FASTJAX_UCX_NICS: {nics}, FASTJAX_UCX_TRANSPORTS: "
            f"{options.transports or 'UCX chooses'}."
        ) from None


def _secret(store: Store) -> bytes:
    """The job's secret: whoever comes first makes it, so that nobody has to wait for somebody."""
    mine = secrets.token_bytes(_SECRET_BYTES)
    if store.put("secret", mine):
        return mine
    theirs = store.get("secret", _STORE_SECONDS)
    if theirs is None or len(theirs) != _SECRET_BYTES:
        raise UnsupportedError("the job's secret in jax.distributed's store is not one.")
    return theirs


def _close(gatherer: Gatherer) -> None:
    """Leaves the job at the end of the program, before JAX does.

    An exchange ends in a process once all that it has to send is sent and all that it is to get is
    there, so whoever has finished its exchanges owes nobody anything, but for bytes in flight:
    `network_close` sees those off. What may still be unfinished is what was launched and never
    waited for. Others may wait for its rows, so it is waited for here, at most as long as an
    exchange waits; except after an exception that ended the program, when the others should rather
    learn of the end at once. (`sys.exit` is no such exception, whatever its argument: Python does
    not tell.) Exchanges that are unfinished then fail, here and in the other processes. JAX's own
    end comes next and holds all processes until the last has come so far, so the addresses of those
    that are done first stay good, and nobody takes them for dead.
    """
    gatherer.stop(_CLOSE_SECONDS)
    if not hasattr(sys, "last_value"):
        _finish_launches(config.current().timeout)
    if not _core.network_close(_CLOSE_SECONDS):
        logger.warning(
            "fastjax's network did not close within %g s: some other process does not answer.",
            _CLOSE_SECONDS,
        )
    modules.forget_executables()


def _finish_launches(seconds: float) -> None:
    """Waits for what has been launched; by asking, since no thread can be started this late.

    Nobody lists running programs. What can be seen of them is the arrays that are not there yet,
    where the program keeps them, and the devices that are at an exchange. A program whose results
    were dropped is seen only once it has come to its first exchange, for which it is given a
    moment: longer computations before it need somebody who keeps, or waits for, the result.
    """
    end = time.monotonic() + seconds
    quiet_since = time.monotonic()
    while (now := time.monotonic()) - quiet_since < _QUIET_SECONDS:
        if not _at_rest():
            quiet_since = now
        if now > end:
            if quiet_since == now:
                logger.warning(
                    "leaving the job with unfinished programs, after %g s; see FASTJAX_TIMEOUT.",
                    seconds,
                )
            return
        time.sleep(0.002)


def _at_rest() -> bool:
    arrays = jax.live_arrays("cpu")
    there = all(array.is_deleted() or array.is_ready() for array in arrays)
    return there and _core.network_unfinished() == 0
