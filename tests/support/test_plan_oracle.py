"""The oracle itself: it notices every kind of fault."""

import types

import numpy as np
import plan_oracle as po
import pytest
from plan_problems import make_traffic

from fastjax import Topology, make_plan


@pytest.fixture(scope="module")
def plan():
    """A plan with every phase, of which faults are made."""
    traffic = make_traffic("uniform", 3, 3, 50, np.random.default_rng(1))
    return make_plan(traffic, Topology(3, 3), scheduler="fast", row_bytes=2**20)


def drop(phase):
    return lambda t: np.delete(t, np.argmax(t["phase"] == phase))


def again(phase):
    return lambda t: np.append(t, t[np.argmax(t["phase"] == phase)])


def change(which, **fields):
    def changed(transfers):
        transfers = transfers.copy()
        for field, value in fields.items():
            transfers[field][np.argmax(transfers["phase"] == which)] = value
        return transfers

    return changed


def late(phase):
    return lambda t: t[np.argsort(t["phase"] == phase, kind="stable")]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (drop(po.LOCAL), "never arrive"),
        (drop(po.BALANCE), "rows are elsewhere"),
        (drop(po.REDISTRIBUTE), "never arrive"),
        (again(po.LOCAL), "rows are elsewhere|have had the phase"),
        (change(po.LOCAL, rows=10**6), "the block does not have"),
        (change(po.LOCAL, first_row=-1), "the block does not have"),
        (change(po.LOCAL, stage=0), "a stage that a phase does not have"),
        (change(po.BALANCE, phase=po.SCALE_OUT), "joins other devices"),
        (change(po.BALANCE, phase=po.REDISTRIBUTE), "joins other devices"),
        (late(po.BALANCE), "begins before it is balanced"),
        (lambda t: late(po.REDISTRIBUTE)(t)[::-1], "redistributed before|begins before"),
        (lambda t: t[np.argsort(-t["stage"], kind="stable")], "begins before another ends"),
        (change(po.BALANCE, stage=4), "of another stage"),
    ],
)
def test_oracle_refuses_broken_transfers(plan, fault, message):
    po.check_plan(plan)
    with pytest.raises(AssertionError, match=message):
        po.check_delivery(plan.traffic, plan.topology, fault(plan.transfers), plan.num_stages)


def test_oracle_refuses_redistribution_ahead_of_its_stage(plan):
    first = np.argsort(plan.transfers["phase"] != po.REDISTRIBUTE, kind="stable")
    with pytest.raises(AssertionError, match="is redistributed before it ends"):
        po.check_order(plan.transfers[first], plan.num_stages)


def test_oracle_refuses_stages_that_move_nothing(plan):
    with pytest.raises(AssertionError, match="moves nothing between servers"):
        po.check_order(plan.transfers, plan.num_stages + 1)


@pytest.mark.parametrize("end", ["src", "dst"])
def test_oracle_refuses_stages_that_are_not_one_to_one(end):
    moves = make_plan(np.ones((6, 6), int), Topology(3, 2), scheduler="direct").transfers
    with pytest.raises(AssertionError, match=f"several of one {end}"):
        po.check_one_to_one(moves[moves[end] == 0])


def test_oracle_refuses_tables_that_disagree(plan):
    """Tables of other traffic, which are sound themselves."""
    other = plan.traffic.copy()
    other[0, 8] += 1
    tables = make_plan(other, plan.topology, scheduler="fast", row_bytes=2**20).stage_table
    for traffic in (plan.traffic, other):  # rows of peers, or only entries
        claim = types.SimpleNamespace(
            topology=plan.topology, traffic=traffic, transfers=plan.transfers, stage_table=tables
        )
        with pytest.raises(AssertionError, match="not equal"):
            po.check_tables(claim)
