"""The command line: what dispatch and combine of a layer would cost, deduplicated and not."""

import functools

import numpy as np
import pytest
from commands import PLAIN, record, run_command, says_what_is_wrong, value, write_trace

from fastjax import Topology
from fastjax.cli.simulate import layers
from fastjax.cli.simulate.layer_work import Work
from fastjax.simulation import Fabric

run = functools.partial(run_command, command="simulate")


def test_a_layer_by_hand(capsys, tmp_path):
    """1000 tokens want all of 4 experts, two on each of two servers of one device.

    A row for each choice is 2000 rows over each NIC, at 1e5 rows/s; deduplicated, 1000, of which
    each has 20 bytes more on the way out, for four weights and four numbers.
    """
    path = tmp_path / "layer.json"
    arguments = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"
    run(capsys, arguments, PLAIN, "--schedulers direct --json", path)
    each, once = record(path)["schedulers"]
    assert each["dispatch"]["time_us"] == pytest.approx(20_000)
    assert each["combine"]["time_us"] == pytest.approx(20_000)
    assert once["dispatch"]["time_us"] == pytest.approx(10_200)
    assert once["combine"]["time_us"] == pytest.approx(10_000)
    assert each["dispatch"]["bytes_over_nics"] == 4_000_000
    assert once["dispatch"]["bytes_over_nics"] == 2_040_000
    assert each["combine"]["bytes_inside_servers"] == once["combine"]["bytes_inside_servers"] == 0
    assert record(path)["layer"]["crossing_per_token"] == {"each": 2.0, "once": 1.0}
    planning = once["planning_us"]
    ways = {way["way"]: way for way in record(path)["gain"]["ways"]}
    today, forwarded, _, best = ways.values()
    assert today["time_us"] == pytest.approx(40_000)
    assert forwarded["time_us"] == pytest.approx(20_200)
    assert best["time_us"] == pytest.approx(20_200 + planning)
    assert best["by_today"] == pytest.approx((20_200 + planning) / 40_000)


def test_a_step_of_several_layers_by_hand(capsys, tmp_path):
    """The same layer, with experts that work 40 ms and 20 µs, and twice as long on the way back.

    What is planned is planned once for both.
    """
    path = tmp_path / "layer.json"
    arguments = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"
    work = "--seconds-per-row 1e-5 --chunks 1 --layers 3 --json"
    run(capsys, arguments, PLAIN, "--schedulers direct", work, path)
    planning = record(path)["schedulers"][1]["planning_us"]
    today, forwarded, _, best = record(path)["gain"]["ways"]
    experts = 40_020 * 3
    assert today["step_us"] == pytest.approx(3 * (2 * 40_000 + experts))
    assert forwarded["step_us"] == pytest.approx(3 * (2 * 20_200 + experts))
    assert best["step_us"] == pytest.approx(3 * (2 * 20_200 + experts + planning))
    assert best["time_us"] == pytest.approx(20_200 + 40_020 + planning)


