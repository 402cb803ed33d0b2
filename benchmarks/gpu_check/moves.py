"""What an exchange moved, in words: without JAX, which the machine's Python may lack."""

from __future__ import annotations

from collections.abc import Mapping

BYTES = ("packed", "sent", "copied", "unpacked", "summed")


def moves_of(counted: Mapping[str, int], size: int) -> str:
    """Bytes as multiples of `size`, those of the exchange: what is packed, sent and unpacked is
    moved three times."""
    if not counted:
        return ""
    total = "nothing"
    if size and any(counted[name] for name in BYTES):
        parts = [f"{name} {counted[name] / size:.2f}" for name in BYTES if counted[name]]
        total = f"{sum(counted[name] for name in BYTES) / size:.2f}x ({', '.join(parts)})"
    return f"{total}; {counted['messages']} messages, {counted['kernels']} launches"
