"""The page of the record of the kernels' machine code, which `make gpu-compile` makes."""

from typing import Any

SCHEMA = "fastjax-gpu-compile-1"


def page(record: dict[str, Any], title: str) -> str:
    """The record as Markdown."""
    lines = [
        f"# Results: {title}",
        "",
        "Made by `make gpu-compile`, which needs no GPU. " + " ".join(record["compilers"]),
        "",
        "Registers are those of a thread (ROCm's are vector registers). Spilled are bytes of a",
        "thread's that are in memory instead. Loads are 16-byte loads that are under way together",
        "ahead of each group of 16-byte stores, read from the code; they are not read for ROCm.",
        "",
        "| Kernel | GPU | Registers | Spilled | Shared memory | Loads |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {each['name']} | {each['architecture']} | {each['registers']} | {each['spilled']} | "
        f"{each['shared']} | {', '.join(map(str, each['loads'])) or '-'} |"
        for each in record["kernels"]
    ]
    return "\n".join(lines) + "\n"
