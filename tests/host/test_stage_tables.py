"""Stage tables in Python: they are the plan, and say no where they cannot be.

That they have room for every plan, how many rows they hold, that rows pass through staging that
holds them, and what damaged tables are refused with, is checked in C++ (schedulers/plan_checks.cc
and table_test.cc in tests/cpp/planner).
"""

from functools import partial

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from plan_problems import (
    SCHEDULERS,
    decode_table,
    problems,
    scheduled,
    topologies,
)
from refusals import refused

from fastjax import Topology, _core, make_plan, scheduling
from fastjax.errors import ArgumentError


def _table_words(topology, scheduler):
    return _core.table_words(topology.words, scheduling.NAMES.index(scheduler))


@pytest.mark.sanitize
@hypothesis.given(st.sampled_from(SCHEDULERS), problems(topologies((1, 5), (1, 4))))
def test_tables_are_the_plan(scheduler, problem):
    plan = scheduled(problem, scheduler)
    np.testing.assert_array_equal(plan.traffic, problem[1])
    devices, transfers = plan.topology.num_devices, plan.transfers
    tables = [plan.stage_table(r) for r in range(devices)]
    for r, words in enumerate(tables):
        _, sends, receives, entries = decode_table(words)
        np.testing.assert_array_equal(sends, plan.traffic[r])
        np.testing.assert_array_equal(receives, plan.traffic[:, r])
        mine = transfers[(transfers["src"] == r) | (transfers["dst"] == r)]
        np.testing.assert_array_equal(entries[list(transfers.dtype.names)].tolist(), mine.tolist())
        assert words[:3].tolist() == [0x464A5431, devices, r]
        assert words[4] == plan.num_stages
        assert words[9] == scheduling.NAMES.index(plan.scheduler)
        assert len(words) <= _table_words(plan.topology, scheduler)
    assert len({tuple(words[6:8]) for words in tables}) == 1


def _variants(problem):
    """What a plan depends on, changed one at a time."""
    topology, traffic, row_bytes = problem
    settings = {"scale_up_bandwidth": 1e9, "scale_out_bandwidth": 2e9}
    settings |= {"scale_up_latency": 1.0, "scale_out_latency": 2.0}
    settings |= {"transfer_overhead": 3.0, "incast_loss": 0.25}
    settings |= {"nic_bandwidths": (50e9, 50e9, 50e9, 1)}
    more = traffic.copy()
    more[-1, 0] += 1
    yield topology, more, row_bytes
    yield topology, traffic, row_bytes + 1
    for name, value in settings.items():
        shape = topology.servers, topology.devices_per_server
        yield Topology(*shape, **{name: value}), traffic, row_bytes


def test_hash_in_the_tables_tells_plans_apart():
    problem = (Topology(2, 2), np.arange(16).reshape(4, 4), 8)
    tables = [
        make_plan(t, topology, scheduler=s, row_bytes=b).stage_table(0)
        for topology, t, b in (problem, *_variants(problem))
        for s in SCHEDULERS
    ]
    assert len({tuple(words[6:8]) for words in tables}) == len(tables)


def test_table_refuses_blocks_beyond_int32():
    """Each scheduler's does, on every device: plan_checks.cc."""
    traffic = np.zeros((4, 4), int)
    traffic[1, 2] = 2**31
    plan = make_plan(traffic, Topology(2, 2))
    told = "a block of 2^31 rows or more does not fit"
    refused(ArgumentError, partial(plan.stage_table, 0), told)
