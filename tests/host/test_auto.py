"""The scheduler that chooses between the others; sizes and determinism of them all.

That no prediction is below the bound, and what is chosen where NICs differ, is checked over random
problems in C++ (tests/cpp/planner/schedulers/plan_checks.cc).
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import plan_oracle as po
import pytest
from plan_problems import (
    SCHEDULERS,
    adversarial_problems,
    make_traffic,
    problems,
    scheduled,
    topologies,
)

from fastjax import Topology, make_plan, traffic

OTHERS = tuple(name for name in SCHEDULERS if name != "auto")


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    problem=st.one_of(problems(topologies((1, 12), (1, 6)), largest=10**6), adversarial_problems())
)
def test_auto_is_never_predicted_to_be_slower(problem):
    plan = scheduled(problem, "auto")
    others = {name: scheduled(problem, name) for name in OTHERS}
    taken = others[plan.scheduler]
    looking = plan.planning_time() - taken.planning_time()
    assert looking >= -1e-15
    assert plan.predicted_time() == pytest.approx(taken.predicted_time() + looking, rel=1e-12)
    if plan.num_stages == 0:  # nothing leaves its server: taken without a look at the others
        assert plan.scheduler == "direct"
    else:
        assert taken.predicted_time() <= _least(others.values())


def _least(plans):
    """What auto's exchange and planning may take: it looks at none that saves less than a look.

    Which takes no longer than planning; or, in small exchanges, than sums over rails and the search
    for the longest blocks of each round.
    """

    def look(plan):
        return max(plan.planning_time(), 1.6e-6 + 0.9e-9 * plan.topology.num_devices**2)

    return min(plan.predicted_time() + look(plan) for plan in plans) * (1 + 1e-9)


def test_looks_that_cannot_pay_are_left_out():
    """Direct could save less than what it takes to find its longest blocks."""
    topology = Topology(12, 6, transfer_overhead=0, incast_loss=0)
    matrix = np.zeros((72, 72), int)
    matrix[6, 0] = 789781
    problem = topology, matrix, 1
    plan, direct = scheduled(problem, "auto"), scheduled(problem, "direct")
    assert "direct" in plan.explain()
    assert plan.scheduler != "direct"
    saved = scheduled(problem, plan.scheduler).predicted_time() - direct.predicted_time()
    assert 0 < saved < 0.3e-6 + 0.9e-9 * 72**2
    assert plan.predicted_time() <= _least([direct]) + plan.planning_time()


@pytest.mark.parametrize("shape", [(2, 8), (4, 8), (40, 8)])
def test_choosing_is_part_of_planning(shape):
    """By hand: what auto took, and a look at each that it did not take but saw."""
    even = np.full((shape[0] * shape[1],) * 2, 10)
    plan = make_plan(even, Topology(*shape), row_bytes=4096)
    alone = make_plan(even, Topology(*shape), scheduler=plan.scheduler, row_bytes=4096)
    looking = plan.planning_time() - alone.planning_time()
    assert looking > 0
    assert f"Looking at those that were not taken: {looking * 1e6:.3g}" in plan.explain()
    assert "planning and choosing" in plan.explain()
    assert "choosing" not in alone.explain()


@pytest.mark.parametrize(
    ("matrix", "topology", "row_bytes", "taken"),
    [
        (np.ones((4, 4), int), Topology(2, 2), 4, "direct"),
        (traffic.pair_zipf(128, 32768), Topology(16, 8), 4096, "fast"),
        (traffic.pair_zipf(128, 32768), Topology(16, 8, incast_loss=0), 4096, "balanced"),
        (np.full((32, 32), 64), Topology(4, 8), 512, "relay"),
        (np.roll(np.eye(8, dtype=int), 1, axis=1) * 2**20, Topology(8, 1), 4096, "spreadout"),
    ],
)
def test_there_is_something_for_each_to_win(matrix, topology, row_bytes, taken):
    assert make_plan(matrix, topology, row_bytes=row_bytes).scheduler == taken


def _digests():
    """Of plans of fixed problems by every scheduler: transfers, tables and what they say."""
    found = []
    for seed, (n, m) in enumerate([(1, 5), (2, 4), (5, 1), (6, 3), (12, 2)]):
        rng = np.random.default_rng(seed)
        nics = np.where(rng.random(n * m) < 0.2, 0.0, 50e9)
        nics[::m] = 25e9
        for kind in ("uniform", "skewed", "sparse"):
            matrix = make_traffic(kind, n, m, 5000, rng)
            for scheduler in SCHEDULERS:
                whole = make_plan(matrix, Topology(n, m), scheduler=scheduler, row_bytes=4096)
                plans = [whole, whole.transpose()]
                if scheduler in ("auto", "fast", "balanced", "rails"):
                    settings = {"scheduler": scheduler, "row_bytes": 4096}
                    plans.append(make_plan(matrix, Topology(n, m, nic_bandwidths=nics), **settings))
                parts = [part for plan in plans for part in _everything(plan)]
                found.append(hashlib.sha256(b"".join(parts)).hexdigest())
    return found


def _everything(plan):
    tables = [plan.stage_table(r).tobytes() for r in range(0, plan.topology.num_devices, 3)]
    words = f"{plan.explain()} {plan.predicted_time().hex()}".encode()
    return [plan.transfers.tobytes(), *tables, *(a.tobytes() for a in plan.matchings), words]


def test_the_same_plans_in_another_process():
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_auto; print(*test_auto._digests())"
    )
    here = Path(__file__).parent
    child = subprocess.run(
        [sys.executable, "-c", program, here, here.parent / "support"],
        env={**os.environ, "PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert child.stdout.split() == _digests()


def _sparse(devices, flows, rng):
    """So many flows of 1 to 1000 rows."""
    matrix = np.zeros((devices, devices), np.int64)
    ends = rng.integers(0, devices, (2, flows))
    matrix[ends[0], ends[1]] = rng.integers(1, 1000, flows)
    return matrix


@pytest.mark.nightly
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_8192_devices(scheduler, rng):
    topology, matrix = Topology(1024, 8), _sparse(8192, 4000, rng)
    plan = make_plan(matrix, topology, scheduler=scheduler, row_bytes=4096)
    po.check_order(plan.transfers, plan.num_stages)
    po.check_phases(topology, plan.transfers)
    arrived = plan.transfers[plan.transfers["dst"] == plan.transfers["target"]]
    pairs, at = np.unique(arrived[["origin", "target"]], return_inverse=True)
    senders, receivers = np.nonzero(matrix)  # in the order of the pairs
    np.testing.assert_array_equal(pairs["origin"], senders)
    np.testing.assert_array_equal(pairs["target"], receivers)
    carried = np.bincount(at, weights=arrived["rows"])
    np.testing.assert_array_equal(carried, matrix[senders, receivers])
