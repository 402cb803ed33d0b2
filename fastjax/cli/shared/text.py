"""Sections of names and values, as text."""

from __future__ import annotations

from collections.abc import Mapping

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


__all__ = ["Section", "as_text", "rate_text"]
