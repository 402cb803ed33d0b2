"""Transfers that no planner has made: what is refused, against rows followed one by one."""

import collections
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hand_made import BALANCE, LOCAL, REDISTRIBUTE, SCALE_OUT, fabric_of, moves
from hypothesis import given, settings
from plan_problems import problems
from refusals import bounds, keywords, refusals

from fastjax import make_plan
from fastjax.errors import ArgumentError
from fastjax.simulation import simulate_transfers

SCHEDULERS = ("direct", "spreadout", "rails", "balanced", "relay", "fast")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((SCALE_OUT, 0, 0, 4, 0, 2, 0, 1), r"has a dst that is none of the devices 0 to 3"),
        ((SCALE_OUT, 0, -1, 2, 0, 2, 0, 1), r"has a src that is none of the devices 0 to 3"),
        ((SCALE_OUT, 0, 0, 2, 9, 2, 0, 1), r"has a origin that is none of the devices"),
        ((SCALE_OUT, 0, 0, 2, 0, 9, 0, 1), r"has a target that is none of the devices"),
        ((4, 0, 0, 1, 0, 1, 0, 1), "is of no phase from 0 to 3"),
        ((SCALE_OUT, 0, 0, 2, 0, 2, 0, -1), "has fewer than 0 rows"),
        ((SCALE_OUT, 0, 0, 2, 0, 2, -1, 1), r"has a first_row that is not from 0 to 2\*\*62"),
        ((SCALE_OUT, 0, 0, 2, 0, 2, 2**63 - 5, 1), "has a first_row that is not from 0 to"),
        ((SCALE_OUT, 0, 0, 2, 0, 2, 0, 2**62), "has more rows than can be added up"),
        ((SCALE_OUT, -2, 0, 2, 0, 2, 0, 1), r"is of no stage below 2\*\*31 - 1"),
        ((SCALE_OUT, 2**31 - 1, 0, 2, 0, 2, 0, 1), r"is of no stage below 2\*\*31 - 1"),
        ((LOCAL, -1, 0, 2, 0, 2, 0, 1), "leaves its server, which phase 2 does only"),
        ((SCALE_OUT, 0, 0, 1, 0, 1, 0, 1), "is of phase 2 and stays in its server"),
        ((SCALE_OUT, 0, 0, 3, 0, 3, 0, 1), "uses a NIC that has failed"),
        (
            (REDISTRIBUTE, 1, 3, 2, 0, 2, 5, 7),
            r"7 rows of block 0 -> 2 are sent on by device 3 to device 2 \(phase 3, stage 1\), ",
        ),
    ],
)
def test_transfers_that_cannot_be(row, message):
    topology = fabric_of(2, 2, nic_bandwidths=(1, 1, 1, 0))
    with pytest.raises(ArgumentError, match=message):
        simulate_transfers(moves((LOCAL, -1, 0, 1, 0, 1, 0, 1), row), topology)


def test_transfers_that_wait_for_each_other():
    # Three devices that send round: each message has rows that the one before it brings.
    transfers = moves(
        (BALANCE, 0, 0, 1, 0, 2, 0, 4),
        (BALANCE, 0, 1, 2, 0, 2, 0, 4),
        (BALANCE, 0, 1, 2, 1, 0, 0, 4),
        (BALANCE, 0, 2, 0, 1, 0, 0, 4),
        (BALANCE, 0, 2, 0, 2, 1, 0, 4),
        (BALANCE, 0, 0, 1, 2, 1, 0, 4),
    )
    message = (
        r"transfers wait for each other: among others what device 0 sends to device 1 in phase 1 "
        r"\(balance\) of stage 0"
    )
    with pytest.raises(ArgumentError, match=message):
        simulate_transfers(transfers, fabric_of(1, 3))


PAIR = fabric_of(1, 2)
test_what_is_no_such_thing = refusals(
    ArgumentError,
    (lambda: simulate_transfers([], PAIR), "transfers must be an array of TRANSFER_DTYPE, got l"),
    (lambda: simulate_transfers(np.zeros(3, np.int64), PAIR), "TRANSFER_DTYPE, got int64"),
    (lambda: simulate_transfers(moves(), None), "topology must be a fastjax.Topology, got None"),
    (lambda: simulate_transfers(moves(), PAIR, fabric="roce"), "fastjax.simulation.Fabric, got 'r"),
    (lambda: simulate_transfers(moves(), PAIR, row_bytes=0), "row_bytes must be an integer from 1"),
)
test_bounds_of_pieces = bounds(
    ArgumentError,
    *keywords(partial(simulate_transfers, moves(), PAIR), pieces=([0, 65, 1.5, None], [1, 64])),
)


# ---- rows that do not come once


