"""What commands have in common: how they run, their options that are numbers, their files."""

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
    command: Callable[[argparse.Namespace], int | None],
) -> int:
    """Runs a command with its arguments; what is wrong with them goes to stderr.

    Returns:
      The exit status: the command's, or 0; 2 where the arguments, or a file that they name, are
      wrong.
    """
    try:
        options = parser.parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        return command(options) or 0
    except BrokenPipeError:
        raise
    except (FastjaxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def parser(name: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """A command's parser, with --json; where an option is wrong, not all are listed."""
    made = argparse.ArgumentParser(
        prog=f"python -m fastjax {name}",
        usage=f"python -m fastjax {name} [-h] ...",
        description=description,
        epilog=epilog,
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to this file")
    return made


def number(
    least: float, most: float | None = None, kind: Callable[[str], Any] = int
) -> Callable[[str], Any]:
    """The `type=` of options that are numbers within bounds."""

    def convert(text: str) -> Any:
        value = kind(text)
        if not (least <= value and (most is None or value <= most)):
            bounds = f"{least:,} or more" if most is None else f"from {least:,} to {most:,}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse says it of what is no number
    return convert


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Writes a record, with lists of numbers on one line each, into a new folder if need be."""
    text = json.dumps(record, indent=1)
    make_folder_of(path)
    path.write_text(re.sub(r"\[[\d\s.,e-]+\]", lambda m: " ".join(m[0].split()), text) + "\n")


def make_folder_of(path: Path) -> None:
    """For files that a command is told to write."""
    path.parent.mkdir(parents=True, exist_ok=True)
