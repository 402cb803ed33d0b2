"""Text for people: numbers with units, sections of names and values, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastjax.host.site_table import aligned, in_words

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
    return in_words(time, digits=4)


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
    """A title, a line for each entry, and what the columns mean.

    The first and the last column go to the left, what lies between to the right.
    """
    head, rows = cells(columns, entries)
    lines = aligned([head, *rows], f"<{'>' * (len(head) - 2)}<")
    return "\n".join([title, *(f"  {line}" for line in lines), caption])
