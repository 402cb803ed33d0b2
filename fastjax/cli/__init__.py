"""The command line: `python -m fastjax`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m fastjax                report the environment
       python -m fastjax bench ...      measure exchanges on this machine
       python -m fastjax plan ...       plan the exchange of some traffic
       python -m fastjax simulate ...   simulate what that exchange would cost on a cluster
       python -m fastjax calibrate ...  measure the rates that plans are made with, and store them
A command explains itself with --help.
"""

_COMMANDS = ("bench", "calibrate", "plan", "simulate")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: of the command line; by default those of the process.

    Returns:
      The exit status: 0; 1 where a benchmark found wrong results or a calibration no sense; 2 where
      the command is wrong or something that it needs is not installed.
    """
    command, *rest = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if command == "":
        from fastjax.cli import report

        report.show(report.collect())
        return 0
    if command in _COMMANDS:
        return importlib.import_module(f"fastjax.cli.{command}").main(rest[:-1])
    if command in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    sys.stderr.write(f"fastjax has no command {command!r}.\n{USAGE}")
    return 2


__all__ = ["main"]
