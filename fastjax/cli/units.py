"""Numbers as text."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes, in the largest binary unit that leaves 1 or more of it."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


__all__ = ["size"]
