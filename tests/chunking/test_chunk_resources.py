"""Lanes of a layer in chunks: beside an independent simulation, and closed forms."""

import dataclasses
import itertools

import pytest
import reference_lanes
from hypothesis import given
from hypothesis import strategies as st

from fastjax.chunking import LANES, Parts, schedule
from fastjax.errors import ArgumentError

seconds = st.integers(0, 6)
some_chunks = st.lists(st.builds(Parts, *[seconds] * 6), max_size=7)


@given(some_chunks)
def test_the_same_as_second_by_second(chunks):
    times, total = reference_lanes.simulate([dataclasses.asdict(parts) for parts in chunks])
    found = schedule(chunks)
    assert found.total == total
    assert {(p.part, p.chunk): (p.start, p.end) for p in found.pieces} == {
        job: span for job, span in times.items() if span[1] > span[0]
    }


@given(some_chunks)
def test_lanes_do_one_thing_at_a_time_and_all_of_it(chunks):
    found = schedule(chunks)
    for lane in LANES:
        pieces = sorted((p.start, p.end) for p in found.pieces if p.lane == lane)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(pieces))
        assert found.busy(lane) == sum(end - start for start, end in pieces)
        assert found.busy(lane) <= found.total
    each = [sum(dataclasses.astuple(parts)) for parts in chunks]
    assert max(each, default=0) <= found.total <= sum(each)


@given(st.builds(Parts, *[seconds] * 6))
def test_one_chunk_takes_the_sum(parts):
    assert schedule([parts]).total == sum(dataclasses.astuple(parts))


@pytest.mark.parametrize("chunks", range(1, 13))
def test_equal_exchanges_and_experts(chunks):
    """The longer of both, and one chunk's exchanges, which nothing hides."""
    one = Parts(out=0.5 / chunks, experts=1 / chunks, back=0.5 / chunks)
    assert schedule([one] * chunks).total == pytest.approx(1 + 1 / chunks)


@pytest.mark.parametrize("chunks", range(1, 9))
def test_experts_that_take_longer_hide_all_but_the_ends(chunks):
    one = Parts(out=1, copies=1, experts=7, sums=1, back=1)
    assert schedule([one] * chunks).total == 7 * chunks + 4


@pytest.mark.parametrize("chunks", range(2, 9))
def test_exchanges_that_take_longer_hide_the_experts(chunks):
    """NICs never wait, but for the last chunk if there is nothing else to send."""
    one = Parts(out=4, copies=1, experts=1, sums=1, back=4)
    assert schedule([one] * chunks).total == 8 * chunks


def test_what_was_ready_first_goes_first():
    """The first chunk is back while the second crosses, so that it goes before the third."""
    found = schedule([Parts(out=4, experts=1, back=4)] * 3)
    crossing = [f"{p.part} {p.chunk}" for p in found.pieces if p.lane == "network"]
    assert crossing == ["out 0", "out 1", "back 0", "out 2", "back 1", "back 2"]


def test_plans_are_made_ahead():
    found = schedule([Parts(planning=2, out=3)] * 3)
    assert [p.start for p in found.pieces if p.part == "out"] == [2, 5, 8]
    found = schedule([Parts(planning=3, out=2)] * 3)
    assert [p.start for p in found.pieces if p.part == "out"] == [3, 6, 9]


def test_no_chunks_take_no_time():
    assert schedule([]).total == 0
    assert schedule([Parts()] * 2000).total == 0


@pytest.mark.parametrize("wrong", [-1e-9, float("nan"), float("inf"), 2e6])
def test_parts_are_seconds(wrong):
    with pytest.raises(ArgumentError, match="experts must be seconds from 0 to"):
        Parts(experts=wrong)


def test_no_such_lane():
    with pytest.raises(ArgumentError, match="lane must be one of planner, network"):
        schedule([]).busy("nic")
