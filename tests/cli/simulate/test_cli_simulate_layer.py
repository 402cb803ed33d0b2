"""The command line: what dispatch and combine of a layer would cost, deduplicated and not."""

import functools

import numpy as np
import pytest
from commands import PLAIN, run_command, says_what_is_wrong, simulated_layer, write_trace

from fastjax import Topology
from fastjax.chunking.deduplication import Tokens
from fastjax.cli.shared import text
from fastjax.cli.simulate import layer
from fastjax.simulation import Fabric, layers

run = functools.partial(run_command, command="simulate")


def durations(times):
    """Seconds of the exchanges of a layer in one chunk."""
    return {t.part: t.end - t.start for t in times.tasks if t.part not in ("planning", "experts")}


def test_a_layer_by_hand():
    """1000 tokens want all of 4 experts, two on each of two servers of one device.

    A row for each choice is 2000 rows over each NIC, at 1e5 rows/s; deduplicated, 1000, of which
    each has 20 bytes more on the way out, for four weights and four numbers.
    """
    arguments = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"
    work, ways, _ = simulated_layer(arguments, PLAIN, "--schedulers direct")
    each, once = (way.forward for way in ways.whole)
    assert durations(each) == pytest.approx({"out": 20e-3, "back": 20e-3})
    assert durations(once) == pytest.approx({"out": 10.2e-3, "back": 10e-3})
    assert work.traffic.crossing_per_token(deduplicate=False) == 2
    assert work.traffic.crossing_per_token(deduplicate=True) == 1
    today, forwarded = ways.peers
    assert today.forward.total == pytest.approx(40e-3)
    assert forwarded.forward.total == pytest.approx(20.2e-3)
    assert once.total == pytest.approx(20.2e-3 + once.planning)
    assert layer.compared(ways) == [today, forwarded, *ways.whole]


def test_a_step_by_hand(capsys):
    """The same layer, with experts that work 40 ms and 20 µs, and twice as long on the way back.

    What is planned is planned once for both.
    """
    arguments = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"
    work = "--seconds-per-row 1e-5 --chunks 1 --schedulers direct"
    _, ways, _ = simulated_layer(arguments, PLAIN, work)
    (today, forwarded), (_, best) = ways.peers, ways.whole
    experts, planning = 40.02e-3, best.forward.planning
    assert today.training == pytest.approx(2 * 40e-3 + 3 * experts)
    assert forwarded.training == pytest.approx(2 * 20.2e-3 + 3 * experts)
    assert best.training == pytest.approx(2 * 20.2e-3 + 3 * experts + planning)
    assert best.forward.total == pytest.approx(20.2e-3 + experts + planning)
    printed = run(capsys, arguments, PLAIN, work, "--layers 3")
    assert f"{text.seconds(3 * best.training)} a step of 3 layers" in printed
    assert f"today, it takes {text.seconds(3 * today.training)}, " in printed


