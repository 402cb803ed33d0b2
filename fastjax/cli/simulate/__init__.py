"""`python -m fastjax simulate`."""

from fastjax.cli.simulate.command import main as main
