"""The record as a table."""

from __future__ import annotations

from typing import Any

from gpu_check.moves import moves_of

SCHEMA = "fastjax-gpu-1"

_LEGEND = (
    "Times are medians with quartiles; `of copy` is the share of the bandwidth that a "
    "device-to-device copy of as many bytes reached in the same rounds. `beside it` was timed in "
    "those rounds too, with its time by the line's: above 1x, the line is faster. `moved` is what "
    "the library counted of one exchange: bytes, as multiples of `bytes`, messages and launches."
)
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
    skipped = [f"- {_cell(each['what'])}: {_cell(each['why'])}" for each in record["skipped"]]
    sections = [*head, "## Skipped", "\n".join(skipped) or "Nothing.", "## Parts", parts]
    for part, result in record["results"].items():
        if part == "kernels":
            sections += ["## kernels", _kernels(result), _one_row(result)]
        else:
            sections += [
                f"## {part}",
                _measurements(result),
                *(f"- {_cell(n)}" for n in result["notes"]),
            ]
    return "\n\n".join(sections) + "\n"


def _kernels(result: dict[str, Any]) -> str:
    rows = []
    for sized in result["sizes"]:
        for case in sized["cases"]:
            share, goal = case["share_of_copy"], case["goal"]
            rows.append(
                (
                    case["case"] + ("" if case["right"] else " (WRONG)"),
                    size_of(sized["bytes"]),
                    str(case["runs"]),
                    _times(case["us"]),
                    _rate(case["bytes"], case["us"]),
                    f"{share:.3f}",
                    _goal(f"at least {goal:.2f}", share >= goal) if goal else "",
                )
            )
        rows.append(("copy", size_of(sized["bytes"]), "", *_copy(sized), "1", ""))
    return _table(("rows", "bytes", "runs", "us", "GB/s", "of copy", "goal"), rows)


def _copy(sized: dict[str, Any]) -> tuple[str, str]:
    return _times(sized["copy_us"]), _rate(sized["bytes"], sized["copy_us"])


def _one_row(result: dict[str, Any]) -> str:
    one = {name: f"{found['median']:.2f}" for name, found in result["one_row_us"].items()}
    return (
        f"One row: {one['launch']} us of the host for a launch; {one['waited']} with the wait for "
        f"its end, {one['uploaded']} with its list's way to the device too; a wait for nothing "
        f"{one['empty_stream']}."
    )


def _measurements(result: dict[str, Any]) -> str:
    rows = []
    for made in result["figures"]:
        share = made["share_of_copy"]
        beside = "; ".join(
            f"{name} {_times(found)} ({made['ratios'][name]:.2f}x)"
            for name, found in made["beside"].items()
        )
        rows.append(
            (
                made["what"] + (" (WRONG)" if made["right"] is False else ""),
                size_of(made["bytes"]) if made["bytes"] else "",
                _times(made["us"]),
                "" if share is None else f"{share:.3f}",
                moves_of(made["moved"], made["bytes"]),
                beside,
                "" if made["met"] is None else _goal(made["goal"], made["met"]),
            )
        )
    return _table(("what", "bytes", "us", "of copy", "moved", "beside it", "goal"), rows)


def _goal(text: str, met: bool) -> str:
    return f"{text}: {'met' if met else 'missed'}"


def _times(found: dict[str, float]) -> str:
    return f"{found['median']:.1f} ({found['p25']:.1f}-{found['p75']:.1f})"


def _rate(moved: int, found: dict[str, float]) -> str:
    return f"{moved / found['median'] / 1e3:.0f}"


def size_of(number: int) -> str:
    """In the largest unit that is not larger."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} B"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """As one line of a table."""
    return " ".join(text.replace("|", "/").split())
