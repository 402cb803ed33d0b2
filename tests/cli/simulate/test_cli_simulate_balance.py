"""The command line: experts levelled inside servers, beside those at home."""

import functools

import numpy as np
import pytest
from commands import PLAIN, record, run_command, says_what_is_wrong
from hypothesis import given
from hypothesis import strategies as st

from fastjax import Topology
from fastjax.chunking.levelling import Levelling
from fastjax.cli.simulate import layer_balance, placements
from fastjax.traffic import RoutingRecord, write_routing_trace

run = functools.partial(run_command, command="simulate")

DIRECT = f"{PLAIN} --schedulers direct"
LAYER = "--layer --num-experts 4 --top-k 1 --devices 2 --servers 1 --tokens 10"


def trace(folder, *steps):
    """A trace of choices, as [experts of device 0, of device 1], one each for a token."""
    folder.mkdir()
    for rank in range(2):
        records = [
            RoutingRecord(step, 0, rank, np.array(chosen[rank], np.int64)[:, None])
            for step, chosen in enumerate(steps)
        ]
        write_routing_trace(folder / f"router_trace_rank{rank}.jsonl", records)
    return folder


def test_balance_by_hand(capsys, tmp_path):
    """All 800 rows are of device 0's experts; 400 of expert 0's 600 go to device 1.

    A row travels for 1 µs and is worked on for 10 µs, weights travel for 50 µs.
    """
    path, picture = tmp_path / "layer.json", tmp_path / "new" / "loads.svg"
    routing = trace(tmp_path / "trace", [[0] * 600, [1] * 200])
    layer = "--layer --num-experts 4 --devices 2 --servers 1 --seconds-per-row 1e-5 --chunks 1"
    options = "--balance --expert-bytes 50000"
    run(capsys, routing, layer, DIRECT, options, "--json", path, "--draw", picture)
    found = record(path)["balanced"]
    planning = record(path)["in_chunks"]["times"][0]["planning_us"]
    home, levelled, placed = found["ways"]
    assert (home["loads"], home["slowest_by_mean"], home["copies"]) == ([800, 0], 2.0, 0)
    assert home["time_us"] == pytest.approx(planning + 200 + 8000 + 20 + 200)
    assert home["bytes_of_rows_inside"] == 2 * 200 * 1000
    assert (levelled["loads"], levelled["copies"], levelled["most_copies"]) == ([400, 400], 1, 1)
    assert levelled["bytes_of_weights"] == 50_000
    assert levelled["bytes_of_rows_inside"] == 2 * (400 + 200) * 1000
    joined = 2 * (2 + 4) * 50_000 / 4.8e12 * 1e6
    wanted = 400 + 50 + 4000 + 20 + joined + 400
    assert levelled["time_us"] == pytest.approx(planning + wanted, rel=1e-4)
    assert levelled["by_home"] == pytest.approx(levelled["time_us"] / home["time_us"])
    assert (placed["loads"], placed["bytes_of_weights"]) == ([400, 400], 0)
    assert picture.read_text().startswith("<?xml")


def test_experts_are_placed_by_earlier_steps(capsys, tmp_path):
    """Before, experts 2 and 3 were popular; now expert 0 is, which then got one device only."""
    path = tmp_path / "layer.json"
    routing = trace(tmp_path / "trace", [[2, 3], [2, 3]], [[0] * 50, [0] * 50])
    layer = "--layer --num-experts 4 --devices 2 --servers 1 --seconds-per-row 1e-5 --chunks 1"
    run(capsys, routing, layer, DIRECT, "--balance --expert-bytes 500 --json", path)
    _, levelled, placed = record(path)["balanced"]["ways"]
    assert levelled["loads"] == [50, 50]
    assert sorted(placed["loads"]) == [0, 100]


