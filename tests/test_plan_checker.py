"""The checker itself: it notices every kind of fault."""

import numpy as np
import plan_checker as pc
import pytest
from plan_problems import make_traffic

from fastjax import Topology, make_plan


def _sound():
    """A plan with every phase, of which faults are made."""
    traffic = make_traffic("uniform", 3, 3, 50, np.random.default_rng(1))
    return make_plan(traffic, Topology(3, 3), scheduler="fast", row_bytes=2**20)


def _first(transfers, phase):
    return int(np.argmax(transfers["phase"] == phase))


def _drop(transfers, phase):
    return np.delete(transfers, _first(transfers, phase))


def _repeat(transfers, phase):
    return np.insert(transfers, len(transfers), transfers[_first(transfers, phase)])


def _set(transfers, which, **fields):
    changed = transfers.copy()
    for field, value in fields.items():
        changed[field][_first(transfers, which)] = value
    return changed


def _to_front(transfers, phase):
    i = _first(transfers, phase)
    return np.concatenate([transfers[i : i + 1], np.delete(transfers, i)])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda t: _drop(t, pc.LOCAL), "never arrive"),
        (lambda t: _drop(t, pc.BALANCE), "moves rows that are on devices"),
        (lambda t: _drop(t, pc.SCALE_OUT), "(are on devices|never arrive)"),
        (lambda t: _drop(t, pc.REDISTRIBUTE), "never arrive"),
        (lambda t: _repeat(t, pc.LOCAL), "moves rows that have arrived"),
        (lambda t: _set(t, pc.LOCAL, rows=10**6), "leaves its block"),
        (lambda t: _set(t, pc.LOCAL, rows=0), "moves no rows"),
        (lambda t: _set(t, pc.LOCAL, first_row=-1), "leaves its block"),
        (lambda t: _set(t, pc.LOCAL, stage=0), "does not fit phase 0"),
        (lambda t: _set(t, pc.BALANCE, phase=2), "does not fit phase 2"),
        (lambda t: _set(t, pc.SCALE_OUT, phase=1), "does not fit phase 1"),
        (lambda t: _set(t, pc.REDISTRIBUTE, phase=1), "does not fit phase 1"),
        (lambda t: _set(t, pc.BALANCE, phase=3), "does not fit phase 3"),
        (lambda t: _set(t, pc.BALANCE, phase=4), "has no such phase"),
        (lambda t: _set(t, pc.BALANCE, src=9), "is of no device"),
        (lambda t: _set(t, pc.SCALE_OUT, stage=10**4), "has stage 10000 of"),
        (lambda t: _to_front(t, pc.REDISTRIBUTE), "is redistributed before it ends"),
        (lambda t: t[np.argsort(t["phase"] == pc.BALANCE, kind="stable")], "before it is balanced"),
        (lambda t: t[np.argsort(-t["stage"], kind="stable")], "begins before stage"),
    ],
)
def test_checker_refuses_broken_transfers(fault, message):
    plan = _sound()
    with pytest.raises(pc.PlanError, match=message):
        pc.check_transfers(plan.traffic, 3, 3, fault(plan.transfers), plan.num_stages)


def test_checker_refuses_stages_that_move_nothing():
    plan = _sound()
    with pytest.raises(pc.PlanError, match="moves nothing between servers"):
        pc.check_stages(plan.transfers, plan.num_stages + 1)


def test_checker_refuses_rows_that_change_stage():
    plan = _sound()
    changed = plan.transfers.copy()
    (late,) = np.nonzero((changed["phase"] == pc.BALANCE) & (changed["stage"] > 0))
    changed["stage"][late[0]] = 0
    with pytest.raises(pc.PlanError, match="goes on in another stage"):
        pc.replay(plan.traffic, changed)


def test_checker_refuses_stages_that_are_not_one_to_one():
    plan = make_plan(np.ones((6, 6), int), Topology(3, 2), scheduler="direct")
    with pytest.raises(pc.PlanError, match="in stage 0 device 0 sends to several devices"):
        pc.check_one_to_one(plan.transfers)
    with pytest.raises(pc.PlanError, match="in stage 0 device 0 receives from several devices"):
        pc.check_one_to_one(pc.of_device(plan.transfers[plan.transfers["dst"] == 0], 0))


def test_checker_refuses_plans_that_are_not_fast():
    traffic = np.zeros((4, 4), int)
    traffic[0, 2] = 10
    topology = Topology(2, 2)
    whole = make_plan(traffic, topology, scheduler="direct").transfers
    with pytest.raises(pc.PlanError, match="rails from server 0 to 1 carry \\[10  0\\] of 10"):
        pc.check_fast(traffic, 2, 2, whole)
    with pytest.raises(pc.PlanError, match="leaves its rail"):
        pc.check_fast(traffic.T, 2, 2, _set(whole, pc.SCALE_OUT, dst=3))
    # Shifted pairs of servers take 9 + 9.
    servers = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0]])
    shifted = make_plan(servers, Topology(3, 1), scheduler="spreadout").transfers
    with pytest.raises(pc.PlanError, match="stages are 18 rows long, where 10 would do"):
        pc.check_fast(servers, 3, 1, shifted)


def _sound_entries():
    plan = _sound()
    tables = [plan.stage_table(r) for r in range(9)]
    return plan, tables, [words[5] for words in tables]


def _staged(entries, end):
    """The first entry that reads (src) or writes (dst) staging rows."""
    return int(np.argmax(entries[f"{end}_row"] != pc.IN_PLACE))


@pytest.mark.parametrize(
    ("end", "shift", "message"),
    [
        ("src", 1, "(reads .* from staging, wants|is outside)"),
        ("dst", 10**6, "is outside [0-9]+ staging rows"),
        ("dst", -(10**6), "is outside [0-9]+ staging rows"),
    ],
)
def test_checker_refuses_wrong_staging_rows(end, shift, message):
    plan, tables, staging_rows = _sound_entries()
    entries = pc.join_tables(plan.transfers, tables)
    entries[f"{end}_row"][_staged(entries, end)] += shift
    with pytest.raises(pc.PlanError, match=message):
        pc.replay_staging(plan.traffic, entries, staging_rows)


def test_checker_refuses_wrong_ends():
    plan, tables, staging_rows = _sound_entries()
    sound = pc.join_tables(plan.transfers, tables)
    for end, message in (("src", "reads an operand that is not"), ("dst", "writes an output that")):
        entries = sound.copy()
        entries[f"{end}_row"][_staged(entries, end)] = pc.IN_PLACE
        with pytest.raises(pc.PlanError, match=message):
            pc.replay_staging(plan.traffic, entries, staging_rows)
    with pytest.raises(pc.PlanError, match="rows arrive \\[0 1\\] times"):
        pc.replay_staging(plan.traffic, _drop(sound, pc.REDISTRIBUTE), staging_rows)
    entry = sound[_staged(sound, "dst")]
    twice = np.insert(sound, 0, entry)
    with pytest.raises(pc.PlanError, match="writes over staged rows"):
        pc.replay_staging(plan.traffic, twice, staging_rows)


def test_checker_refuses_tables_that_disagree():
    plan, tables, _ = _sound_entries()
    with pytest.raises(pc.PlanError, match="the table of 0 has more entries than the plan"):
        pc.join_tables(plan.transfers[1:0], tables)
    entries = pc.decode_table(tables[4])[3]
    entries["src_row"][_staged(entries, "src")] += 1
    with pytest.raises(pc.PlanError, match=r"in the tables of \[[0-9], [0-9]\]"):
        pc.join_tables(plan.transfers, tables)
