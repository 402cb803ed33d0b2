"""What levelling saves and costs, by hand, and the rule that is made of it."""

import dataclasses

import numpy as np
import pytest

from fastjax import Topology
from fastjax.chunking import levelling
from fastjax.chunking.levelling import Levelling

PLAIN = Topology(1, 2, scale_up_bandwidth=1e9, scale_up_latency=0, scale_out_latency=0)
MODEL = Levelling(PLAIN, 4, 50_000, 1e-5, "gpu")


def test_a_row_is_two_flop_for_each_element():
    # 3 matrices of 7168 x 2048 at 400 TFLOP/s in bf16; half of that in float32.
    elements = 3 * 7168 * 2048
    assert levelling.row_seconds(2 * elements, "gpu") == pytest.approx(2 * elements / 400e12)
    assert levelling.row_seconds(4 * elements, "cuda") == pytest.approx(2 * elements / 200e12)
    assert levelling.row_seconds(4 * elements, "cpu") == pytest.approx(2 * elements / 50e9)


@pytest.mark.parametrize(
    ("expert_bytes", "seconds_per_row", "copies", "wanted"),
    [
        (50_000, 1e-5, 4, 5),  # 50 µs of weights
        (50_001, 1e-5, 4, 6),
        (1, 1.0, 4, 1),
        (0, 1.0, 4, 0),
        (1, 0.0, 4, (2**31 - 1) // 4),
        (2**40, 1e-9, 7, (2**31 - 1) // 7),
    ],
)
def test_rows_of_a_copy(expert_bytes, seconds_per_row, copies, wanted):
    model = Levelling(PLAIN, copies, expert_bytes, seconds_per_row, "gpu")
    assert model.cost_rows == wanted


@pytest.mark.parametrize(("devices", "wanted"), [(1, 5), (3, 5), (4, 10), (8, 20)])
def test_few_devices_send_all_copies(devices, wanted):
    topology = dataclasses.replace(PLAIN, devices_per_server=devices)
    assert dataclasses.replace(MODEL, topology=topology).cost_rows == wanted


def test_gain_by_hand():
    """Device 1 takes 400 of device 0's 800 rows: 8 ms become 4 ms and a copy of 50 µs."""
    rows = np.array([600, 200, 0, 0])
    joined = 2 * (2 + 4) * 50_000 / 4.8e12
    assert MODEL.gain(rows) == pytest.approx(1 - (4e-3 + 50e-6 + joined) / 8e-3)
    slower = dataclasses.replace(PLAIN, scale_up_latency=1e-3)
    late = dataclasses.replace(MODEL, topology=slower)
    assert late.gain(rows) == pytest.approx(MODEL.gain(rows) - 2e-3 / 8e-3)
    assert MODEL.gain(np.array([5, 5, 5, 5])) == pytest.approx(-joined / 1e-4)
    assert MODEL.gain(np.zeros(4, np.int64)) < 0


@pytest.mark.parametrize(
    ("slots", "most"),
    [
        ([[-1], [-1], [-1], [-1]], 0),
        ([[2, -1], [0, -1], [-1, -1], [-1, -1]], 1),
        ([[-1, -1], [0, -1], [0, -1], [1, -1]], 3),  # device 0 sends its two experts three times
        ([[2, 4], [0, -1], [-1, -1], [-1, -1]], 2),
    ],
)
def test_weights_take_what_the_busiest_device_takes(slots, most):
    model = dataclasses.replace(MODEL, topology=dataclasses.replace(PLAIN, devices_per_server=4))
    assert model.weights_seconds(np.array(slots), 8) == pytest.approx(most * 50e-6)


DEEPSEEK = Levelling(Topology(4, 8), 4, 88_080_384, 0.22e-6, "gpu")


def pays(tokens=32768, top_k=8, num_experts=256, **fields):
    """DeepSeek-V3's experts on four servers of eight, but for what is given."""
    model = dataclasses.replace(DEEPSEEK, **fields)
    return levelling.pays(model, tokens, top_k, num_experts)


def test_where_it_pays():
    assert pays()
    assert pays(topology=Topology(1, 8))


@pytest.mark.parametrize(
    "fields",
    [
        {"topology": Topology(32, 1)},
        {"tokens": 0},
        {"tokens": 64},  # weights cost more than is saved
        {"tokens": 2**31},  # more rows than are dealt
        {"num_experts": 32, "top_k": 32},  # every token takes all experts
        {"platform": "cpu"},  # joining weights takes long
        {"seconds_per_row": 0.0},
        {"topology": Topology(4, 8, scale_up_bandwidth=1e8)},
        {"topology": Topology(4, 8, scale_out_latency=1.0)},
    ],
)
def test_where_it_does_not_pay(fields):
    assert not pays(**fields)


def test_both_conditions_count():
    """Weights that are joined at once, so that nothing is lost, and links too slow to gain."""
    even = np.full(256, 32768)
    assert DEEPSEEK.gain(even) > -levelling.MOST_LOSS
    slow = dataclasses.replace(DEEPSEEK, topology=Topology(4, 8, scale_up_bandwidth=1e8))
    assert slow.gain(even) == DEEPSEEK.gain(even)
    assert not pays(topology=slow.topology)
