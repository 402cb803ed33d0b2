"""Runs of many cells that go on where they were stopped."""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def digest(sources: Iterable[Path], *asked: object) -> str:
    """Changes when a source does, or what is asked."""
    state = hashlib.sha256(repr(asked).encode())
    for source in sources:
        state.update(source.read_bytes())
    return state.hexdigest()


def part_of(json_file: Path) -> Path:
    """Where cells that are done are kept."""
    return json_file.with_name(json_file.name + ".part")


def finished(path: Path, wanted: str, identity: Callable[[Cell], str]) -> dict[str, Cell]:
    """Cells of a run that was stopped; a last line that was cut short is not one."""
    if not path.exists():
        return {}
    head, *lines = path.read_text().splitlines() or [""]
    if head != wanted:
        return {}
    cells = {}
    for line in lines:
        try:
            cell = json.loads(line)
        except json.JSONDecodeError:
            continue
        cells[identity(cell)] = cell
    return cells


def run(
    keys: Iterable[Cell],
    measure: Callable[[Cell], Cell],
    identity: Callable[[Cell], str],
    *,
    part: Path | None,
    state: str,
) -> list[Cell]:
    """All cells, from the file of those that are done where it has them.

    Args:
      keys: what to measure.
      measure: makes a cell of a key, which it contains.
      identity: tells cells apart, and is the same for a key and its cell.
      part: the file; without one nothing is kept.
      state: the file counts only if it begins with this.
    """
    done: dict[str, Cell] = {}
    if part:
        part.parent.mkdir(parents=True, exist_ok=True)
        done = finished(part, state, identity)
        part.write_text("".join(f"{line}\n" for line in (state, *map(json.dumps, done.values()))))
    cells = []
    for key in keys:
        cell = done.get(identity(key))
        if cell is None:
            cell = measure(key)
            if part:
                with part.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
        cells.append(cell)
    return cells
