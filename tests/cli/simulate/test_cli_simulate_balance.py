"""The command line: experts levelled inside servers, beside those at home."""

import functools

import numpy as np
import pytest
from commands import PLAIN, run_command, simulated_layer
from hypothesis import given
from hypothesis import strategies as st

from fastjax import Topology
from fastjax.chunking.levelling import Levelling
from fastjax.cli.shared import text
from fastjax.cli.simulate import balance, layer
from fastjax.traffic import RoutingRecord, write_routing_trace

run = functools.partial(run_command, command="simulate")

DIRECT = f"{PLAIN} --schedulers direct"


def test_balance_by_hand(capsys, tmp_path):
    """All 800 rows are of device 0's experts; 400 of expert 0's 600 go to device 1.

    A row travels for 1 µs and is worked on for 10 µs, weights travel for 50 µs.
    """
    picture, folder = tmp_path / "new" / "loads.svg", tmp_path / "trace"
    folder.mkdir()
    for rank, chosen in enumerate(([0] * 600, [1] * 200)):
        records = [RoutingRecord(0, 0, rank, np.array(chosen)[:, None])]
        write_routing_trace(folder / f"router_trace_rank{rank}.jsonl", records)
    arguments = "--layer --num-experts 4 --devices 2 --servers 1 --seconds-per-row 1e-5 --chunks 1"
    arguments = (folder, arguments, DIRECT, "--balance --expert-bytes 50000")
    work, _, ours = simulated_layer(*arguments)
    (home,) = ours.values()
    planning, (moved, _) = home.planning, work.levelled
    assert (work.traffic.each.sum(0).tolist(), work.slowest) == ([800, 0], 2.0)
    assert home.total == pytest.approx(planning + (200 + 8000 + 20 + 200) * 1e-6)
    assert (moved.traffic.each.sum(0).tolist(), moved.slowest) == ([400, 400], 1.0)
    (levelled,) = layer.simulate(moved, ["direct"]).values()
    joined = 2 * (2 + 4) * 50_000 / 4.8e12
    wanted = (400 + 50 + 4000 + 20 + 400) * 1e-6 + joined
    assert levelled.total == pytest.approx(planning + wanted, rel=1e-4)
    printed = run(capsys, *arguments, "--draw", picture)
    assert picture.read_text().startswith("<?xml")
    assert "2.000 x the mean rows at experts, levelled 1.000 x\n" in printed
    assert "1, at most 1 on a device; 48.83 KiB of weights move\n" in printed
    (placed,) = layer.as_eplb(work, ["direct"]).values()
    assert placed.experts == pytest.approx(4000e-6 + 20e-6)
    assert f"Best of fastjax: direct, levelled, {text.seconds(levelled.total)} a layer." in printed


def test_a_model_says_the_bytes_of_its_experts():
    arguments = "--model gpt-oss-120b --devices 16 --tokens 512 --exponent 0.6 --preset h200"
    work, _, _ = simulated_layer(arguments, "--schedulers direct --copies 2 --chunks 2")
    assert (work.model.copies, work.model.expert_bytes) == (2, 3 * 2880 * 2880 * 2)
    assert work.seconds_per_row == pytest.approx(2 * 3 * 2880**2 / 400e12)
    levelled, _ = work.levelled
    loads = [each.traffic.each.sum(0) for each in (work, levelled)]
    assert [rows.sum() for rows in loads] == [16 * 512 * 4] * 2
    servers = [rows.reshape(2, 8).sum(1).tolist() for rows in loads]
    assert servers[0] == servers[1]
    assert levelled.slowest <= work.slowest


def test_nothing_to_do(capsys):
    arguments = "--layer --num-experts 4 --top-k 1 --devices 2 --servers 2 --tokens 0"
    printed = run(capsys, arguments, DIRECT, "--balance --expert-bytes 1")
    assert "0.000 x the mean rows at experts, levelled 0.000 x\n" in printed
    assert "levelling does not pay.\nThe cost model, which does not know them, would not" in printed


@pytest.mark.parametrize("expert_bytes", [100, 50_000, 10**9])
def test_break_even(expert_bytes):
    topology = Topology(1, 2, scale_up_bandwidth=1e9, scale_up_latency=0)
    model = Levelling(topology, 2, expert_bytes, 1e-5, "gpu")
    counts = np.array([6, 2, 1, 1])
    gains = [many for many in range(1, 2000) if model.gain(counts * many) > 0]
    found = balance.break_even(model, counts, tokens=1)
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
    found = balance.devices_of(choices, quotas)
    assert ((found < 0) == (choices < 0)).all()
    for expert, device in np.ndindex(quotas.shape):
        rows = (choices == expert) & (found == device)
        assert rows.sum() == quotas[expert, device]
        own = (choices[device] == expert).sum()
        assert rows[device].sum() == min(own, quotas[expert, device])


def test_slots_have_their_experts_rows():
    slots, rows = np.array([[2, -1], [0, 1]]), np.array([[5, 6, 3, 0], [4, 0, 1, 2]])
    found = balance.dealt(slots, rows, 4)
    assert found.tolist() == [[5, 1], [6, 2], [3, 4], [0, 0]]


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8))
def test_popularity_places_whole_experts(counts):
    found = balance.by_popularity(np.array(counts), 4)
    assert found.sum(1).tolist() == counts
    assert ((found > 0).sum(0) <= 3).all()  # two experts a device, and a replica
