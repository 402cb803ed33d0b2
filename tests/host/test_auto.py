"""The scheduler that chooses between the others, and plans for many devices.

That the choice is the cheapest and goes round failed NICs, that nothing is predicted below the
bound, and that plans are the same in every process, is checked over random problems in C++
(tests/cpp/planner/schedulers).
"""

import numpy as np
import pytest
from plan_problems import SCHEDULERS

from fastjax import Topology, make_plan, simulate, traffic


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
    simulate(plan)  # which refuses transfers that do not deliver
