"""What a process tells the others of itself."""

from __future__ import annotations

import dataclasses
import json

# What processes say to each other once connected. Two of different numbers do not understand each
# other, so it changes with anything that they send.
WIRE_VERSION = 2


@dataclasses.dataclass(frozen=True)
class Record:
    """A process of the job, as the others see it.

    Attributes:
      version: of fastjax there; plans are the same only where it is.
      wire: the version of what is said over the network.
      host: its name.
      error: why it cannot be reached, if so.
      addresses: of its network; opaque.
    """

    version: str
    wire: int
    host: str
    error: str = ""
    addresses: bytes = b""

    def pack(self) -> bytes:
        """A line of JSON, and the addresses."""
        fields = dataclasses.asdict(self)
        del fields["addresses"]
        return json.dumps(fields).encode() + b"\n" + self.addresses

    @classmethod
    def unpack(cls, data: bytes) -> Record:
        """The record in `data`; ValueError where there is none."""
        head, _, addresses = data.partition(b"\n")
        try:
            fields = json.loads(head)
            found = {name: kind(fields[name]) for name, kind in _KINDS.items()}
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a process's record: {head[:100]!r}") from error
        return cls(**found, addresses=addresses)

    def why_not(self, other: Record) -> str:
        """Why this process and another cannot exchange; empty if they can."""
        if other.error:
            return f"on host {other.host} has no network: {other.error}"
        if (other.version, other.wire) != (self.version, self.wire):
            return (
                f"on host {other.host} runs fastjax {other.version} (wire {other.wire}), this one "
                f"on host {self.host} {self.version} (wire {self.wire}); install the same version "
                "everywhere"
            )
        return ""


_KINDS = {"version": str, "wire": int, "host": str, "error": str}
