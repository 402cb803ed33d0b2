"""What `make gpu` finds out of JAX's allocators, with drivers that are made up.

What it asks a driver by is tested in C++, with memory of the emulated GPU: gpu_allocations_test.cc.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_check import allocation, allocators

ROOT = Path(__file__).parents[2]


class FakeDriver:
    """What a driver says of the memory of an array."""

    found: dict[str, str]

    def __init__(self, helper, library):
        pass

    def find(self, _):
        return self.found


@pytest.mark.parametrize(
    ("found", "read", "stage", "error"),
    [
        ({"error": "cannot find it"}, {}, "not found", "cannot find it"),
        ({"bytes": "9", "offset": "4", "error": "cannot"}, {}, "found", "cannot"),
        (
            {"bytes": "9", "offset": "4", "handle": "ab"},
            {"error": "cannot open"},
            "exported",
            "cannot open",
        ),
        (
            {"bytes": "9", "offset": "4", "handle": "ab"},
            {"data": "00"},
            "exported",
            "other bytes were read",
        ),
        ({"bytes": "9", "offset": "4", "handle": "ab"}, None, "read by another process", ""),
    ],
)
def test_how_far_the_memory_of_an_array_goes(monkeypatch, found, read, stage, error):
    size = 256
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    right = {"data": values[: allocation.READ_BYTES].tobytes().hex()}
    monkeypatch.setattr(allocation, "Driver", FakeDriver)
    monkeypatch.setattr(FakeDriver, "found", dict(found), raising=False)
    monkeypatch.setattr(
        allocation, "_read_elsewhere", lambda *_: right if read is None else dict(read)
    )
    (one,) = allocation.export(Path("helper"), "", [size])
    assert (one["stage"], one["error"], one["array_bytes"]) == (stage, error, size)
    assert one.get("offset") == (4 if "offset" in found else None)


def test_no_memory_of_a_cpu_for_that_of_a_gpu():
    with pytest.raises(SystemExit, match="JAX sees no GPU"):
        allocation.export(Path("helper"), "library.so", [1])


def test_an_allocator_that_gives_no_answer_is_a_finding(tmp_path, monkeypatch, capsys):
    """As long as one does."""
    answers = {"default": [{"array_bytes": 1, "stage": "found", "error": ""}]}

    def ask(kind, _):
        arrays = answers.get(kind, [])
        return {"kind": kind, "arrays": arrays, "error": "" if arrays else "exit status 1: no"}

    monkeypatch.setattr(allocators, "ask", ask)
    file = tmp_path / "allocators.json"
    monkeypatch.setattr(sys, "argv", ["allocators", "--json", str(file), "--helper", "none"])
    assert allocators.main() == 0
    said = capsys.readouterr().out
    assert "default: 1 bytes found\n" in said
    assert "vmm: exit status 1: no\n" in said
    kinds = [each["kind"] for each in json.loads(file.read_text())["allocators"]]
    assert kinds == list(allocators.KINDS)
    answers.clear()
    assert allocators.main() == 1


def test_a_process_that_cannot_ask_says_why(monkeypatch):
    """Here there is no such helper; the error is that of the loader."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks"))
    found = allocators.ask("platform", ["--helper", "/nowhere/helper.so", "--tiny"])
    assert found["kind"] == "platform"
    assert found["arrays"] == []
    assert found["error"].startswith("exit status 1: ")
    assert "/nowhere/helper.so" in found["error"]
