"""The command line: what a layer takes in chunks, with its experts' work."""

import functools

import pytest
from commands import PLAIN, run_command, says_what_is_wrong, simulated_layer

from fastjax.chunking.times import layer_time
from fastjax.cli.simulate import layer
from fastjax.simulation import PRESETS

run = functools.partial(run_command, command="simulate")

DIRECT = f"{PLAIN} --schedulers direct"
LAYER = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"


def in_chunks(*arguments):
    """The layer, and its ways; those in chunks by whether they deduplicate, and how many."""
    work, ways, _ = simulated_layer(*arguments)
    return work, ways, {(w.forward.deduplicated, w.forward.chunks): w.forward for w in ways.split}


def test_chunks_by_hand():
    """1000 tokens of each of two devices want all of 4 experts, two on each device.

    Each works 40 ms on 4000 rows. A row for each choice is 20 ms each way; deduplicated, it is
    10.2 ms out and 10 ms back, and nothing moves inside servers of one device.
    """
    work, ways, times = in_chunks(LAYER, DIRECT, "--seconds-per-row 1e-5 --chunks 4 2")
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
    best = layer.best_of(ways.split)
    assert best.forward is times[True, 4]
    assert layer.predicted(work, ways) is best
    assert layer.compared(ways) == [*ways.peers, *ways.whole, best]
    assert layer.to_draw(ways) == [times[False, 1], times[False, 4], times[True, 1], times[True, 4]]


def test_experts_work_on_the_rows_of_the_busiest_device():
    arguments = "--model mixtral-8x7b --devices 8 --servers 2 --tokens 600 --exponent 0.5"
    work = "--seconds-per-row 8.75e-7 --chunks 3 --preset h200 --schedulers fast direct"
    work, ways, times = in_chunks(arguments, work)
    assert times[True, 1].experts == pytest.approx(work.counts.max() * 8.75e-7 + 20e-6)
    assert times[True, 3].experts >= times[True, 1].experts * (1 - 1e-9)
    for way in (False, True):
        least = min(w.forward.total for w in ways.whole if w.forward.deduplicated == way)
        assert times[way, 1].total == least


def test_the_prediction_is_that_of_the_library():
    """It is made without popularity, and its time here is simulated with it."""
    arguments = "--layer --num-experts 64 --top-k 4 --devices 16 --exponent 1.2 --tokens 3000"
    work = "--preset h200 --row-bytes 8192 --seconds-per-row 2e-7"
    work, ways, times = in_chunks(arguments, work)
    predicted = layer_time(
        PRESETS["h200"].topology(2), 3000, 4, 8192, 64, seconds_per_row=2e-7, backward=True
    )
    found = times[predicted.deduplicated, predicted.chunks]
    assert layer.predicted(work, ways).forward is found
    assert found.total >= layer.best_of(ways.split).forward.total * (1 - 0.01)


def test_one_server():
    """What moves is on links inside the server, and there is nothing to deduplicate."""
    arguments = "--layer --num-experts 2 --top-k 2 --devices 2 --servers 1 --tokens 1000"
    work, ways, times = in_chunks(arguments, DIRECT, "--seconds-per-row 1e-6")
    assert {way for way, _ in times} == {False}
    assert times[False, 1].inside == pytest.approx(2e-3)
    assert times[False, 1].network == 0
    assert layer.predicted(work, ways).forward.chunks == 1


def test_the_picture(capsys, tmp_path):
    path = tmp_path / "new" / "layer.svg"
    run(capsys, LAYER, DIRECT, "--seconds-per-row 1e-5 --draw", path)
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{LAYER} --draw a.png", "--draw of a layer needs the experts' work"),
        (f"{LAYER} --draw a.txt --seconds-per-row 0", "a.txt: "),
        (f"{LAYER} --chunks 2", "--chunks needs the experts' work: --seconds-per-row"),
        (f"{LAYER} --seconds-per-row nan", "--seconds-per-row: must be from 0 to 3,600, got nan"),
        (f"{LAYER} --seconds-per-row 0 --chunks 0", "--chunks: must be from 1 to 256, got 0"),
        (f"{LAYER} --seconds-per-row 0 --chunks 2 257", "--chunks: must be from 1 to 256, got 257"),
        ("--generate uniform --devices 4 --servers 2 --seconds-per-row 0", "is of one exchange"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    says_what_is_wrong(capsys, "simulate", *arguments.split(), told=message)
