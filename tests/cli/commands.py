"""Running commands, and reading what they print."""

import contextlib
import itertools
import json
import math
from pathlib import Path

import numpy as np

from fastjax.cli import main
from fastjax.traffic import RoutingRecord, write_routing_trace

_FOLDER = Path(__file__).parent / "stored"


def run_command(capsys, *arguments, command):
    """What the command prints; texts among the arguments are several words."""
    words = [a.split() if isinstance(a, str) else [str(a)] for a in arguments]
    assert main([command, *itertools.chain.from_iterable(words)]) == 0
    done = capsys.readouterr()
    assert done.err == ""
    return done.out


def record(path):
    return json.loads(path.read_text())


def value(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {name}  ")]
    return line.removeprefix(f"  {name}  ").strip()


def write_trace(folder):
    """Two devices with an expert each, two layers; layer 4 of step 1 is the busiest."""
    folder.mkdir()
    for rank in range(2):
        records = [
            RoutingRecord(step, layer, rank, np.full((tokens, 2), [0, 1 if layer == 4 else 0]))
            for step, layer, tokens in ((0, 3, 1), (0, 4, 1), (1, 3, 1), (1, 4, 5))
        ]
        write_routing_trace(folder / f"router_trace_rank{rank}.jsonl", records)
    return folder


STORED = {
    "plan": "plan --generate pair-zipf --devices 16 --rows 500 --seed 3 --servers 4 "
    "--scheduler fast --failed-nics 1 6",
    "simulate": "simulate --generate pair-zipf --devices 16 --rows 800 --seed 3 --preset h200 "
    "--oversubscription 2 --schedulers fast direct auto",
    "layer": "simulate --model mixtral-8x7b --devices 8 --servers 2 --tokens 600 --exponent 0.5 "
    "--seed 3 --preset h200 --row-flop 3.5e8 --flop-rate 4e14 --chunks 3 "
    "--schedulers fast direct",
}
"""Commands whose record and text are stored: `python tests/cli/commands.py` writes them anew."""


def stored(name):
    """The record and the text of a command of `STORED`."""
    return tuple(_FOLDER / f"{name}.{kind}" for kind in ("json", "txt"))


def check_stored(capsys, tmp_path, name):
    """The command gives what is stored: its text, and its record but for the last bits."""
    found = tmp_path / "new" / "record.json"
    command, *arguments = STORED[name].split()
    out = run_command(capsys, " ".join(arguments), "--json", found, command=command)
    wanted, text = stored(name)
    assert out == text.read_text()
    _check_alike(record(found), record(wanted), name)


def _check_alike(found, wanted, where):
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for key, value in wanted.items():
            _check_alike(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, value in enumerate(wanted):
            _check_alike(found[at], value, f"{where}[{at}]")
    elif isinstance(wanted, float):
        assert math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12), where
    else:
        assert found == wanted, where


if __name__ == "__main__":
    for name, arguments in STORED.items():
        path, text = stored(name)
        with text.open("w") as file, contextlib.redirect_stdout(file):
            assert main([*arguments.split(), "--json", str(path)]) == 0
