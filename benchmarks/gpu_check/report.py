"""The record as a page; without JAX, which the machine's Python may lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import records

SCHEMA = "fastjax-gpu-1"

_LEGEND = (
    "Times are medians with quartiles; `of copy` is the share of the bandwidth that a "
    "device-to-device copy of as many bytes reached in the same rounds. `beside it` was timed in "
    "those rounds too, with its time by the line's: above 1x, the line is faster. `moved` is what "
    "the library counted of one exchange: bytes, as multiples of `bytes`, messages and launches."
)
_BYTES = ("packed", "sent", "copied", "unpacked", "summed")
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def page(record: dict[str, Any], _title: str = "") -> str:
    """The record as Markdown."""
    gpu, machine, versions = record["gpu"], record["machine"], record["versions"]
    name = f"{gpu['name']}, driver {gpu['driver_version']}" if gpu else "no GPU"
    if record["emulated"]:
        name = "an emulated GPU: these times mean nothing"
    packages = ", ".join(f"{package} {version}" for package, version in versions.items())
    head = [
        "# On a GPU",
        f"{name}. {machine['cpu']}, {machine['cores']} cores. Commit {record['commit']}.",
        packages + ".",
        _LEGEND,
    ]
    parts = _table(
        ("part", "outcome", "s", ""),
        [
            (each["name"], each["status"], f"{each['seconds']:.0f}", _cell(each["detail"]))
            for each in record["parts"]
        ],
    )
    sections = [*head, "## Parts", parts]
    for part, result in record["results"].items():
        if part == "kernels":
            sections += ["## kernels", _kernels(result)]
        else:
            header = ("what", "bytes", "us", "of copy", "moved", "beside it", "goal")
            made = _table(header, map(cells, result["figures"]))
            sections += [f"## {part}", made, *(f"- {_cell(n)}" for n in result["notes"])]
    return "\n\n".join(sections) + "\n"


def _kernels(result: dict[str, Any]) -> str:
    rows = []
    for sized in result["sizes"]:
        size, copy = _size(sized["bytes"]), sized["copy_us"]
        for case in sized["cases"]:
            share, goal = case["share_of_copy"], case["goal"]
            rows.append(
                (
                    case["case"] + ("" if case["right"] else " (WRONG)"),
                    size,
                    str(case["runs"]),
                    _times(case["us"]),
                    f"{case['bytes'] / case['us']['median'] / 1e3:.0f}",
                    f"{share:.3f}",
                    _goal(f"at least {goal:.2f}", share >= goal) if goal else "",
                )
            )
        rate = f"{sized['bytes'] / copy['median'] / 1e3:.0f}"
        rows.append(("copy", size, "", _times(copy), rate, "1", ""))
    return _table(("rows", "bytes", "runs", "us", "GB/s", "of copy", "goal"), rows)


def cells(made: Mapping[str, Any]) -> list[str]:
    """A measurement's line of the table."""
    share = made["share_of_copy"]
    beside = [
        f"{name} {_times(found)} ({made['ratios'][name]:.2f}x)"
        for name, found in made["beside"].items()
    ]
    return [
        made["what"] + ("" if made["right"] else " (WRONG)"),
        _size(made["bytes"]) if made["bytes"] else "",
        _times(made["us"]),
        "" if share is None else f"{share:.3f}",
        _moves(made["moved"], made["bytes"]),
        "; ".join(beside),
        "" if made["met"] is None else _goal(made["goal"], made["met"]),
    ]


def _moves(counted: Mapping[str, int], size: int) -> str:
    """Bytes as multiples of `size`, those of the exchange: what is packed, sent and unpacked is
    moved three times."""
    if not counted:
        return ""
    total = "nothing"
    if size and any(counted[name] for name in _BYTES):
        parts = [f"{name} {counted[name] / size:.2f}" for name in _BYTES if counted[name]]
        total = f"{sum(counted[name] for name in _BYTES) / size:.2f}x ({', '.join(parts)})"
    return f"{total}; {counted['messages']} messages, {counted['kernels']} launches"


def _goal(text: str, met: bool) -> str:
    return f"{text}: {'met' if met else 'missed'}"


def _times(found: dict[str, float]) -> str:
    return f"{found['median']:.1f} ({found['p25']:.1f}-{found['p75']:.1f})"


def _size(number: int) -> str:
    """In the largest unit that is not larger."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} B"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return records.table(header, rows, texts=len(header))


def _cell(text: str) -> str:
    """As one line of a table."""
    return " ".join(text.replace("|", "/").split())
