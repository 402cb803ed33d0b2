"""What commands have in common."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastjax.errors import FastjaxError


def run(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    command: Callable[[argparse.Namespace], None],
) -> int:
    """Runs a command with its arguments; what is wrong with them goes to stderr.

    Returns:
      The exit status: 0, or 2 where the arguments, or a file that they name, are wrong.
    """
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        command(options)
    except BrokenPipeError:
        raise
    except (FastjaxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def to_json(record: dict[str, Any]) -> str:
    """The record as text, with lists of numbers on one line each."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\[[\d\s.,e-]+\]", lambda m: " ".join(m[0].split()), text) + "\n"


def write_json(path: Path, record: object) -> None:
    """Writes a record, into a new folder where there is none."""
    make_folder_of(path)
    path.write_text(json.dumps(record, indent=1) + "\n")


def make_folder_of(path: Path) -> None:
    """For files that a command is told to write."""
    path.parent.mkdir(parents=True, exist_ok=True)


__all__ = ["make_folder_of", "run", "to_json", "write_json"]
