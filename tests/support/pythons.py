"""Processes of Python that tests start and wait for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU = {"JAX_PLATFORMS": "cpu"}


def ended(
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """One that has ended, however it did, and what it wrote.

    Args:
      environment: variables beside those of this process.
      without: beginnings of the names of variables of this process that it does not get.
      **options: what else `subprocess.run` takes.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=kept | dict(environment or {}),
        check=False,
        **{"capture_output": True, "text": True} | options,
    )


def printed(*arguments: str | Path, **options: Any) -> str:
    """What one printed that has ended well."""
    done = ended(*arguments, **options)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-20000:]
    return done.stdout
