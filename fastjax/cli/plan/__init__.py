"""`python -m fastjax plan`."""

from fastjax.cli.plan.command import main as main
