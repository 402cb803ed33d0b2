"""What the records of all benchmarks have in common: where figures come from, tables, files."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def stamp(schema: str) -> dict[str, Any]:
    """The head of a record: what it is, and what it was made on and with."""
    from fastjax.cli.shared.machine import machine, versions  # gpu_check builds fastjax first

    return {"schema": schema, "machine": machine(), "versions": versions()}


def text(record: dict[str, Any]) -> str:
    """As JSON, with a line for each element of a list of objects: versions can be compared."""
    return _lines(record, "") + "\n"


def _lines(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, dict) and any(map(_has_objects, value.values())):
        items = [f"{inner}{json.dumps(name)}: {_lines(v, inner)}" for name, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and _has_objects(value):
        return "[\n" + ",\n".join(inner + _lines(v, inner) for v in value) + f"\n{indent}]"
    return json.dumps(value)


def _has_objects(value: Any) -> bool:
    """Whether a list of objects is in it."""
    if isinstance(value, dict):
        return any(map(_has_objects, value.values()))
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def replace(path: Path, content: str | bytes) -> None:
    """Writes a file, of which whoever reads meanwhile, or a run that is killed, has all or the old.

    The folder that it is in is made if there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    partial.replace(path)


def publish(page: str, record: dict[str, Any], path: Path | None) -> None:
    """Prints a page, and writes its record."""
    sys.stdout.write(page)
    if path is not None:
        replace(path, text(record))


def spread(seconds: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median and quartiles, in milliseconds."""
    import numpy as np  # gpu_check says first what a machine lacks

    points = np.percentile(seconds, [25, 50, 75]) * 1e3
    return dict(zip(("p25", "median", "p75"), points.round(digits).tolist(), strict=True))


def read(path: Path) -> dict[str, Any]:
    """A record that `publish` wrote."""
    return json.loads(path.read_text())


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 2) -> str:
    """A table of Markdown; columns behind the first `texts` are numbers."""
    marks = ["---" if i < texts else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, marks, *rows))


def conditions(record: dict[str, Any]) -> str:
    """Machine and versions, as a sentence for each."""
    machine, versions = record["machine"], record["versions"]
    tunables = machine["glibc_tunables"]
    extra = f" `GLIBC_TUNABLES={tunables}`." if tunables else ""
    return (
        f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, load average {machine['load_average']} at the start. "
        f"jax {versions['jax']}, jaxlib {versions['jaxlib']}, numpy {versions['numpy']}, "
        f"Python {versions['python']}, fastjax {versions['fastjax']}.{extra}"
    )
