"""The checker itself: it notices every kind of fault."""

import types

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


def _carried(*rows_by_rail):
    """Scale-out from server 0 to 1 with so many rows on each rail, and the traffic for it."""
    m = len(rows_by_rail)
    transfers = np.zeros(m, _sound().transfers.dtype)
    transfers["phase"], transfers["rows"] = pc.SCALE_OUT, rows_by_rail
    transfers["src"] = np.arange(m)
    transfers["dst"] = transfers["src"] + m
    traffic = np.zeros((2 * m, 2 * m), int)
    traffic[0, m] = sum(rows_by_rail)
    return traffic, 2, m, transfers[transfers["rows"] > 0]


@pytest.mark.parametrize(
    ("src", "dst", "nics", "message"),
    [
        (0, 3, None, None),
        (2, 5, None, None),
        (0, 4, None, "leaves its rail"),
        (0, 3, (1, 0, 5, 1, 5, 0), None),
        (2, 5, (1, 0, 5, 1, 5, 0), r"uses a failed NIC \(dst\)"),
        (1, 4, (1, 0, 5, 1, 5, 0), r"uses a failed NIC \(src\)"),
        (2, 4, (1, 0, 5, 1, 5, 0), "leaves its rail"),
        # No rail has two working ends.
        (2, 4, (1, 0, 5, 0, 5, 0), None),
        (0, 4, (1, 0, 5, 0, 5, 0), r"is not on the fastest NIC \(src\)"),
        (2, 3, (1, 0, 5, 0, 5, 0), r"uses a failed NIC \(dst\)"),
        (2, 4, (0, 0, 5, 7, 5, 0), r"is not on the fastest NIC \(dst\)"),
    ],
)
def test_checker_knows_the_ways_round_failed_nics(src, dst, nics, message):
    moves = np.zeros(1, _sound().transfers.dtype)
    moves["phase"], moves["rows"], moves["src"], moves["dst"] = pc.SCALE_OUT, 1, src, dst
    if message is None:
        pc.check_rails(2, 3, moves, nics)
        return
    with pytest.raises(pc.PlanError, match=message):
        pc.check_rails(2, 3, moves, nics)


@pytest.mark.parametrize(
    ("rows", "nics", "fits"),
    [
        ((5, 5), None, True),
        ((5, 6), None, True),
        ((4, 6), None, False),
        ((10, 0), None, False),
        ((4, 6), (7.0,) * 4, False),
        ((20, 10), (4.0, 2.0, 4.0, 2.0), True),
        ((21, 9), (4.0, 2.0, 4.0, 2.0), True),  # within a row
        ((22, 8), (4.0, 2.0, 4.0, 2.0), False),
        ((10, 10), (4.0, 2.0, 2.0, 4.0), True),  # the slower end counts
        ((13, 7), (4.0, 2.0, 2.0, 4.0), False),
        ((30, 0), (4.0, 0.0, 4.0, 2.0), True),
        ((30, 0), (4.0, 2.0, 4.0, 0.0), True),
        ((2**59, 2**58, 1), (2.0**61, 2.0**60, 4.0) * 2, True),
        ((2**59 + 2, 2**58 - 2, 1), (2.0**61, 2.0**60, 4.0) * 2, False),
    ],
)
def test_checker_knows_the_shares_of_rails(rows, nics, fits):
    if fits:
        pc.check_balance(*_carried(*rows), nics)
        return
    with pytest.raises(pc.PlanError, match=r"rails from server 0 to 1 carry .* with NICs of"):
        pc.check_balance(*_carried(*rows), nics)


def test_checker_refuses_stages_longer_than_they_need_be():
    # Shifted pairs of servers take 9 + 9.
    servers = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0]])
    shifted = make_plan(servers, Topology(3, 1), scheduler="spreadout").transfers
    with pytest.raises(pc.PlanError, match="stages are 18 rows long, where 10 would do"):
        pc.check_shortest(servers, 3, 1, shifted)


@pytest.mark.parametrize(
    ("claimed", "message"),
    [
        ("spreadout", "in stage 0 device 0 sends to several devices"),
        ("fast", "in stage 0 device 0 sends to several devices"),
        ("optimistic", "PROMISES does not say what 'optimistic' promises"),
    ],
)
def test_checker_holds_schedulers_to_their_promises(claimed, message):
    plan = make_plan(np.ones((6, 6), int), Topology(3, 2), scheduler="direct")
    pc.check_plan(plan)
    fields = ("topology", "traffic", "row_bytes", "transfers", "num_stages")
    claim = types.SimpleNamespace(scheduler=claimed, **{f: getattr(plan, f) for f in fields})
    with pytest.raises(pc.PlanError, match=message):
        pc.check_plan(claim)


def test_checker_forgives_longer_stages_where_it_is_told_to():
    servers = np.array([[0, 9, 1], [9, 0, 1], [1, 1, 0]])
    plan = make_plan(servers, Topology(3, 1, scale_out_latency=0), scheduler="spreadout")
    fields = ("topology", "traffic", "row_bytes", "transfers", "num_stages")
    claim = types.SimpleNamespace(scheduler="fast", **{f: getattr(plan, f) for f in fields})
    pc.check_plan(claim, shortest=False)
    with pytest.raises(pc.PlanError, match="stages are 18 rows long"):
        pc.check_plan(claim)


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


def _past_staging(entries):
    """The first staged rows are delivered, but straight from the operand they came from."""
    changed = entries.copy()
    i = _staged(entries, "dst")
    key = ["origin", "target", "first_row", "rows"]
    same = np.flatnonzero((entries[key] == entries[i][key]) & (np.arange(len(entries)) > i))
    changed = np.delete(changed, same[:-1])
    last = len(changed) - (len(entries) - same[-1])
    changed["src"][last], changed["src_row"][last] = changed["origin"][last], pc.IN_PLACE
    return changed


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
    with pytest.raises(pc.PlanError, match=r"rows .* stay in the staging of device"):
        pc.replay_staging(plan.traffic, _past_staging(sound), staging_rows)
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
