"""What it is worth that tokens cross once: cells by hand, what is judged, and the page."""

import json

import deduplication
import deduplication_tables as tables
import numpy as np
import pytest
import to_markdown

from fastjax import Topology
from fastjax.cli.simulate import layers
from fastjax.simulation import Fabric
from fastjax.traffic import Routing, layer_traffic

RATES = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 1e8, "transfer_overhead": 0.0}
RATES |= {"scale_up_latency": 0.0, "scale_out_latency": 0.0}


@pytest.fixture
def few_tokens(monkeypatch):
    monkeypatch.setattr(deduplication, "TOKENS", 32)
    deduplication.routed.cache_clear()
    yield
    deduplication.routed.cache_clear()


def by_hand(monkeypatch, choices, num_experts, per_server, row=1000):
    """A problem at round rates; a row crosses with as many bytes as it has."""
    choices = np.array(choices)
    servers = len(choices) // per_server
    routing = Routing(num_experts, choices.shape[2])
    layer = layer_traffic(choices, servers=servers, num_experts=num_experts)
    monkeypatch.setattr(deduplication, "routed", lambda *_: (choices, layer))
    monkeypatch.setattr(deduplication, "TOKENS", choices.shape[1])
    problem = deduplication.Problem(routing, servers, 0.0, 0, row)
    problem.topology = Topology(servers, per_server, **RATES)
    problem.fabric = Fabric()
    problem.size = layers.RowBytes(row, row)
    return problem


def test_every_way_by_hand(monkeypatch):
    """Each device's 800 tokens want four experts: both of each device of the other server."""
    away = [[4, 5, 6, 7]] * 800, [[0, 1, 2, 3]] * 800
    problem = by_hand(monkeypatch, [away[0], away[0], away[1], away[1]], 8, 2)
    planning = problem.ours(once=True).planning
    # 0.8 MB of each device at 1e8 bytes/s, or four times as much; and 1.6 MB of four to the other
    # device of the server at 1e9.
    crossing, inside = 8e-3, 1.6e-3
    assert problem.ours(once=False).seconds == pytest.approx(2 * 4 * crossing, rel=0.1)
    once = 2 * (crossing + inside)
    assert problem.ours(once=True).seconds - planning == pytest.approx(once)
    device = problem.once_for_each_device()
    assert device == pytest.approx(2 * (crossing + inside / 2), rel=1e-3)
    bound = problem.bound(once=True)
    assert bound == pytest.approx(2 * crossing)
    assert problem.bound(once=False) == pytest.approx(8 * crossing)
    assert deduplication.both_ways(problem.parts(1)) - planning == pytest.approx(once)
    four = problem.parts(4)
    assert deduplication.both_ways(four) == pytest.approx(2 * (crossing + inside / 4), rel=1e-2)
    # In chunks NICs never wait: the way back begins while others cross.
    found = deduplication.in_chunks(four)
    assert found["total"] == pytest.approx(2 * crossing, rel=1e-2)
    assert found["network"] == pytest.approx(2 * crossing)
    assert found["inside"] == pytest.approx(2 * inside)
    # Of 800 copies to the other device, the last piece is left when all have crossed.
    assert problem.two_tier(once=True) == pytest.approx(2 * crossing, rel=0.01)
    assert problem.two_tier(once=True) > 2 * crossing
    assert problem.two_tier(once=False) == pytest.approx(8 * crossing, rel=0.03)
    assert problem.handed_on() == pytest.approx(2 * crossing, rel=0.01)


def test_handed_on_has_balanced_nics(monkeypatch):
    """One device has all tokens, which two NICs share; the peer sends them over one."""
    away, here, there = ([experts] * 800 for experts in ([2, 3], [0, 0], [2, 2]))
    problem = by_hand(monkeypatch, [away, here, there, there], 4, 2)
    assert problem.two_tier(once=True) == pytest.approx(2 * 8e-3, rel=0.05)
    assert problem.handed_on() == pytest.approx(8e-3, rel=0.1)


def test_chunks_are_of_all_tokens(monkeypatch):
    """The first half of the tokens stays, so that only the second chunk crosses."""
    stays, goes = [[0]] * 400 + [[1]] * 400, [[1]] * 400 + [[0]] * 400
    problem = by_hand(monkeypatch, [stays, goes], 2, 1)
    first, second = problem.parts(2)
    assert (first.out, first.back) == (0, 0)
    assert second.out == second.back == pytest.approx(4e-3)
    three = problem.parts(3)
    assert sum(part.out for part in three) == pytest.approx(4e-3)


