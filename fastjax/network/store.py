"""The key-value store of the job, which its coordinator keeps."""

from __future__ import annotations

from typing import Any

import jax

_PREFIX = "fastjax/network/v1"


class Store:
    """What the processes of a job tell each other, once, before they can talk.

    Args:
      client: that of `jax.distributed`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: bytes) -> bool:
        """Stores a value; false, and nothing changes, where the key has one."""
        try:
            self._client.key_value_set_bytes(f"{_PREFIX}/{key}", value)
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("ALREADY_EXISTS"):
                return False
            raise
        return True

    def get(self, key: str, seconds: float) -> bytes | None:
        """The value of a key; None where it has none after so many seconds."""
        try:
            return self._client.blocking_key_value_get_bytes(
                f"{_PREFIX}/{key}", max(1, round(seconds * 1e3))
            )
        except jax.errors.JaxRuntimeError as error:
            if str(error).startswith("DEADLINE_EXCEEDED"):
                return None
            raise

    def folder(self, name: str) -> dict[str, bytes]:
        """All keys of a folder, without its name, and their values."""
        start = f"{_PREFIX}/{name}/"
        found = self._client.key_value_dir_get_bytes(start)
        return {key.removeprefix(start): value for key, value in found}
