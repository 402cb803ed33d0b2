"""NICs of different speed, and NICs that have failed.

That plans go round these, and which share each rail carries, is checked over random problems in C++
(tests/cpp/planner/schedulers/plan_checks.cc).
"""

from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from exchange_checks.backends import Devices
from exchange_checks.cases import carry_out, drawn
from plan_problems import make_traffic, server_matrix
from refusals import refused
from spmd import spmd

import fastjax
from fastjax import Topology, make_plan
from fastjax.errors import ArgumentError, OptionError, TopologyError
from fastjax.schedule import SCALE_OUT
from fastjax.topology import fit_to_groups

ROUND_FAILURES = ("auto", "fast", "balanced", "rails")
RATES = (0.0, 12.5e9, 25e9, 50e9, 400e9)


def test_nics_that_are_allowed():
    topology = Topology(2, 2, nic_bandwidths=[[1, 0], [np.nextafter(2.0**62, 0), np.int64(3)]])
    assert topology.nic_bandwidths == (1.0, 0.0, np.nextafter(2.0**62, 0), 3.0)
    assert topology.failed_nics == (1,)
    assert Topology(2, 2).failed_nics == ()
    # Inside one server nothing needs a NIC.
    assert Topology(1, 2, nic_bandwidths=(0, 0)).failed_nics == (0, 1)


def test_words_of_nics():
    plain = Topology(2, 2).words
    assert Topology(2, 2, nic_bandwidths=(50e9,) * 4).words == plain
    nics = (50e9, 0, 25.9e9, 1.5)
    assert Topology(2, 2, nic_bandwidths=nics).words == (*plain, 50 * 10**9, 0, 259 * 10**8, 1)


def test_groups_take_the_slower_of_their_nics():
    nics = (50e9, 40e9, 30e9, 20e9, 1e9, 2e9, 60e9, 0)
    topology = Topology(2, 4, nic_bandwidths=nics)
    fitted, ranks = fit_to_groups(topology, 8, ((0, 1, 4, 5), (2, 3, 6, 7)))
    assert (fitted.servers, fitted.devices_per_server) == (2, 2)
    assert ranks == (0, 1, 2, 3)
    assert fitted.nic_bandwidths == (30e9, 20e9, 1e9, 0)
    crossed, ranks = fit_to_groups(topology, 8, ((0, 4, 1, 5), (2, 6, 3, 7)))
    assert ranks == (0, 2, 1, 3)
    assert crossed.nic_bandwidths == (30e9, 20e9, 1e9, 0)
    crossing = ((0, 7), (1, 6), (2, 5), (3, 4))
    refused(TopologyError, lambda: fit_to_groups(topology, 8, crossing), "axis positions [7]")


@pytest.mark.parametrize(
    ("groups", "failed", "why"),
    [
        (((0, 1, 2, 4), (3, 5, 6, 7)), [0], "lie differently"),
        (((0, 1, 4, 5), (2, 3, 6, 7)), [0, 3], "that of any group's device at its place"),
        (((0, 4), (1, 5), (2, 6), (3, 7)), [6], "that of any group's device at its place"),
    ],
)
def test_groups_that_cannot_go_round_failures(groups, failed, why):
    """Each group might; the one plan for all of them cannot."""
    topology = Topology(2, 4, nic_bandwidths=[0.0 if i in failed else 50e9 for i in range(8)])
    told = f"axis positions {failed}", "nic_bandwidths", why
    refused(TopologyError, lambda: fit_to_groups(topology, 8, groups), *told)
    fit_to_groups(topology, 8, (tuple(range(8)),))


@st.composite
def nic_problems(draw):
    """Servers of which each has a NIC that works, and traffic between them."""
    n, m = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nics = rng.choice(draw(st.sampled_from([RATES, RATES[1:], (0.0, 50e9)])), (n, m))
    working = rng.integers(0, m, n)
    nics[np.arange(n), working] = np.maximum(nics[np.arange(n), working], 12.5e9)
    kind = draw(st.sampled_from(["uniform", "sparse", "skewed", "single flow", "only local"]))
    largest = draw(st.sampled_from([9, 300, 10**6]))
    topology = Topology(n, m, nic_bandwidths=tuple(nics.ravel().tolist()))
    return topology, make_traffic(kind, n, m, largest, rng), draw(st.sampled_from([1, 4096]))


@hypothesis.given(problem=nic_problems())
def test_lower_bound_knows_every_nic(problem):
    topology, matrix, row_bytes = problem
    n, m = topology.servers, topology.devices_per_server
    nics = np.array(topology.nic_bandwidths).reshape(n, m)
    servers = server_matrix(matrix, n, m)
    crossing = np.maximum(servers.sum(axis=0), servers.sum(axis=1)) / nics.sum(axis=1)
    apart = matrix - np.diag(np.diag(matrix))
    links = topology.scale_up_bandwidth + nics.ravel()
    of_device = np.maximum(apart.sum(axis=0), apart.sum(axis=1)) / links
    plan = make_plan(matrix, topology, scheduler="fast", row_bytes=row_bytes)
    wanted = row_bytes * max(crossing.max(), of_device.max())
    assert plan.lower_bound() == pytest.approx(wanted, rel=1e-12, abs=0)


