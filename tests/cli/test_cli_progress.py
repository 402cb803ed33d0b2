"""The command line: how far a command is."""

import re
import sys

from fastjax.cli import main


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --rows 40 --servers 2 --schedulers"
    assert main([*arguments.split(), "fast", "direct"]) == 0
    *drawn, last = capsys.readouterr().err.split("\r")
    shares = [int(share) for share in re.findall(r"(\d+)%", " ".join(drawn))]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 100)
    assert any(line.rstrip().endswith("20% direct") for line in drawn)
    assert last == drawn[-1].strip() == ""


def test_the_bar_goes_before_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --servers 2 --failed-nics 0 --schedulers"
    assert main([*arguments.split(), "direct"]) == 2
    assert re.search(r"\r +\rscheduler 'direct' sends rows", capsys.readouterr().err)
