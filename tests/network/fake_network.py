"""A key-value store and a network that only pretend, for tests of how processes join."""

from __future__ import annotations

import time

import jax


class FakeClient:
    """As much of jax.distributed's client as its store needs.

    Attributes:
      values: what is stored.
      broken: the key that the store fails at.
      gets: how often a single value was asked for.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.broken = ""
        self.gets = 0

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        self._check(key)
        if self.values.setdefault(key, value) is not value:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: key {key} already exists.")

    def blocking_key_value_get_bytes(self, key: str, milliseconds: int) -> bytes:
        self.gets += 1
        end = time.monotonic() + milliseconds * 1e-3
        while key not in self.values:
            self._check(key)
            if time.monotonic() > end:
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: timed out with key: {key}")
            time.sleep(1e-3)
        self._check(key)
        return self.values[key]

    def key_value_dir_get_bytes(self, folder: str) -> list[tuple[str, bytes]]:
        self._check(folder)
        return [item for item in self.values.copy().items() if item[0].startswith(folder)]

    def _check(self, key: str) -> None:
        if self.broken and key.startswith(self.broken):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: gone")


class FakeCore:
    """The extension module's network, which notes what it is asked for."""

    def __init__(self) -> None:
        self.opened: list[tuple] = []
        self.added: dict[int, bytes] = {}
        self.lost: dict[int, str] = {}
        self.closed: list[float] = []
        self.closes = True
        self.at_exchange: list[int] = []  # how many, each time it is asked; then none

    def open(
        self,
        process: int,
        processes: int,
        secret: bytes,
        library: str,
        nics: list[str],
        transports: str,
    ) -> bytes:
        self.opened.append((process, processes, secret, library, nics, transports))
        if "broken" in nics:
            raise RuntimeError("no device broken")
        return f"addresses of {process}".encode()

    def add_peer(self, process: int, addresses: bytes) -> None:
        if addresses == b"refuse me":
            raise RuntimeError("not addresses")
        self.added[process] = addresses

    def peer_lost(self, process: int, why: str) -> None:
        self.lost[process] = why

    def close(self, seconds: float) -> bool:
        self.closed.append(seconds)
        return self.closes

    def unfinished(self) -> int:
        return self.at_exchange.pop(0) if self.at_exchange else 0

    def state(self) -> dict[str, object]:
        return {"open": bool(self.opened), "refused": 0}