@pytest.mark.parametrize(("scheduler", "within"), [("fast", 1e-4), ("rails", 1 / 16)])
def test_half_as_fast_a_nic_carries_half_as_much(scheduler, within):
    """Within a row, or within one of the 16 chunks that "rails" cuts for four rails."""
    matrix = np.zeros((8, 8), int)
    matrix[:4, 4:] = 7000
    topology = Topology(2, 4, nic_bandwidths=(50e9, 25e9, 50e9, 0) * 2)
    plan = make_plan(matrix, topology, scheduler=scheduler, row_bytes=2**16)
    crossing = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    carried = np.bincount(crossing["src"], weights=crossing["rows"], minlength=4)[:4]
    np.testing.assert_allclose(carried / carried.sum(), [0.4, 0.2, 0.4, 0], atol=within)


@pytest.mark.parametrize("scheduler", ROUND_FAILURES)
def test_servers_without_a_common_rail(scheduler):
    """Server 0 has rail 0 only, server 1 rail 1: rows change rails between them."""
    topology = Topology(2, 2, nic_bandwidths=(50e9, 0, 0, 50e9))
    plan = make_plan(np.full((4, 4), 50), topology, scheduler=scheduler, row_bytes=4096)
    crossing = plan.transfers[plan.transfers["phase"] == SCALE_OUT]
    ends = {(int(t["src"]), int(t["dst"])) for t in crossing}
    assert ends == {(0, 3), (3, 0)}


@pytest.mark.parametrize("scheduler", ["fast", "balanced", "rails"])
def test_programs_refuse_more_staged_rows_than_int32_counts(scheduler):
    topology = Topology(4, 2, nic_bandwidths=(50e9, 0, *[50e9] * 6))
    run = spmd(
        lambda s: (
            fastjax.plan_ragged_all_to_all(
                s, axis_name="x", topology=topology, scheduler=scheduler
            ).table
        )
    )
    launch = lambda: jax.block_until_ready(run(np.full((8, 8), 2**31 - 1, np.int32)))  # noqa: E731
    refused(jax.errors.JaxRuntimeError, launch, "stages 2^31 rows or more", "split the exchange")


@pytest.mark.parametrize("scheduler", ["fast", "balanced", "rails"])
def test_tables_refuse_more_staged_rows_than_int32_counts(scheduler):
    matrix = np.full((6, 6), 2**31 - 1)
    topology = Topology(3, 2, nic_bandwidths=(50e9, 0, 50e9, 50e9, 50e9, 50e9))
    plan = make_plan(matrix, topology, scheduler=scheduler)
    for device in range(6):
        read = partial(plan.stage_table, device)
        refused(ArgumentError, read, "stages 2^31 rows", "split the exchange")


def test_schedulers_that_cannot_go_round_failures():
    topology = Topology(2, 2, nic_bandwidths=(50e9, 0, 25e9, 50e9))
    for scheduler in ("direct", "relay", "spreadout"):
        plan = partial(make_plan, np.ones((4, 4), int), scheduler=scheduler)
        told = f"scheduler {scheduler!r}", "nic_bandwidths[1] is 0", "'rails' and 'auto' go round"
        refused(OptionError, lambda plan=plan: plan(topology), *told)
        slow = Topology(2, 2, nic_bandwidths=(50e9, 1, 25e9, 50e9))
        plan(slow)
        one = Topology(1, 2, nic_bandwidths=(0, 0))
        make_plan(np.ones((2, 2), int), one, scheduler=scheduler)


FAILURES = {
    "one": (2, (50e9, 50e9, 0, 50e9) + (50e9,) * 4),
    "both ends": (2, (0, 50e9, 50e9, 25e9, 50e9, 0, 50e9, 25e9)),
    "no common rail": (4, (50e9, 0, 0, 50e9, 50e9, 50e9, 25e9, 0)),
}


def _exchange(rng, topology, scheduler, groups=None):
    options = {"groups": groups, "topology": topology, "scheduler": scheduler}
    carry_out(Devices(2, 4), [drawn(rng, 8, most=40, **options)])


@pytest.mark.parametrize(("servers", "nics"), FAILURES.values(), ids=FAILURES.keys())
@pytest.mark.parametrize("scheduler", ROUND_FAILURES)
def test_programs_go_round_failures(rng, scheduler, servers, nics):
    _exchange(rng, Topology(servers, 8 // servers, nic_bandwidths=nics), scheduler)


@pytest.mark.parametrize("scheduler", ROUND_FAILURES)
def test_groups_go_round_failures(rng, scheduler):
    topology = Topology(2, 4, nic_bandwidths=FAILURES["one"][1])
    _exchange(rng, topology, scheduler, [[0, 1, 4, 5], [6, 7, 2, 3]])


@pytest.mark.parametrize("scheduler", ["direct", "spreadout"])
def test_programs_refuse_what_cannot_go_round_failures(rng, scheduler):
    topology = Topology(2, 4, nic_bandwidths=FAILURES["one"][1])
    told = f"scheduler {scheduler!r}", "that of device 2 has failed"
    refused(OptionError, lambda: _exchange(rng, topology, scheduler), *told)