def test_forwarded_rows_one_by_one(rng):
    """Bytes are counted token by token; each way takes as long as its longer exchange."""
    n, m, top_k, row, crossing = 3, 2, 4, 1000, 1020
    choices = rng.integers(-1, 12, (n * m, 50, top_k))
    over = inside = 0
    for device, tokens in enumerate(choices):
        for token in tokens:
            wanted = {int(expert) // 2 for expert in token if expert >= 0}
            servers = {owner // m for owner in wanted}
            over += len(servers - {device // m})
            inside += sum(owner != owner // m * m + device % m for owner in wanted)
    size = layers.RowBytes(row, crossing)
    for up, out in ((1e9, 1e12), (1e12, 1e9)):
        topology = Topology(n, m, scale_up_bandwidth=up, scale_out_bandwidth=out)
        found = layers.forwarded(choices, 12, topology, Fabric(), size)
        assert found.dispatch.over_nics == over * crossing
        assert found.combine.over_nics == over * row
        assert found.dispatch.inside == found.combine.inside == inside * row
        busiest = max(found.dispatch.over_nics, inside * row) / 1e9
        assert busiest / (n * m) < found.dispatch.seconds < busiest


def test_what_moves_inside_servers_follows_what_crosses(capsys, tmp_path):
    """One token of each of two devices wants the server's other device: 1 ms after nothing."""
    path = tmp_path / "layer.json"
    arguments = "--layer --num-experts 2 --top-k 2 --devices 2 --servers 1 --tokens 1000"
    run(capsys, arguments, PLAIN, "--schedulers direct --json", path)
    (entry,) = record(path)["schedulers"]
    assert entry["dispatch"]["time_us"] == pytest.approx(1000)
    assert entry["dispatch"]["bytes_inside_servers"] == 2_000_000
    assert [way["time_us"] for way in record(path)["gain"]["ways"]] == pytest.approx(
        [2000] * 2, rel=0.1
    )
    arguments = "--layer --num-experts 4 --top-k 4 --devices 4 --servers 2 --tokens 1000"
    run(capsys, arguments, PLAIN, "--schedulers direct --json", path)
    _, once = record(path)["schedulers"]
    # 1020 bytes a token over the NIC, then its own tokens and those that landed to the other one.
    assert once["dispatch"]["time_us"] == pytest.approx(10_200 + 2_000)
    assert once["combine"]["time_us"] == pytest.approx(10_000 + 2_000)
    assert once["dispatch"]["bytes_inside_servers"] == 4 * 2_000_000


def test_a_layer_of_a_trace(capsys, tmp_path):
    path, trace = tmp_path / "layer.json", write_trace(tmp_path / "trace")
    arguments = "--layer --devices 2 --num-experts 2 --servers 2 --schedulers direct --json"
    out = run(capsys, trace, arguments, path)
    assert value(out, "source") == f"{trace}, step 1, decoder layer 4, the busiest of 4"
    layer = record(path)["layer"]
    assert layer["tokens"] == 10
    assert layer["row_bytes"] == 4096
    assert layer["crossing_per_token"] == {"each": 1.0, "once": 1.0}
    out = run(capsys, trace, arguments, path, "--trace-step 0 --trace-layer 3")
    assert value(out, "source") == f"{trace}, step 0, decoder layer 3"
    assert record(path)["layer"]["crossing_per_token"] == {"each": 1.0, "once": 0.5}


def test_failed_nics(capsys, tmp_path):
    path = tmp_path / "layer.json"
    arguments = "--layer --num-experts 4 --top-k 4 --devices 4 --servers 2 --tokens 1000"
    run(capsys, arguments, PLAIN, "--schedulers fast --failed-nics 1 --json", path)
    _, once = record(path)["schedulers"]
    # All of what two devices send crosses on one rail.
    assert once["dispatch"]["time_us"] >= 20_400
    assert record(path)["fabric"]["failed_nics"] == [1]


def test_nothing_lands_where_a_nic_has_failed():
    topology = Topology(2, 2, nic_bandwidths=(50e9, 0, 50e9, 50e9))
    all_want_expert_0 = np.zeros((4, 10, 1), int)
    work = Work(all_want_expert_0, 4, "", topology, Fabric(), layers.RowBytes(100, 100))
    np.testing.assert_array_equal(work.traffic.crossing.sum(0), [20, 0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--layer --servers 2", "a layer needs --devices"),
        ("--layer --devices 4 --servers 2", "needs a trace, --model, or --num-experts and --top-k"),
        ("--layer --devices 4", "want --servers, or a --preset"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --seed -1", "--seed: must be 0 or more"),
        ("TRACE --layer --devices 2 --servers 2", "a trace needs --num-experts"),
        ("--layer --devices 4 --servers 2 --top-k 2", "--num-experts and --top-k"),
        ("--top-k 2 --generate uniform --devices 4 --servers 2", "--top-k is of a layer; want --l"),
        ("--model mixtral-8x7b --top-groups 1 --devices 4 --servers 2", "itself: no --top-groups"),
        ("--model mixtral-8x7b --devices 3 --servers 1", "8 experts do not divide over 3 devices"),
        ("--model mixtral-8x7b --devices 32 --preset h200", "--devices 8 would have 1 each"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --layers 0", "--layers: must be from 1 to"),
        ("--generate uniform --devices 4 --servers 2 --layers 3", "--layers is of a layer; want"),
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
