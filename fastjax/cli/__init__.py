"""The command line: `python -m fastjax`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import fastjax
from fastjax.cli import environment, plan
from fastjax.cli.bench import command as bench
from fastjax.cli.simulate import command as simulate
from fastjax.errors import FastjaxError

_COMMANDS = {
    "bench": (bench, "measure exchanges on this machine"),
    "plan": (plan, "plan the exchange of some traffic"),
    "simulate": (simulate, "simulate what that exchange would cost on a cluster"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: of the command line; by default those of the process.

    Returns:
      The exit status: 0; 1 where a benchmark found wrong results; 2 where the command, or a file
      that it names, is wrong, or something that it needs is not installed.
    """
    status = 0
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has enough of it
        # At the end of the process, what is left goes nowhere instead of failing once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _run(arguments: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    try:
        return options.run(options) or 0
    except BrokenPipeError:
        raise
    except (FastjaxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    program = "python -m fastjax"
    made = argparse.ArgumentParser(
        prog=program, description="Without a command, reports the environment."
    )
    made.add_argument("--version", action="version", version=f"fastjax {fastjax.__version__}")
    made.set_defaults(run=environment.run)
    commands = made.add_subparsers(title="commands", metavar="COMMAND")
    for name, (module, brief) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=brief,
            usage=f"{program} {name} [-h] ...",  # where an option is wrong, not all are listed
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    return made


__all__ = ["main"]
