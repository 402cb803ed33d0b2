"""benchmarks/layer_memory.py, small: what is found is in the page."""

import json

import layer_memory


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(layer_memory, "programs", lambda: [(True, 1.25)])
    path = tmp_path / "memory.json"
    arguments = ["--tokens", "256", "--width", "512", "--runs", "1", "--json", str(path)]
    assert layer_memory.main(arguments) == 0
    once, each = json.loads(path.read_text())["cells"]
    assert (once["once"], each["once"]) == (True, False)
    for cell in (once, each):
        # A row for each of 8 choices, of 256 tokens of 1 KiB.
        assert cell["temporary"] > 2
        assert cell["peak"] > cell["temporary"] / 2
    row = f"| forward and backward | 1.25 | {once['temporary']:.0f} | {each['temporary']:.0f} |"
    assert row in capsys.readouterr().out
