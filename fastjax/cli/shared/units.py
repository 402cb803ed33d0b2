"""Numbers as text."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes, in the largest binary unit that leaves 1 or more of it."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def seconds(time: float) -> str:
    """Seconds, in the largest unit that leaves 1 or more of them."""
    for unit, length in (("s", 1.0), ("ms", 1e-3)):
        if time >= length:
            return f"{time / length:.4g} {unit}"
    return f"{time * 1e6:.4g} µs"


__all__ = ["seconds", "size"]
