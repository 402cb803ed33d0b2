"""Sections of names and values, and tables, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Section = dict[str, str]


def rate_text(name: str, rate: float) -> str:
    """A rate with its unit, which its name tells."""
    if name.endswith("bandwidth"):
        return f"{rate / 1e9:.3g} GB/s"
    if name.endswith(("latency", "overhead")):
        return f"{rate * 1e6:.3g} µs"
    return f"{rate:.3g}"


def as_text(sections: Mapping[str, Section]) -> str:
    """The report without any markup."""
    width = max(len(name) for section in sections.values() for name in section)
    lines = []
    for title, section in sections.items():
        lines.append(title)
        lines += [f"  {name:<{width}}  {value}" for name, value in section.items()]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns: the first and the last to the left, what lies between to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True))
        lines.append("  ".join([f"  {first:<{widths[0]}}", *cells, last]))
    return lines


__all__ = ["Section", "aligned", "as_text", "rate_text"]
