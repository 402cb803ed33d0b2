"""Resources of a layer in chunks: beside an independent simulation, and closed forms."""

import dataclasses

import pytest
import reference_resources
from hypothesis import given
from hypothesis import strategies as st
from reference_resources import RESOURCE

from fastjax.chunking.resources import RESOURCES, Parts, schedule

seconds = st.integers(0, 6)
some_chunks = st.lists(st.builds(Parts, *[seconds] * 6), max_size=7)


@given(some_chunks)
def test_the_same_as_second_by_second(chunks):
    times, total = reference_resources.simulate([dataclasses.asdict(parts) for parts in chunks])
    found = schedule(chunks)
    assert found.total == total
    assert {(p.part, p.chunk): (p.start, p.end) for p in found.tasks} == {
        job: span for job, span in times.items() if span[1] > span[0]
    }
    for resource in RESOURCES:
        busy = found.planning if resource == "planner" else getattr(found, resource)
        assert busy == sum(
            end - start for (part, _), (start, end) in times.items() if RESOURCE[part] == resource
        )


@pytest.mark.parametrize("chunks", range(1, 13))
def test_equal_exchanges_and_experts(chunks):
    """The longer of both, and one chunk's exchanges, which nothing hides."""
    one = Parts(out=0.5 / chunks, experts=1 / chunks, back=0.5 / chunks)
    assert schedule([one] * chunks).total == pytest.approx(1 + 1 / chunks)


def test_what_was_ready_first_goes_first():
    """The first chunk is back while the second crosses, so that it goes before the third."""
    found = schedule([Parts(out=4, experts=1, back=4)] * 3)
    crossing = [f"{p.part} {p.chunk}" for p in found.tasks if p.resource == "network"]
    assert crossing == ["out 0", "out 1", "back 0", "out 2", "back 1", "back 2"]


def test_no_chunks_take_no_time():
    assert schedule([]).total == 0
    assert schedule([Parts()] * 2000).total == 0
