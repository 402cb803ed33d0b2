"""The command line: what a layer would cost, deduplicated and not, and in chunks."""

import functools
import re

import numpy as np
import pytest
from commands import PLAIN, run_command, says_what_is_wrong, simulated_layer, write_trace

from fastjax import Topology
from fastjax.chunking.prices import Tokens
from fastjax.chunking.times import layer_time
from fastjax.cli.shared import text
from fastjax.cli.simulate import layer
from fastjax.simulation import PRESETS, Fabric, layers

run = functools.partial(run_command, command="simulate")

DIRECT = f"{PLAIN} --schedulers direct"
LAYER = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"


def durations(times):
    """Seconds of the exchanges of a layer in one chunk."""
    return {t.part: t.end - t.start for t in times.tasks if t.part not in ("planning", "experts")}


def test_a_layer_by_hand():
    """1000 tokens want all of 4 experts, two on each of two servers of one device.

    A row for each choice is 2000 rows over each NIC, at 1e5 rows/s; deduplicated, 1000, of which
    each has 20 bytes more on the way out, for four weights and four numbers.
    """
    work, theirs, ours = simulated_layer(LAYER, DIRECT)
    each, once = ours.values()
    assert durations(each) == pytest.approx({"out": 20e-3, "back": 20e-3})
    assert durations(once) == pytest.approx({"out": 10.2e-3, "back": 10e-3})
    assert work.traffic.crossing_per_token(deduplicate=False) == 2
    assert work.traffic.crossing_per_token(deduplicate=True) == 1
    assert [times.total for times in theirs.values()] == pytest.approx([40e-3, 20.2e-3])
    assert once.total == pytest.approx(20.2e-3 + once.planning)
    assert layer.compared(work, ours) == {
        "direct": each,
        "direct, deduplicated, predicted best": once,
    }


def test_experts_by_hand(capsys):
    """The same layer, with experts that work 40 ms and 20 µs."""
    arguments = (LAYER, DIRECT, "--seconds-per-row 1e-5 --chunks 1")
    _, theirs, ours = simulated_layer(*arguments)
    experts, best = 40.02e-3, ours["direct, deduplicated"]
    today, forwarded = theirs.values()
    assert today.total == pytest.approx(40e-3 + experts)
    assert forwarded.total == pytest.approx(20.2e-3 + experts)
    assert best.total == pytest.approx(20.2e-3 + experts + best.planning)
    printed = run(capsys, *arguments)
    assert f"predicted best, {text.seconds(best.total)} a layer." in printed
    assert f"it takes {text.seconds(today.total)}, {today.total / best.total:.2f} x as" in printed


def test_a_step_by_hand(capsys):
    """The same, twice as long for experts on the way back; what is planned is planned once."""
    arguments = (LAYER, DIRECT, "--seconds-per-row 1e-5 --chunks 1 --layers 3")
    _, theirs, ours = simulated_layer(*arguments)
    experts, best = 40.02e-3, ours["direct, deduplicated"]
    (today, _), total = theirs.values(), 2 * 20.2e-3 + 3 * experts + best.planning
    assert today.total == pytest.approx(2 * 40e-3 + 3 * experts)
    assert best.total == pytest.approx(total)
    printed = run(capsys, *arguments)
    assert f"{text.seconds(3 * best.total)} a step of 3 layers" in printed
    assert f"today, it takes {text.seconds(3 * today.total)}, " in printed


def test_all_numbers(capsys):
    """`--verbose` adds ways and columns, and the same way is best."""
    arguments = (LAYER, f"{PLAIN} --schedulers direct fast", "--seconds-per-row 1e-6 --chunks 2")
    few, many = run(capsys, *arguments), run(capsys, *arguments, "--verbose")
    assert few.splitlines()[-3:] == many.splitlines()[-3:]
    ways = ("direct", "fast", "direct, deduplicated", "fast, deduplicated")
    assert all(re.search(rf"^  {way}(, predicted best)?  ", many, re.MULTILINE) for way in ways)
    assert "NICs busy" in many
    assert "NICs busy" not in few


