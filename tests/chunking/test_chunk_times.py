"""The time of a layer in chunks, and the best number of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import bounds, keywords, refusals, refused

from fastjax import Topology
from fastjax.chunking import times
from fastjax.chunking.resources import LayerTimes
from fastjax.chunking.times import CANDIDATES, LEAST_GAIN, fewest_of, layer_time
from fastjax.errors import ArgumentError, OptionError

RATES = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 1e8, "transfer_overhead": 0.0}
ROUND = Topology(2, 2, **RATES, scale_up_latency=0, scale_out_latency=0)
LAYER = {"tokens": 8000, "top_k": 4, "row_bytes": 100, "num_experts": 8}


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_a_row_for_each_choice_by_hand(chunks):
    """Half of 32000 rows cross, in 16 ms each way."""
    found = layer_time(
        ROUND, **LAYER, seconds_per_row=1e-6, chunks=chunks, deduplicate=False, chunk_overhead=1e-4,
        scheduler="direct",
    )  # fmt: skip
    assert found.network == pytest.approx(32e-3)
    assert found.experts == pytest.approx(32e-3 + chunks * 1e-4)
    assert found.inside == 0
    assert (found.chunks, found.deduplicated) == (chunks, False)
    if chunks == 1:
        assert found.total == pytest.approx(64.1e-3 + found.planning)


def test_deduplicated_by_hand():
    """All tokens have an expert on each of two servers, of which one is elsewhere."""
    found = layer_time(
        ROUND, 8000, 8, 100, 8, seconds_per_row=1e-6, chunks=1, deduplicate=True,
        crossing_bytes=150, chunk_overhead=0, scheduler="direct",
    )  # fmt: skip
    out, back, inside, experts = 8000 * 150 / 1e8, 8000 * 100 / 1e8, 32000 * 100 / 1e9, 64e-3
    assert found.network == pytest.approx(out + back)
    assert found.inside == pytest.approx(2 * inside)
    assert found.total == pytest.approx(out + back + 2 * inside + experts + found.planning)
    assert [p.part for p in found.tasks] == [
        "planning", "out", "copies", "experts", "sums", "back"
    ]  # fmt: skip


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_backward_pass_follows(chunks):
    """Its experts take twice as long, and it needs no plans; all else is as forward."""
    given = {**LAYER, "chunks": chunks, "deduplicate": True, "chunk_overhead": 0}
    forward, twice, both = (
        layer_time(ROUND, **given, seconds_per_row=seconds, backward=backward)
        for seconds, backward in ((1e-6, False), (2e-6, False), (1e-6, True))
    )
    assert both.experts == pytest.approx(3 * forward.experts)
    assert both.network == pytest.approx(2 * forward.network)
    assert both.planning == forward.planning
    assert both.total == pytest.approx(forward.total + twice.total, abs=2 * forward.planning)
    assert both.total < forward.total + twice.total
    assert len(both.tasks) == 2 * len(forward.tasks) - chunks
    assert max(task.end for task in both.tasks) == both.total


@given(st.integers(0, 5000), st.integers(1, 50))
def test_chunks_are_as_equal_as_can_be(tokens, chunks):
    sizes = times.sizes(tokens, chunks)
    assert sum(sizes) == tokens
    assert len(sizes) == chunks
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None, max_examples=60)
@given(
    servers=st.integers(1, 5),
    devices=st.integers(1, 4),
    tokens=st.integers(0, 5000),
    top_k=st.integers(1, 8),
    row_bytes=st.sampled_from([1, 256, 14336]),
    seconds_per_row=st.sampled_from([0.0, 1e-9, 1e-7, 1e-5]),
    deduplicate=st.sampled_from([None, False, True]),
)
def test_the_best_is_as_good_as_it_says(
    servers, devices, tokens, top_k, row_bytes, seconds_per_row, deduplicate
):
    topology = Topology(servers, devices)
    layer = (topology, tokens, top_k, row_bytes, 8 * topology.num_devices)
    best = layer_time(*layer, seconds_per_row=seconds_per_row, deduplicate=deduplicate)
    if servers == 1:
        assert (best.chunks, best.deduplicated) == (1, False)
        return
    ways = (False, True) if deduplicate is None else (deduplicate,)
    found = {
        (chunks, way): layer_time(
            *layer, seconds_per_row=seconds_per_row, chunks=chunks, deduplicate=way
        ).total
        for chunks, way in itertools.product(CANDIDATES, ways)
        if chunks <= max(1, tokens)
    }
    assert best.total == found[best.chunks, best.deduplicated]
    assert best.total * (1 - LEAST_GAIN) <= min(found.values()) + 1e-9
    if best.chunks > 1:
        one = found[1, best.deduplicated]
        assert best.total <= one * (1 - LEAST_GAIN) * (1 + 0.01)


def test_the_default_is_to_compare_both_ways():
    slow_nics, slow_links = (
        Topology(4, 4, scale_up_bandwidth=up, scale_out_bandwidth=10e9) for up in (400e9, 1e9)
    )
    layer = {
        "tokens": 4096,
        "top_k": 8,
        "row_bytes": 8192,
        "num_experts": 64,
        "seconds_per_row": 1e-8,
    }
    assert layer_time(slow_nics, **layer).deduplicated
    assert not layer_time(slow_links, **layer).deduplicated


def made_up(totals):
    return [LayerTimes(n, False, (), total, 0, 0, 0, 0) for n, total in totals.items()]


@pytest.mark.parametrize(
    ("totals", "wanted"),
    [
        ({1: 1.0}, 1),
        ({1: 1.0, 2: 0.98}, 1),
        ({1: 1.0, 2: 0.96}, 2),
        ({1: 1.0, 2: 0.955, 3: 0.95}, 2),
        ({1: 1.0, 2: 0.97, 3: 0.95}, 3),
        ({1: 1.0, 2: 1.2, 3: 0.5, 4: 0.503}, 3),
        ({1: 0.0, 2: 0.0}, 1),
    ],
)
def test_the_fewest_that_are_alike(totals, wanted):
    assert fewest_of(made_up(totals)).chunks == wanted


def test_a_chunk_has_a_least_size():
    """What a chunk costs the experts beyond its rows decides how small it may be."""
    layer = (Topology(4, 8), 4096, 8, 4096, 64)
    counts = [
        layer_time(*layer, seconds_per_row=3e-8, chunk_overhead=overhead).chunks
        for overhead in (0, 1e-3, 1e-2)
    ]
    assert counts[0] > counts[1] > counts[2] == 1


def of_layer(**changes):
    given = {"topology": ROUND, **LAYER, "seconds_per_row": 1e-6, "chunks": 2, "deduplicate": True}
    return layer_time(**given | changes)


def test_seconds_may_be_of_numpy():
    rate = np.float32(1e-6)
    assert of_layer(seconds_per_row=rate) == of_layer(seconds_per_row=float(rate))


SECONDS = [-1.0, float("nan"), "1", 1e6]
test_bounds = bounds(
    ArgumentError,
    *keywords(
        of_layer,
        topology=([4], [ROUND]),
        tokens=([-1, 2.5], [2]),
        top_k=([0, 9], [1, 8]),
        row_bytes=([0], [1]),
        num_experts=([0, 6], [4]),
        seconds_per_row=(SECONDS[:3], [0, 3]),
        chunk_overhead=(SECONDS, [0, 1e5]),
        chunks=([0, 257], [1, 256]),
    ),
    ("row_bytes", lambda size: of_layer(crossing_bytes=size), [0], [1]),
    ("chunks", lambda chunks: of_layer(chunks=chunks, tokens=4), [5], [4]),
    ("candidates", lambda each: of_layer(chunks=None, candidates=[each]), [0, 257], [1, 256]),
)
test_refusals = refusals(
    ArgumentError,
    (lambda: of_layer(seconds_per_row=1e3), "seconds_per_row must leave the 32000 rows"),
    (lambda: of_layer(num_experts=6), "num_experts must divide over the 4 devices, got 6"),
)


def test_schedulers_are_checked():
    refused(OptionError, lambda: of_layer(scheduler="no such"), "scheduler", "'no such'")