def test_a_model_says_the_bytes_of_its_experts(capsys, tmp_path):
    path = tmp_path / "layer.json"
    layer = "--model gpt-oss-120b --devices 16 --tokens 512 --exponent 0.6 --preset h200"
    run(capsys, layer, "--schedulers direct --balance --copies 2 --chunks 2 --json", path)
    found = record(path)["balanced"]
    assert found["expert_bytes"] == 3 * 2880 * 2880 * 2
    assert found["row_us"] == pytest.approx(2 * 3 * 2880**2 / 400e12 * 1e6)
    home, levelled, placed = found["ways"]
    assert levelled["most_copies"] <= 2
    assert levelled["bytes_of_weights"] == levelled["copies"] * found["expert_bytes"]
    for way in found["ways"]:
        assert sum(way["loads"]) == 16 * 512 * 4
    servers = np.reshape(levelled["loads"], (2, 8))
    assert (servers.sum(1) == np.reshape(home["loads"], (2, 8)).sum(1)).all()
    assert levelled["slowest_by_mean"] <= home["slowest_by_mean"]
    assert placed["slowest_by_mean"] <= 1.1


def test_nothing_to_do(capsys, tmp_path):
    path = tmp_path / "layer.json"
    layer = "--layer --num-experts 4 --top-k 1 --devices 2 --servers 2 --tokens 0"
    run(capsys, layer, DIRECT, "--balance --expert-bytes 1 --json", path)
    found = record(path)["balanced"]
    assert [way["loads"] for way in found["ways"]] == [[0, 0]] * 3
    assert found["break_even_tokens"] is None
    assert not found["balanced_by_default"]


@pytest.mark.parametrize("expert_bytes", [100, 50_000, 10**9])
def test_break_even(expert_bytes):
    topology = Topology(1, 2, scale_up_bandwidth=1e9, scale_up_latency=0)
    model = Levelling(topology, 2, expert_bytes, 1e-5, "gpu")
    counts = np.array([6, 2, 1, 1])
    gains = [many for many in range(1, 2000) if model.gain(counts * many) > 0]
    found = layer_balance.break_even(model, counts, tokens=1)
    if gains:
        assert found == gains[0]
    else:
        assert found is None or found >= 2000


@st.composite
def dealt_choices(draw):
    """Choices of a few devices, and rows of each expert that each is to compute."""
    devices, tokens, experts = draw(st.integers(1, 4)), draw(st.integers(0, 6)), 5
    cells = draw(st.lists(st.integers(-1, experts - 1), min_size=devices * tokens * 2,
                          max_size=devices * tokens * 2))  # fmt: skip
    choices = np.array(cells, np.int64).reshape(devices, tokens, 2)
    quotas = np.zeros((experts, devices), np.int64)
    for expert in choices[choices >= 0]:
        quotas[expert, draw(st.integers(0, devices - 1))] += 1
    return choices, quotas


@given(dealt_choices())
def test_choices_go_where_they_are_dealt(case):
    choices, quotas = case
    found = placements.devices_of(choices, quotas)
    assert ((found < 0) == (choices < 0)).all()
    for expert, device in np.ndindex(quotas.shape):
        rows = (choices == expert) & (found == device)
        assert rows.sum() == quotas[expert, device]
        own = (choices[device] == expert).sum()
        assert rows[device].sum() == min(own, quotas[expert, device])


def test_slots_have_their_experts_rows():
    slots, rows = np.array([[2, -1], [0, 1]]), np.array([[5, 6, 3, 0], [4, 0, 1, 2]])
    found = placements.dealt(slots, rows, 4)
    assert found.tolist() == [[5, 1], [6, 2], [3, 4], [0, 0]]


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_history_places_whole_experts(counts):
    found = placements.by_history(np.array(counts), np.array(counts), 4)
    assert found.sum(1).tolist() == counts
    assert ((found > 0).sum(0) <= 3).all()  # two experts a device, and a replica


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (f"{LAYER} --copies 2", "--copies is of levelled experts; want --balance too"),
        (f"{LAYER} --expert-bytes 2", "--expert-bytes is of levelled experts"),
        (f"{LAYER} --balance", "--balance needs the bytes of an expert: --expert-bytes"),
        (
            f"{LAYER} --balance --expert-bytes 0",
            "--expert-bytes: must be from 1 to 1,099,511,627,776, got 0",
        ),
        (f"{LAYER} --balance --copies 0", "--copies: must be from 1 to 256, got 0"),
        ("--generate uniform --devices 4 --servers 2 --balance", "--balance is of a layer; want"),
    ],
)
def test_what_is_wrong_is_said(capsys, arguments, message):
    says_what_is_wrong(capsys, "simulate", *arguments.split(), told=message)
