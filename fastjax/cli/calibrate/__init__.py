"""`python -m fastjax calibrate`."""

from fastjax.cli.calibrate.command import main as main
