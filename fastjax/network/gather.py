"""Connects to the other processes as they join."""

from __future__ import annotations

import threading

import jax

from fastjax import _core
from fastjax.network.record import Record
from fastjax.network.store import Store

FOLDER = "process"
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class Gatherer:
    """Hands the others' addresses to the network, each when it is there, from a thread of its own.

    Args:
      store: where they put them.
      process, processes: this one's number, and how many there are.
      own: this one's record.
    """

    def __init__(self, store: Store, process: int, processes: int, own: Record) -> None:
        self._store = store
        self._own = own
        self._missing = set(range(processes)) - {process}
        # With many processes the whole folder is not small; it is asked for less often.
        self._longest_pause = max(_LONGEST_PAUSE, processes / 64)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastjax-peers", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Ends, waiting so long at most for what it is at."""
        self._stop.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        try:
            while self._missing and not self._stop.is_set():
                found = self._store.folder(FOLDER)
                for process in sorted(self._missing):
                    if str(process) in found:
                        self._connect(process, found[str(process)])
                if self._missing:
                    self._await_one(pause)
                    pause = min(2 * pause, self._longest_pause)
        except jax.errors.JaxRuntimeError as error:
            if not self._stop.is_set():
                self._give_up(f"the job's coordinator cannot be asked for its addresses: {error}")

    def _await_one(self, seconds: float) -> None:
        """A pause, which ends early for the one process that most often is all that is missing."""
        while seconds > 0 and not self._stop.is_set():
            slice_ = min(seconds, 0.25)
            process = min(self._missing)
            data = self._store.get(f"{FOLDER}/{process}", slice_)
            if data is not None:
                return self._connect(process, data)
            seconds -= slice_
        return None

    def _connect(self, process: int, data: bytes) -> None:
        self._missing.discard(process)
        try:
            other = Record.unpack(data)
            why = self._own.why_not(other)
            if not why:
                _core.network_add_peer(process, other.addresses)
        except (RuntimeError, ValueError) as error:
            why = f"has addresses that cannot be used: {error}"
        if why:
            _core.network_peer_lost(process, f"process {process} {why}")

    def _give_up(self, why: str) -> None:
        for process in sorted(self._missing):
            _core.network_peer_lost(process, f"process {process}: {why}")
        self._missing.clear()