def delivers(transfers):
    """Whether every row comes to its target once, and is where it is said to be; row by row."""

    def rows_of(t):
        block = int(t["origin"]), int(t["target"])
        return [(*block, row) for row in range(t["first_row"], t["first_row"] + t["rows"])]

    came = collections.Counter()
    for t in transfers:
        moves_or_is_kept = t["src"] != t["dst"] or t["origin"] == t["dst"] == t["target"]
        came.update((int(t["dst"]), row) for row in rows_of(t) if moves_or_is_kept)
    if any(count > 1 for count in came.values()):
        return False
    for t in transfers:
        src = int(t["src"])
        for row in rows_of(t):
            if not came[row[1], row]:
                return False
            if src != row[0] and (not came[src, row] or src == row[1] != t["dst"]):
                return False
    return True


@given(data=st.data(), problem=problems(largest=6), scheduler=st.sampled_from(SCHEDULERS))
@settings(max_examples=300, deadline=None)
def test_what_is_refused_is_what_does_not_deliver(data, problem, scheduler):
    topology, traffic, _ = problem
    transfers = make_plan(traffic, topology, scheduler=scheduler).transfers.copy()
    assert delivers(transfers)
    if not len(transfers):
        return
    k = data.draw(st.integers(0, len(transfers) - 1))
    change = data.draw(st.sampled_from(["none", "drop", "again", "first_row", "rows", "target"]))
    if change == "drop":
        transfers = np.delete(transfers, k)
    elif change == "again":
        transfers = np.insert(transfers, k, transfers[k])
    elif change == "target":
        transfers[k]["target"] = data.draw(st.integers(0, topology.num_devices - 1))
    elif change != "none":
        transfers[k][change] = data.draw(st.integers(0, 8))
    if delivers(transfers):
        simulate_transfers(transfers, topology)
    else:
        with pytest.raises(ArgumentError, match=r"transfers: .* of block "):
            simulate_transfers(transfers, topology)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [(SCALE_OUT, 0, 0, 2, 0, 2, 0, 10), (SCALE_OUT, 0, 0, 2, 0, 2, 5, 10)],
            "rows 5 to 9 of block 0 -> 2 come to device 2 twice: from device 0",
        ),
        (
            [(LOCAL, -1, 1, 1, 1, 1, 0, 3), (LOCAL, -1, 1, 1, 1, 1, 2, 3)],
            "row 2 of block 1 -> 1 comes to device 1 twice: from device 1",
        ),
        (
            [(SCALE_OUT, 0, 0, 2, 0, 3, 0, 5), (REDISTRIBUTE, 0, 2, 3, 0, 3, 1, 3)],
            "2 rows of block 0 -> 3 are sent from device 0 to device 2 .* brings them to device 3",
        ),
        (
            [(LOCAL, -1, 0, 1, 0, 0, 0, 4)],
            "4 rows of block 0 -> 0 are sent from device 0 to device 1 .* brings them to device 0",
        ),
        (
            [
                (SCALE_OUT, 0, 0, 2, 0, 3, 0, 4),
                (SCALE_OUT, 1, 0, 2, 0, 3, 6, 4),
                (REDISTRIBUTE, 1, 2, 3, 0, 3, 0, 10),
            ],
            "2 rows of block 0 -> 3 are sent on by device 2 to device 3 .* no transfer brings them",
        ),
        (
            [(SCALE_OUT, 0, 0, 2, 0, 2, 0, 4), (REDISTRIBUTE, 0, 2, 3, 0, 2, 0, 4)],
            "rows of block 0 -> 2 are sent on by device 2 to device 3 .* at their target",
        ),
    ],
)
def test_it_is_told_which_rows_do_not_come_once(rows, told):
    assert not delivers(moves(*rows))
    with pytest.raises(ArgumentError, match=told):
        simulate_transfers(moves(*rows), fabric_of(2, 2))


def test_transfers_that_move_nothing_are_no_arrivals():
    # A step that each block has in a general schedule may have nothing to do for some.
    transfers = moves(
        (BALANCE, 0, 0, 0, 0, 2, 0, 5),
        (SCALE_OUT, 0, 0, 2, 0, 2, 0, 5),
        (REDISTRIBUTE, 0, 2, 2, 0, 2, 0, 5),
        (LOCAL, -1, 1, 1, 1, 1, 0, 9),
        (LOCAL, -1, 1, 0, 1, 0, 0, 0),
    )
    assert delivers(transfers)
    timeline = simulate_transfers(transfers, fabric_of(2, 2), row_bytes=1)
    assert timeline.completion_time == 5
    assert timeline.lower_bound == 2.5  # with both NICs of the server
    assert len(timeline.messages) == 1