def test_cells_are_what_layers_say(few_tokens):
    key = {"kind": "layer", "model": "gpt-oss-120b", "servers": 2, "exponent": 0.8, "seed": 1}
    cell = deduplication.layer(key)
    problem = deduplication.Problem(deduplication.ROUTINGS["gpt-oss-120b"], 2, 0.8, 1, 5760)
    assert cell.items() >= key.items()
    assert cell["device_bytes"] == 32 * 5760
    assert problem.size == layers.RowBytes(5760, 5760 + 4 * 5)
    assert cell["seconds"]["each"] == problem.ours(once=False).seconds
    assert cell["seconds"]["once"] == problem.ours(once=True).seconds
    assert cell["seconds"]["two-tier once"] == problem.two_tier(once=True)
    assert cell["crossing_per_token"]["once"] < cell["crossing_per_token"]["each"]
    assert list(cell["chunks"]) == ["1", "2", "3", "4", "6", "8"]
    assert cell["chunks"]["3"] == deduplication.in_chunks(problem.parts(3))
    assert cell["chunks"]["1"]["total"] == pytest.approx(cell["seconds"]["once"])
    assert str(cell["default_chunks"]) in cell["chunks"]
    assert cell["bound"] == {w: problem.bound(once=w == "once") for w in ("each", "once")}
    assert tables.wrong({"layers": [cell], "choices": []}) == []
    key = {"kind": "choice", "top_k": 4, "servers": 1, "exponent": 0.0, "row_bytes": 256}
    cell = deduplication.choice(key)
    assert cell["default"] == "each"
    assert list(cell["seconds"]) == ["each"]
    cell = deduplication.choice(key | {"servers": 2})
    assert list(cell["seconds"]) == ["each", "once"]
    assert tables.regret(cell) >= 0


def made_up(once, **changes):
    seconds = {"each": 4e-3, "once": once, "two-tier each": 4e-3, "two-tier once": 2e-3}
    seconds |= {"once for each device": 2.5e-3, "in 2 parts": 2.4e-3, "in 4 parts": 2.2e-3}
    totals = {"1": once, "2": 2.2e-3, "3": 2.1e-3, "4": 2e-3, "6": 2.3e-3, "8": 2.4e-3}
    return {
        "kind": "layer",
        "model": "m",
        "servers": 2,
        "exponent": 0.0,
        "seed": 0,
        "device_bytes": 16_000_000,
        "crossing_per_token": {"each": 4.0, "once": 1.0},
        "default": "once",
        "bound": {"each": 3.9e-3, "once": 1.9e-3},
        "chunks": {n: lanes(total, 1.9e-3, 0.5e-3) for n, total in totals.items()},
        "default_chunks": 3,
        "seconds": seconds | {"handed on": 2e-3},
    } | changes


def lanes(total, network, inside):
    return {"total": total, "network": network, "inside": inside}


def a_choice(each, once, default, **changes):
    cell = {"kind": "choice", "top_k": 2, "servers": 8, "row_bytes": 256, "exponent": 0.0}
    return cell | {"default": default, "seconds": {"each": each, "once": once}} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"once": 9e-3}, "one chunk takes"),
        ({"bound": {"each": 4.1e-3, "once": 1.9e-3}}, "each takes 0.004 s, and NICs need"),
        ({"bound": {"each": 3.9e-3, "once": 1.95e-3}}, None),
        ({"bound": {"each": 3.9e-3, "once": 2.05e-3}}, "two-tier once takes 0.002 s, and NICs"),
        ({"crossing_per_token": {"each": 1.0, "once": 1.1}}, "more rows cross once"),
        ({"chunks": {"1": lanes(3e-3, 1e-3, 3.1e-3)}}, "1 chunks take 0.003 s, less than a lane"),
        ({"chunks": {"1": lanes(float("nan"), 0, 0)}}, "in 1 chunks takes nan s"),
        ({"seconds": {"two-tier once": float("inf"), "once": 3e-3}}, "two-tier once takes inf s"),
        ({"seconds": {"two-tier each": 0.0, "once": 3e-3}}, "two-tier each takes 0.0 s"),
    ],
)
def test_figures_that_cannot_be(changes, message):
    cell = made_up(3e-3)
    seconds = cell["seconds"] | changes.pop("seconds", {})
    if "once" in changes:
        seconds["once"] = changes.pop("once")
    record = {"layers": [cell | changes | {"seconds": seconds}], "choices": []}
    found = tables.wrong(record)
    assert any(message in line for line in found) if message else not found
    assert all(line.startswith("kind=layer model=m servers=2") for line in found)


def test_a_choice_that_cannot_be():
    assert tables.wrong({"layers": [], "choices": [a_choice(1.0, 1.0, "each")]}) == []
    assert tables.wrong({"layers": [], "choices": [a_choice(1.0, 0.0, "each")]}) != []


def in_chunks(seconds, network=1.9e-3, inside=0.5e-3, **changes):
    chunks = {"1": lanes(3e-3, network, inside), "4": lanes(seconds, network, inside)}
    return made_up(3e-3, **({"chunks": chunks, "default_chunks": 4} | changes))


