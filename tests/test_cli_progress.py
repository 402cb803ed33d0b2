"""The command line: how far a command is."""

import re
import sys

from fastjax.cli import main


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --rows 40 --servers 2 --schedulers"
    assert main([*arguments.split(), "fast", "direct"]) == 0
    drawn = capsys.readouterr().err.split("\r")
    # Two schedulers, and three things to try: NICs, links inside servers, larger exchanges.
    begun = [line.rstrip() for line in drawn if line.strip()]
    assert begun[0] == f"{'.' * 30}   0% fast"
    assert f"{'#' * 6}{'.' * 24}  20% direct" in begun
    assert f"{'#' * 12}{'.' * 18}  40% NICs twice as fast" in begun
    assert begun[-1] == f"{'#' * 30} 100% exchanges 4 times as large, per byte"
    assert drawn[-1] == ""
    assert drawn[-2].strip() == ""
    assert len(drawn[-2]) >= len(begun[-1])


def test_the_bar_goes_before_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --servers 2 --failed-nics 0 --schedulers"
    assert main([*arguments.split(), "direct"]) == 2
    assert re.search(r"\r +\rscheduler 'direct' sends rows", capsys.readouterr().err)


def test_no_progress_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert main(["simulate", "--generate", "uniform", "--devices", "2", "--servers", "2"]) == 0
    assert capsys.readouterr().err == ""
