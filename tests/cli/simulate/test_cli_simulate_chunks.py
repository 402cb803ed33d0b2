"""The command line: what a layer takes in chunks, with its experts' work."""

import functools

import pytest
from commands import PLAIN, record, run_command, says_what_is_wrong

from fastjax.chunking.times import layer_time
from fastjax.simulation import PRESETS

run = functools.partial(run_command, command="simulate")

DIRECT = f"{PLAIN} --schedulers direct"
LAYER = "--layer --num-experts 4 --top-k 4 --devices 2 --servers 2 --tokens 1000"


def in_chunks(path):
    found = record(path)["in_chunks"]
    return found, {(e["deduplicated"], e["chunks"]): e for e in found["times"]}


def test_chunks_by_hand(capsys, tmp_path):
    """1000 tokens of each of two devices want all of 4 experts, two on each device.

    Each works 40 ms on 4000 rows. A row for each choice is 20 ms each way; deduplicated, it is
    10.2 ms out and 10 ms back, and nothing moves inside servers of one device.
    """
    path = tmp_path / "layer.json"
    chosen = "--seconds-per-row 1e-5 --chunks 4 2"
    run(capsys, LAYER, DIRECT, chosen, "--json", path)
    found, times = in_chunks(path)
    assert list(times) == [(way, n) for way in (False, True) for n in (1, 2, 4)]
    wanted = {
        (False, 1): 20 + 40.02 + 20,
        (False, 2): 10 + 40.04 + 10,
        (False, 4): 5 + 40.08 + 5,
        (True, 1): 10.2 + 40.02 + 10,
        (True, 2): 5.1 + 40.04 + 5,
        (True, 4): 2.55 + 40.08 + 2.5,
    }
    for (way, count), entry in times.items():
        exposed = entry["planning_us"] / count
        assert entry["time_us"] - exposed == pytest.approx(wanted[way, count] * 1e3), (way, count)
        assert entry["experts_us"] == pytest.approx(40e3 + count * 20)
        assert entry["network_us"] == pytest.approx(20.2e3 if way else 40e3)
        assert entry["inside_us"] == 0
        assert entry["by_best"] == pytest.approx(entry["time_us"] / times[True, 4]["time_us"])
    assert found["row_us"] == pytest.approx(10)
    assert found["chunk_overhead_us"] == pytest.approx(20)
    assert found["best"] == times[True, 4]
    assert found["predicted_best"] == times[True, 4]


def test_one_chunk_is_dispatch_and_combine_and_the_experts(capsys, tmp_path):
    path = tmp_path / "layer.json"
    layer = "--model mixtral-8x7b --devices 8 --servers 2 --tokens 600 --exponent 0.5"
    work = "--seconds-per-row 8.75e-7 --chunks 3"
    run(capsys, layer, "--preset h200 --schedulers fast direct", work, "--json", path)
    found, times = in_chunks(path)
    entries = record(path)["schedulers"]
    for way in (False, True):
        alone = min(e["time_with_planning_us"] for e in entries if e["deduplicated"] == way)
        one = times[way, 1]
        assert one["time_us"] == pytest.approx(alone + one["experts_us"])
    # 8 experts on 8 devices: the busiest one's rows.
    rows = (times[True, 1]["experts_us"] - found["chunk_overhead_us"]) / found["row_us"]
    assert rows == pytest.approx(round(rows))
    assert rows > 8 * 600 * 2 / 8
    assert times[True, 3]["experts_us"] >= times[True, 1]["experts_us"] * (1 - 1e-9)


def test_the_prediction_is_that_of_the_library(capsys, tmp_path):
    """It is made without popularity, and its time here is simulated with it."""
    path = tmp_path / "layer.json"
    layer = "--layer --num-experts 64 --top-k 4 --devices 16 --exponent 1.2 --tokens 3000"
    run(capsys, layer, "--preset h200 --row-bytes 8192 --seconds-per-row 2e-7 --json", path)
    found, times = in_chunks(path)
    predicted = layer_time(
        PRESETS["h200"].topology(2), 3000, 4, 8192, 64, seconds_per_row=2e-7, backward=True
    )
    entry = times[predicted.deduplicated, predicted.chunks]
    assert found["predicted_best"] == entry
    assert entry["time_us"] >= found["best"]["time_us"] * (1 - 0.01)


def test_one_server(capsys, tmp_path):
    """What moves is on links inside the server, and there is nothing to deduplicate."""
    path = tmp_path / "layer.json"
    layer = "--layer --num-experts 2 --top-k 2 --devices 2 --servers 1 --tokens 1000"
    run(capsys, layer, DIRECT, "--seconds-per-row 1e-6 --json", path)
    found, times = in_chunks(path)
    assert {way for way, _ in times} == {False}
    assert times[False, 1]["inside_us"] == pytest.approx(2000)
    assert times[False, 1]["network_us"] == 0
    assert found["predicted_best"]["chunks"] == 1


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
        ("--generate uniform --devices 4 --servers 2 --seconds-per-row 0", "--seconds-per-row is"),
        ("--generate uniform --devices 4 --servers 2 --chunks 1", "--chunks is of a layer; want"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    says_what_is_wrong(capsys, "simulate", *arguments.split(), told=message)
