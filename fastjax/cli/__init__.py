"""The command line: `python -m fastjax`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m fastjax                report the environment
       python -m fastjax bench ...      measure exchanges on this machine
       python -m fastjax plan ...       plan the exchange of some traffic
       python -m fastjax simulate ...   simulate what that exchange would cost on a cluster
       python -m fastjax --version
A command explains itself with --help.
"""

_COMMANDS = {
    "": "environment",
    "bench": "bench.command",
    "plan": "plan",
    "simulate": "simulate.command",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: of the command line; by default those of the process.

    Returns:
      The exit status: 0; 1 where a benchmark found wrong results; 2 where the command is wrong or
      something that it needs is not installed.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    status = 0
    try:
        status = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has enough of it
        # At the end of the process, what is left goes nowhere instead of failing once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _run(arguments: list[str]) -> int:
    command, rest = (arguments or [""])[0], arguments[1:]
    if command in _COMMANDS:
        return importlib.import_module(f"fastjax.cli.{_COMMANDS[command]}").main(rest)
    if command == "--version":
        sys.stdout.write(f"fastjax {importlib.import_module('fastjax').__version__}\n")
        return 0
    if command in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    sys.stderr.write(f"fastjax has no command {command!r}.\n{USAGE}")
    return 2


__all__ = ["main"]