def test_forwarded_rows_one_by_one(rng):
    """Rows are counted token by token; each way takes as long as its longer exchange."""
    n, m, top_k, row, crossing = 3, 2, 4, 1000, 1020
    choices = rng.integers(-1, 12, (n * m, 50, top_k))
    over, inside = np.zeros((2, n * m), int)
    for device, tokens in enumerate(choices):
        for token in tokens:
            wanted = {int(expert) // 2 for expert in token if expert >= 0}
            servers = {owner // m for owner in wanted}
            over[device] += len(servers - {device // m})
            for owner in wanted:
                inside[owner] += owner != owner // m * m + device % m
    tokens = Tokens(50, top_k, row, crossing)
    for up, out in ((1e9, 1e12), (1e12, 1e9)):
        topology = Topology(n, m, scale_up_bandwidth=up, scale_out_bandwidth=out)
        rows = layers.forwarded_traffic(choices, 12, topology)
        assert rows.crossing.sum(1).tolist() == over.tolist()
        assert (rows.inside.sum(0) - np.diag(rows.inside)).tolist() == inside.tolist()
        found = layers.forwarded(choices, 12, topology, Fabric(), tokens)
        busiest = max(over.sum() * crossing, inside.sum() * row) / 1e9
        assert busiest / (n * m) < found.out < busiest
        assert found.copies == found.sums == found.planning == 0


def test_what_moves_inside_servers_follows_what_crosses():
    """One token of each of two devices wants the server's other device: 1 ms after nothing."""
    arguments = "--layer --num-experts 2 --top-k 2 --devices 2 --servers 1 --tokens 1000"
    _, ways, _ = simulated_layer(arguments, PLAIN, "--schedulers direct")
    (way,) = ways.whole
    assert durations(way.forward) == pytest.approx({"copies": 1e-3, "sums": 1e-3})
    assert [way.forward.total for way in layer.compared(ways)] == pytest.approx([2e-3] * 2, rel=0.1)
    arguments = "--layer --num-experts 4 --top-k 4 --devices 4 --servers 2 --tokens 1000"
    _, ways, _ = simulated_layer(arguments, PLAIN, "--schedulers direct")
    # 1020 bytes a token over the NIC, then its own tokens and those that landed to the other one.
    assert durations(ways.whole[1].forward) == pytest.approx(
        {"out": 10.2e-3, "copies": 2e-3, "sums": 2e-3, "back": 10e-3}
    )


def test_a_layer_of_a_trace(tmp_path):
    trace = write_trace(tmp_path / "trace")
    arguments = "--layer --devices 2 --num-experts 2 --servers 2 --schedulers direct"
    work, *_ = simulated_layer(trace, arguments)
    assert work.name == f"{trace}, step 1, decoder layer 4, the busiest of 4"
    assert (work.traffic.tokens, work.tokens.row_bytes) == (10, 4096)
    assert work.traffic.crossing_per_token(deduplicate=True) == 1
    work, *_ = simulated_layer(trace, arguments, "--trace-step 0 --trace-layer 3")
    assert work.name == f"{trace}, step 0, decoder layer 3"
    assert work.traffic.crossing_per_token(deduplicate=False) == 1
    assert work.traffic.crossing_per_token(deduplicate=True) == 0.5


def test_failed_nics(capsys):
    arguments = "--layer --num-experts 4 --top-k 4 --devices 4 --servers 2 --tokens 1000"
    arguments += " --schedulers fast --failed-nics 1"
    work, ways, _ = simulated_layer(arguments, PLAIN)
    # All of what two devices send crosses on one rail, and nothing lands at the other one.
    assert durations(ways.whole[1].forward)["out"] >= 20.4e-3
    assert not work.traffic.crossing[:, 1].any()
    assert ways.peers == []
    assert "Best of fastjax: fast, " in run(capsys, arguments, PLAIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--layer --servers 2", "a layer needs --devices"),
        ("--layer --devices 4 --servers 2", "needs a trace, --model, or --num-experts and --top-k"),
        ("--layer --devices 4", "want --servers, or a --preset"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --seed -1", "--seed: must be 0 or more"),
        ("TRACE --layer --devices 2 --servers 2", "a trace needs --num-experts"),
        ("--layer --devices 4 --servers 2 --top-k 2", "--num-experts and --top-k"),
        ("--model mixtral-8x7b --top-groups 1 --devices 4 --servers 2", "itself: no --top-groups"),
        ("--model mixtral-8x7b --devices 3 --servers 1", "8 experts do not divide over 3 devices"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --layers 0", "--layers: must be from 1 to"),
        ("--generate uniform --devices 4 --servers 2 --layers 3", "--generate is of one exchange"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --tokens -1", "tokens must be an integer"),
        ("--layer --generate uniform --devices 4 --servers 2", "--generate is of one exchange"),
        ("TRACE --layer --top-k 2 --devices 2 --servers 2", "a trace says itself what"),
        ("TRACE --layer --num-experts 2 --draw a.png --devices 2 --servers 2", "--draw of a lay"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    trace = str(write_trace(tmp_path / "trace"))
    given = arguments.replace("TRACE", trace).split()
    says_what_is_wrong(capsys, "simulate", *given, told=message)