def test_a_layer_that_gains_nothing(capsys):
    arguments = "--layer --num-experts 2 --top-k 1 --devices 2 --servers 1 --tokens 1000"
    printed = run(capsys, arguments, DIRECT)
    assert re.search(
        r"Sent all at once, as today, it takes .* ms: fastjax gains nothing\.", printed
    )


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
    _, theirs, ours = simulated_layer(arguments, DIRECT)
    (times,) = ours.values()
    assert durations(times) == pytest.approx({"copies": 1e-3, "sums": 1e-3})
    (today,) = theirs.values()
    assert [today.total, times.total] == pytest.approx([2e-3] * 2, rel=0.1)
    arguments = "--layer --num-experts 4 --top-k 4 --devices 4 --servers 2 --tokens 1000"
    *_, ours = simulated_layer(arguments, DIRECT)
    # 1020 bytes a token over the NIC, then its own tokens and those that landed to the other one.
    assert durations(ours["direct, deduplicated"]) == pytest.approx(
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
    work, theirs, ours = simulated_layer(arguments, PLAIN)
    # All of what two devices send crosses on one rail, and nothing lands at the other one.
    assert durations(ours["fast, deduplicated"])["out"] >= 20.4e-3
    assert not work.traffic.crossing[:, 1].any()
    assert theirs == {}
    assert "Best of fastjax: fast, " in run(capsys, arguments, PLAIN)


# ---- in chunks, with the work of experts


def in_chunks(*arguments):
    """The layer, and its ways: all, and the fastest by whether it deduplicates and its chunks."""
    work, _, ours = simulated_layer(*arguments)
    fastest = layer.fastest(ours).values()
    return work, ours, {(times.deduplicated, times.chunks): times for times in fastest}


def test_chunks_by_hand():
    """1000 tokens of each of two devices want all of 4 experts, two on each device.

    Each works 40 ms on 4000 rows. A row for each choice is 20 ms each way; deduplicated, it is
    10.2 ms out and 10 ms back, and nothing moves inside servers of one device.
    """
    work, ours, times = in_chunks(LAYER, DIRECT, "--seconds-per-row 1e-5 --chunks 4 2")
    assert list(times) == [(way, n) for way in (False, True) for n in (1, 2, 4)]
    wanted = {
        (False, 1): 20 + 40.02 + 20,
        (False, 2): 10 + 40.04 + 10,
        (False, 4): 5 + 40.08 + 5,
        (True, 1): 10.2 + 40.02 + 10,
        (True, 2): 5.1 + 40.04 + 5,
        (True, 4): 2.55 + 40.08 + 2.5,
    }
    for (way, count), found in times.items():
        exposed = found.planning / count
        assert found.total - exposed == pytest.approx(wanted[way, count] * 1e-3), (way, count)
        assert found.experts == pytest.approx(40e-3 + count * 20e-6)
        assert found.network == pytest.approx(20.2e-3 if way else 40e-3)
        assert found.inside == 0
    assert layer.predicted_best(work) == (True, 4)
    assert ours[layer.best_of(ours)] is times[True, 4]
    shown = [times[False, 1], times[True, 1], times[True, 4]]
    assert [*layer.compared(work, ours).values()] == shown


def test_experts_work_on_the_rows_of_the_busiest_device():
    arguments = "--model mixtral-8x7b --devices 8 --servers 2 --tokens 600 --exponent 0.5"
    work = "--seconds-per-row 8.75e-7 --chunks 3 --preset h200 --schedulers fast direct"
    work, ours, times = in_chunks(arguments, work)
    assert times[True, 1].experts == pytest.approx(work.counts.max() * 8.75e-7 + 20e-6)
    assert times[True, 3].experts >= times[True, 1].experts * (1 - 1e-9)
    for way in (False, True):
        whole = [t.total for t in ours.values() if (t.deduplicated, t.chunks) == (way, 1)]
        assert len(whole) == 2
        assert times[way, 1].total == min(whole)


def test_the_prediction_is_that_of_the_library():
    """It is made without popularity, and its time here is simulated with it."""
    arguments = "--layer --num-experts 64 --top-k 4 --devices 16 --exponent 1.2 --tokens 3000"
    work = "--preset h200 --row-bytes 8192 --seconds-per-row 2e-7"
    work, ours, times = in_chunks(arguments, work)
    predicted = layer_time(
        PRESETS["h200"].topology(2), 3000, 4, 8192, 64, seconds_per_row=2e-7, backward=True
    )
    assert layer.predicted_best(work) == (predicted.deduplicated, predicted.chunks)
    (named,) = (name for name in layer.compared(work, ours) if name.endswith(", predicted best"))
    found = times[predicted.deduplicated, predicted.chunks]
    assert layer.compared(work, ours)[named] is found
    assert found.total >= ours[layer.best_of(ours)].total * (1 - 0.01)


def test_one_server():
    """What moves is on links inside the server, and there is nothing to deduplicate."""
    arguments = "--layer --num-experts 2 --top-k 2 --devices 2 --servers 1 --tokens 1000"
    work, _, times = in_chunks(arguments, DIRECT, "--seconds-per-row 1e-6")
    assert {way for way, _ in times} == {False}
    assert times[False, 1].inside == pytest.approx(2e-3)
    assert times[False, 1].network == 0
    assert layer.predicted_best(work) == (False, 1)


def test_the_picture(capsys, tmp_path):
    path = tmp_path / "new" / "layer.svg"
    run(capsys, LAYER, DIRECT, "--seconds-per-row 1e-5 --draw", path)
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--layer --servers 2", "--layer is of a layer, which needs --devices"),
        ("matrix --servers 2 --chunks 2", "--chunks is of a layer, which a trace has; matrix is"),
        ("--layer --devices 4 --servers 2", "needs a trace, --model, or --num-experts and --top-k"),
        ("--layer --devices 4", "want --servers, or a --preset"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --seed -1", "--seed: must be 0 or more"),
        ("TRACE --layer --devices 2 --servers 2", "a trace needs --num-experts"),
        ("--layer --devices 4 --servers 2 --top-k 2", "--num-experts and --top-k"),
        ("--model mixtral-8x7b --top-groups 1 --devices 4 --servers 2", "itself: no --top-groups"),
        ("--model mixtral-8x7b --devices 3 --servers 1", "8 experts do not divide over 3 devices"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --layers 0", "--layers: must be from 1 to"),
        ("--generate uniform --devices 4 --servers 2 --layers 3", "--generate is of one exchange"),
        ("--model mixtral-8x7b --devices 4 --servers 2 --tokens -1", "--tokens: must be 0 or more"),
        ("--layer --generate uniform --devices 4 --servers 2", "--generate is of one exchange"),
        ("TRACE --layer --top-k 2 --devices 2 --servers 2", "a trace says itself what --top-k"),
        ("TRACE --layer --tokens 9 --devices 2 --servers 2", "a trace says itself what --tokens"),
        ("--generate uniform --tokens 9 --servers 2", "--generate is of one exchange, --tokens of"),
        (f"{LAYER} --draw a.png", "--draw of a layer needs the experts' work"),
        (f"{LAYER} --draw a.txt --seconds-per-row 0", "a.txt: "),
        (f"{LAYER} --chunks 2", "--chunks of a layer needs the experts' work"),
        (f"{LAYER} --seconds-per-row nan", "--seconds-per-row: must be from 0 to 3,600, got nan"),
        (f"{LAYER} --seconds-per-row 0 --chunks 0", "--chunks: must be from 1 to 256, got 0"),
        (f"{LAYER} --seconds-per-row 0 --chunks 2 257", "--chunks: must be from 1 to 256, got 257"),
        ("--generate uniform --devices 4 --servers 2 --seconds-per-row 0", "is of one exchange"),
        (f"{LAYER} --copies 2", "--balance needs an expert's bytes: --expert-bytes"),
        (f"{LAYER} --balance --expert-bytes 0", "--expert-bytes: must be from 1 to 1,099,511,627,"),
        (f"{LAYER} --balance --copies 0", "--copies: must be from 1 to 256, got 0"),
        ("--generate uniform --devices 4 --servers 2 --balance", "--generate is of one exchange"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    trace = str(write_trace(tmp_path / "trace"))
    (tmp_path / "matrix").write_text("10 20\n" * 2)
    given = arguments.replace("TRACE", trace).split()
    says_what_is_wrong(capsys, "simulate", *given, told=message)
