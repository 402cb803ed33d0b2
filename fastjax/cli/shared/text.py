"""Text for people: numbers with units, sections of names and values, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Section = dict[str, str]
Columns = dict[str, Callable[[Any], str]]
"""What a table shows of each of its entries, by the heads of its columns."""


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


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def sections(found: Mapping[str, Section]) -> str:
    """Sections without any markup."""
    width = max(len(name) for section in found.values() for name in section)
    lines = []
    for title, section in found.items():
        lines.append(title)
        lines += [f"  {name:<{width}}  {value}" for name, value in section.items()]
    return "\n".join(lines)


def cells(columns: Columns, entries: Iterable[Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table."""
    return list(columns), [[show(entry) for show in columns.values()] for entry in entries]


def table(title: str, columns: Columns, entries: Iterable[Any], caption: str) -> str:
    """A title, a line for each entry, and what the columns mean."""
    head, rows = cells(columns, entries)
    return "\n".join([title, *_aligned([head, *rows]), caption])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns: the first and the last to the left, what lies between to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        padded = (f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True))
        lines.append("  ".join([f"  {first:<{widths[0]}}", *padded, last]))
    return lines
