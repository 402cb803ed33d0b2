"""`python -m fastjax bench`."""

from fastjax.cli.bench.command import main as main
