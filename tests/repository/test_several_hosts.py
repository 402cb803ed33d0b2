"""The page on several hosts: its program runs, and its tables name what there is."""

import contextlib
import io
import re
from pathlib import Path
from unittest import mock

import jax
import multiprocess
import pytest

from fastjax import config

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how_to/several_hosts.md"


def program():
    """Runs in a job, which has called jax.distributed.initialize already."""
    (text,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    with (
        mock.patch.object(jax.distributed, "initialize") as initialize,
        mock.patch("sys.argv", ["program.py", "host:1", "2", "0"]),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        exec(compile(text, "program.py", "exec"), {})
    return {"initialized_with": initialize.call_args.args, "printed": printed.getvalue()}


def test_the_program_runs():
    for result in multiprocess.run(__file__, "program", processes=2, devices=4):
        assert result["initialized_with"] == ["host:1", 2, 0]
        assert result["printed"].startswith("process ")


def test_the_reference_has_every_variable():
    """In one table, and no other."""
    ours = {f"FASTJAX_{name}" for name in config._VARIABLES}
    for path in (ROOT / "fastjax").rglob("*.py"):
        assert set(re.findall(r"FASTJAX_[A-Z]+(?:_[A-Z]+)*", path.read_text())) <= ours
    page = (ROOT / "docs/reference.md").read_text()
    listed = re.findall(r"^\| `(FASTJAX_\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(ours)


def messages():
    """What the page's first table quotes: errors of the Python side."""
    table = PAGE.read_text().partition("their exchanges end with the same reason")[2]
    rows = re.findall(r"^\| (`.*?) \|", table.partition("What goes wrong while")[0], re.MULTILINE)
    found = [quoted for row in rows for quoted in re.findall(r"`(.*?)`", row)]
    assert len(found) >= 10
    return found


@pytest.mark.parametrize("message", messages())
def test_messages_are_those_that_are_raised(message):
    source = "".join(p.read_text() for p in (ROOT / "fastjax").rglob("*.py"))
    # As one line, without the quotes at which Python joins strings.
    source = re.sub(r'"\s+f?"', "", source)
    for part in re.split(r"\s*\.\.\.\W*", message):
        assert re.sub(r"\s+", " ", part.strip()) in re.sub(r"\s+", " ", source), part