def test_where_ours_is_level_ahead_or_behind():
    late = [in_chunks(2.1e-3, inside=2e-3, model="a"), in_chunks(2.2e-3, model="b")]
    words = tables.outcome([in_chunks(1.97e-3), in_chunks(2.01e-3), in_chunks(1.99e-3), *late])
    assert "more than 1% in 1 of 5 layers, level in 2, and behind in 2. Of these: in 1, " in words
    assert "what crosses: up to 5.0% (a, 2 x 8, even); in 1, NICs" in words
    assert "up to 10.0% (b, 2 x 8, even). In the number of chunks that the cost model" in words
    assert "takes, 3 are level or ahead. " in words
    assert words.endswith("0 are in 4 chunks.")
    assert "level in 0, and behind in 0. In the" in tables.outcome([in_chunks(1.9e-3)])
    assert "takes, 0 are" in tables.outcome([in_chunks(1.9e-3, default_chunks=1)])
    assert tables.best(in_chunks(2.0e-3)) == "4"
    assert tables.best(in_chunks(3.5e-3)) == "1"


def test_page(tmp_path):
    record = {"schema": tables.SCHEMA, "preset": "h200", "tokens": 4096, "experts": 256}
    record["machine"] = {"cpu": "c", "usable_cores": 1, "memory_gib": 2, "system": "s"}
    record["machine"] |= {"load_average": 0.5, "glibc_tunables": ""}
    names = ("jax", "jaxlib", "numpy", "python", "fastjax")
    record["versions"] = dict.fromkeys(names, "1")
    record["layers"] = [made_up(s, seed=i) for i, s in enumerate((2e-3, 3e-3, 3.2e-3))]
    record["choices"] = [a_choice(1e-3, 1.25e-3, "once"), a_choice(1.0, 1.5, "each", top_k=1)]
    page = to_markdown.PAGES[tables.SCHEMA](record, "t")
    assert (
        "more than 1% longer than two-tier, both once, in 2 of 3 layers; a device has 16 MB" in page
    )
    line = "| m | even | 2 x 8 | 4.00 | 1.00 | once | 4.00 | 3.00 | 4.00 | 2.00 | 0.75 | 1.50 |"
    assert f"{line} 1.00 |" in page
    line = "| m | even | 2 x 8 | 1.50 | 1.10 | 1.05 | 1.00 | 1.00 |"
    assert f"{line} 1, 4 | 0.95 | 0.25 | 1.05 | 3 |" in page
    assert "ahead of two-tier by more than 1% in 0 of 3 layers, level in 3, and" in page
    assert "| m | even | 2 x 8 | 1.50 | 1.25 | 1.20 | 1.10 | 1.00 |" in page
    assert "takes 1.00 to 1.00 of the peer's time, as it is 1.00 to 1.60" in page
    assert "| even | 2 | 1 | 1 | 25.0% | 8 x 8, 256 B |" in page
    assert "| even | 1 | 1 | 0 | 0.0% | - |" in page
    assert "| even | 2 | 8 x 8, 256 B | once | 1000 | 1250 | 25.0% |" in page
    assert tables.worst([a_choice(1.0, 1.0, "each")]) == ""
    assert tables.place(a_choice(1, 1, "each", row_bytes=4096)) == "8 x 8, 4 KiB"
    assert tables.popularity(0.8) == "Zipf 0.8"


def test_the_program(capsys, monkeypatch, tmp_path, few_tokens):
    path = tmp_path / "new" / "deduplication.json"
    words = ["--models", "gpt-oss-120b", "--servers", "2", "--seeds", "1", "--rows", "256"]
    status = deduplication.main([*words, "--json", str(path)])
    record = json.loads(path.read_text())
    assert status == 0
    assert tables.wrong(record) == []
    assert capsys.readouterr().out.startswith("# Tokens that cross once\n")
    assert [cell["exponent"] for cell in record["layers"]] == [0.0, 0.8]
    assert len(record["choices"]) == 4 * 4 * 3
    assert list(path.parent.iterdir()) == [path]
    for changes, wanted in (({}, 0), ({"bound": {"each": 1.0, "once": 1.0}}, 1)):
        cells = [made_up(2e-3, **changes), a_choice(1, 1, "each")]
        monkeypatch.setattr(deduplication, "run", lambda _, cells=cells: cells)
        assert deduplication.main(words) == wanted
    assert "NICs need 1.0 s" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--seeds 0", "--servers 1", "--rows 0", "--models mixtral-8x7b"])
def test_what_is_no_run_is_refused(capsys, words):
    with pytest.raises(SystemExit):
        deduplication.parse(words.split())
    assert "--seeds and --rows must be 1" in (told := capsys.readouterr().err) or "invalid" in told
