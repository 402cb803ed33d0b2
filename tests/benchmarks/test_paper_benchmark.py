"""The paper's tables made anew: peers made by hand, contests, verdicts, pages."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import plan_oracle as po
import pytest
import to_markdown
from paper import __main__ as program
from paper import (
    ablations,
    contest,
    figures,
    grids,
    overlap,
    peers,
    published,
    rails,
    report,
    tables,
    verdicts,
)
from plan_problems import KINDS, make_traffic

from fastjax import Topology, make_plan
from fastjax.simulation import Fabric, simulate, simulate_transfers

BUILDERS = {
    "as published": (peers.as_published, True),
    "pxn": (peers.pxn, False),
    "two-tier": (peers.two_tier, False),
}
ABLATIONS = {
    "balance only": (ablations.balance_only, False),
    "stages only": (ablations.stages_only, True),
    "uncut": (ablations.uncut, True),
    "any rows": (ablations.any_rows, True),
}
ONE_TO_ONE = Fabric(synchronization="barrier")
# Lines of 9; the longest at each distance is 5.
LOPSIDED = np.array([[0, 5, 0, 4], [4, 0, 4, 1], [5, 0, 0, 4], [0, 4, 5, 0]])


def check(traffic, topology, moves, one_to_one):
    stages = int(moves["stage"].max(initial=-1)) + 1
    po.check_delivery(traffic, topology, moves, stages)
    if one_to_one:
        po.check_one_to_one(moves)


def stage_lengths(moves):
    """Rows of the busiest sender in each scale-out stage."""
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    sent = np.zeros((crossing["stage"].max() + 1, crossing["src"].max() + 1), np.int64)
    np.add.at(sent, (crossing["stage"], crossing["src"]), crossing["rows"])
    return sent.max(axis=1).tolist()


@st.composite
def problems(draw):
    n, m = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return make_traffic(draw(st.sampled_from(KINDS)), n, m, 60, rng), Topology(n, m)


@hypothesis.given(problem=problems(), name=st.sampled_from(list(BUILDERS)))
def test_peers_deliver(problem, name):
    build, one_to_one = BUILDERS[name]
    traffic, topology = problem
    check(traffic, topology, build(traffic, topology), one_to_one)


@hypothesis.given(problem=problems())
def test_published_rails_carry_equal_shares(problem):
    traffic, topology = problem
    n, m = topology.servers, topology.devices_per_server
    moves = peers.as_published(traffic, topology)
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    assert (crossing["src"] % m == crossing["dst"] % m).all()
    carried = np.zeros((n, n, m), np.int64)
    ends = (crossing["src"] // m, crossing["dst"] // m, crossing["src"] % m)
    np.add.at(carried, ends, crossing["rows"])
    np.testing.assert_array_equal(carried.sum(axis=2), po.server_matrix(traffic, n, m))
    assert np.ptp(carried, axis=2).max() <= 1


@hypothesis.given(problem=problems(), name=st.sampled_from(list(ABLATIONS)))
def test_ablations_deliver(problem, name):
    build, one_to_one = ABLATIONS[name]
    traffic, topology = problem
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=10**6)
    check(traffic, topology, build(plan), one_to_one)


@pytest.mark.parametrize("name", BUILDERS)
def test_peers_deliver_at_full_size(name, rng):
    build, one_to_one = BUILDERS[name]
    traffic = make_traffic("skewed", 4, 8, 100_000, rng)
    check(traffic, Topology(4, 8), build(traffic, Topology(4, 8)), one_to_one)


def test_overlay():
    one, other, offset, rows = rails.overlay(np.array([3, 0, 4]), np.array([2, 2, 0, 3]))
    assert one.tolist() == [0, 0, 2, 2]
    assert other.tolist() == [0, 1, 1, 3]
    assert offset.tolist() == [0, 2, 0, 1]
    assert rows.tolist() == [2, 1, 1, 3]
    with pytest.raises(AssertionError, match="lengths of 3 and 4 do not match"):
        rails.overlay(np.array([3]), np.array([4]))


@pytest.mark.parametrize("n", [2, 4, 5])
def test_birkhoff_of_balanced_traffic_has_a_stage_for_each_other_server(n):
    m, rows = 4, 12
    moves = peers.as_published(np.full((n * m, n * m), rows), Topology(n, m))
    # Nothing to balance, and every device sends as much in each stage.
    assert stage_lengths(moves) == [m * rows] * (n - 1)
    assert not (moves["phase"] == po.BALANCE).any()


def test_birkhoff_is_shorter_than_shifted_pairs():
    topology = Topology(
        4, 1, scale_out_bandwidth=1, scale_out_latency=0, scale_up_latency=0, transfer_overhead=0
    )

    def seconds(moves):
        return simulate_transfers(moves, topology, fabric=ONE_TO_ONE).completion_time

    assert seconds(peers.as_published(LOPSIDED, topology)) == pytest.approx(9)
    spread = make_plan(LOPSIDED, topology, scheduler="spreadout").transfers
    assert seconds(spread) == pytest.approx(15)


@pytest.mark.parametrize(("up", "out"), [(450e9, 50e9), (380e9, 48.85e9)])
@pytest.mark.parametrize("n", [2, 4])
def test_one_flow_as_published_takes_all_three_phases_in_turn(n, up, out):
    rates = {"scale_up_bandwidth": up, "scale_out_bandwidth": out, "transfer_overhead": 0}
    topology = Topology(n, 8, **rates, scale_up_latency=0, scale_out_latency=0)
    traffic = np.zeros((8 * n, 8 * n), np.int64)
    traffic[3, 8 * n - 1] = 8000
    entry = contest.Game(traffic, topology, 1).enter("as published")
    bound = make_plan(traffic, topology).lower_bound()
    # 2.56 at 450 : 50: docs/design/stages.md, "Serial".
    assert entry.play("none") / bound == pytest.approx(1 + 2 * 7 * out / up, rel=1e-3)
    assert entry.stages == 1


def test_two_tier_hands_on_at_the_same_place():
    traffic = np.zeros((4, 4), np.int64)
    traffic[0, 3] = 5
    moves = peers.two_tier(traffic, Topology(2, 2))
    assert moves[["phase", "src", "dst", "rows"]].tolist() == [(2, 0, 2, 5), (3, 2, 3, 5)]


def test_pxn_goes_to_the_place_of_the_target_first():
    traffic = np.zeros((4, 4), np.int64)
    traffic[0, 3] = 5
    moves = peers.pxn(traffic, Topology(2, 2))
    assert moves[["phase", "src", "dst", "rows"]].tolist() == [(1, 0, 1, 5), (2, 1, 3, 5)]


def test_two_tier_sends_a_token_once_to_each_server():
    """By hand: device 1's token wants both devices of the other server, one of them twice."""
    choices = np.array([[[0, 1, 1]], [[5, 6, 7]], [[2, 6, 6]], [[7, 7, 6]]])
    found = peers.two_tier_once(choices, Topology(2, 2), 8)
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 0, 2]])
    moves = peers.two_tier(found, Topology(2, 2))
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    assert crossing[["src", "dst", "rows"]].tolist() == [(1, 3, 1), (2, 0, 1)]


@hypothesis.given(
    servers=st.integers(1, 4), local=st.integers(1, 3), top_k=st.integers(1, 4), seed=st.integers(0)
)
def test_two_tier_once_token_by_token(servers, local, top_k, seed):
    topology, devices = Topology(servers, local), servers * local
    choices = np.random.default_rng(seed).integers(0, 2 * devices, (devices, 5, top_k))
    found = peers.two_tier_once(choices, topology, 2 * devices)
    crossing, copies = np.zeros((devices, servers), int), np.zeros((devices, devices), int)
    for device, experts in ((d, e) for d in range(devices) for e in choices[d].tolist()):
        owners = {expert // 2 for expert in experts}
        for server in {owner // local for owner in owners} - {device // local}:
            crossing[device, server] += 1
        for owner in owners:
            away = owner // local != device // local
            copies[owner // local * local + device % local if away else device, owner] += 1
    rails = own_rails_of(found, servers, local)
    np.testing.assert_array_equal(rails, crossing)
    # What comes to the device of the same place is copied to those who want it, the first included.
    handed = np.zeros((devices, devices), int)
    for src, dst in np.ndindex(devices, devices):
        away = src // local != dst // local
        handed[dst // local * local + src % local if away else src, dst] += found[src, dst]
    np.testing.assert_array_equal(handed, copies)


def own_rails_of(traffic, servers, local):
    """Rows that each device sends to each other server."""
    rows = traffic.reshape(servers * local, servers, local).sum(2)
    rows[np.arange(servers * local), np.arange(servers * local) // local] = 0
    return rows


@pytest.mark.parametrize("build", [peers.two_tier, peers.pxn])
def test_forwarding_peers_take_turns(build):
    """What the devices of all servers post at the same time goes to as many receivers."""
    moves = build(np.full((20, 20), 8), Topology(5, 4))
    crossing = moves[moves["phase"] == po.SCALE_OUT]
    for turn in range(4):
        targets = [
            list(dict.fromkeys(crossing["dst"][crossing["src"] == device]))[turn]
            for device in range(20)
        ]
        assert sorted(targets) == list(range(20))


def test_forwarding_peers_plan_nothing():
    found = contest.measure(key())["contestants"]
    assert found["pxn"]["planning"] == found["two-tier"]["planning"] == 0


@pytest.mark.parametrize("alpha", [0.1, 0.8, 0.99])
def test_pairs_that_draw_their_sizes(alpha):
    """As often as Zipf's law says: of 65,536 pairs the small numbers, and the mean of all."""
    traffic = grids.zipf_draws(alpha)(32, 8, 10**6, 0)
    assert traffic.sum() == pytest.approx(256 * 10**6, rel=1e-3)
    weights = np.arange(1, 1001) ** -alpha
    weights /= weights.sum()
    mean = (np.arange(1, 1001) * weights).sum()
    numbers = np.rint(traffic / traffic.mean() * mean).astype(int)
    assert numbers.min() >= 1
    for most in (10, 100, 500):
        share = (numbers <= most).mean()
        assert share == pytest.approx(weights[:most].sum(), abs=0.01)
    assert (traffic != grids.zipf_draws(alpha)(32, 8, 10**6, 1)).any()


def test_ablations_leave_out_what_they_say(rng):
    traffic, topology = make_traffic("skewed", 3, 8, 100_000, rng), Topology(3, 8)
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=4000)
    game = contest.Game(traffic, topology, 4000)
    built = {name: build(plan) for name, (build, _) in ABLATIONS.items()}
    stages = {name: stage_lengths(moves) for name, moves in built.items()}
    assert len(stages["balance only"]) == 1
    assert not np.isin(built["stages only"]["phase"], (po.BALANCE, po.REDISTRIBUTE)).any()
    assert len(stages["uncut"]) <= plan.num_matchings < plan.num_stages
    assert sum(stages["uncut"]) == pytest.approx(sum(stage_lengths(plan.transfers)), abs=9)
    assert stages["any rows"] == pytest.approx(stage_lengths(plan.transfers), abs=2)
    inside = {name: game.inside(moves) for name, moves in built.items()}
    assert inside["balance only"] == inside["uncut"] == game.inside(plan.transfers)
    assert inside["any rows"] > inside["uncut"]


def test_planning_time_as_published():
    for devices, seconds in published.PLANNING.items():
        assert published.planning_time(devices) == pytest.approx(seconds)
    assert 805e-6 < published.planning_time(160) < 77e-3


def key(**changes):
    answer = {"table": "size", "preset": "h200", "servers": 2, "workload": grids.ZIPF}
    return answer | {"size": 4 * 10**6, "seed": 0} | changes


def test_cells():
    cell = contest.measure(key())
    found = cell["contestants"]
    assert set(found) == {*verdicts.ALL, "auto"}
    traffic, topology, row_bytes = grids.problem(key())
    plan = make_plan(traffic, topology, scheduler="rails", row_bytes=row_bytes)
    assert found["rails"]["planning"] == plan.planning_time()
    expected = {
        name: simulate(plan, incast=name).completion_time
        for name in ("infiniband", "infiniband-literal", "none")
    }
    assert found["rails"]["completion"] == expected
    auto = make_plan(traffic, topology, row_bytes=row_bytes)
    assert found["auto"]["chosen"] == auto.scheduler
    seconds = simulate(auto, incast="none").completion_time
    assert found["auto"]["completion"]["none"] == seconds
    assert cell["lower_bound"] == plan.lower_bound()
    assert cell["bytes"] == traffic.sum() * row_bytes
    for name in found:
        assert verdicts.over_bound(cell, name, "none", planning=False) >= 1 - 1e-6


def test_optimal_takes_part_where_it_can():
    few, many = key(table="traffic", servers=2), key(table="traffic", servers=8)
    assert "optimal" in contest.names_of(few)
    assert "optimal" not in contest.names_of(many)
    assert {*contest.ABLATIONS} <= {*contest.names_of(key(table="ablations"))}
    solved = contest.measure(key(table="traffic", size=10**6))
    assert solved["contestants"]["optimal"]["planning"] is None


def test_memory_is_what_stage_tables_reserve():
    cell = contest.measure(key(table="memory"))
    traffic, topology, row_bytes = grids.problem(key())
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=row_bytes)
    inside = plan.transfers[np.isin(plan.transfers["phase"], (po.BALANCE, po.REDISTRIBUTE))]
    assert set(cell["contestants"]) == {*contest.STAGED, *contest.MADE}
    found = cell["contestants"]["fast"]
    assert found["staged"] == pytest.approx(inside["rows"].sum() / traffic.sum())
    joined = [plan.stage_table(device)[5] for device in range(16)]
    assert found["reserved"] == pytest.approx(sum(joined) / traffic.sum())
    assert found["reserved"] >= found["staged"]


def test_scale_is_predicted_and_simulated_where_that_can_be():
    cell = contest.measure(key(table="scale", size=10**8))
    traffic, topology, row_bytes = grids.problem(key(table="scale", size=10**8))
    plan = make_plan(traffic, topology, scheduler="fast", row_bytes=row_bytes)
    found = cell["contestants"]
    assert found["fast"]["predicted"] == plan.predicted_time()
    assert found["fast"]["simulated"] == simulate(plan, incast="infiniband").total_time
    assert found["spreadout"]["simulated"] is None
    game = contest.Game(traffic, topology, row_bytes)
    assert found["two-tier"]["simulated"] == game.enter("two-tier").play("infiniband")
    assert found["auto"]["planning"] == game.plan("auto").planning_time()


def test_overlapping_start_ups():
    cell = overlap.measure(key(table="overlap", size=33 * 10**6))
    traffic, topology, row_bytes = grids.problem(key(table="overlap", size=33 * 10**6))
    plans = [
        make_plan(traffic, topology, scheduler=name, row_bytes=row_bytes) for name in overlap.NAMES
    ]
    assert plans[0].lower_bound() == cell["lower_bound"]
    for way in ("credit", "window"):
        times = [simulate(p, synchronization=way, incast="infiniband") for p in plans]
        best = min(times, key=lambda timeline: timeline.completion_time)
        found = {"completion": best.completion_time, "scheduler": best.scheduler}
        assert cell["ways"][way] == found
    ways = {way: found["completion"] for way, found in cell["ways"].items()}
    assert cell["lower_bound"] <= ways["window, any cut"] <= ways["window"] < ways["credit"]
    two_tier = contest.Game(traffic, topology, row_bytes).enter("two-tier")
    assert cell["two-tier"] == two_tier.play("infiniband")


def made_up(times, **changes):
    """A cell in which contestants take so many times the bound, without planning."""
    entries = {
        name: {"planning": 0.0, "stages": 1, "inside": 0.5}
        | {"completion": dict.fromkeys(("infiniband", "infiniband-literal", "none"), time)}
        for name, time in times.items()
    }
    entries["auto"] |= {"chosen": "fast", "predicted": 1.0}
    return key(**changes) | {"lower_bound": 1.0, "bytes": 32 * 10**9, "contestants": entries}


GOOD = {"direct": 2.0, "spreadout": 3.0, "rails": 1.2, "as published": 1.3, "two-tier": 1.9}
GOOD |= {"pxn": 1.95, "relay": 1.8, "balanced": 1.1, "fast": 1.045, "auto": 1.05}


def test_targets():
    good = made_up(GOOD, table="servers")
    assert [verdict.met for verdict in verdicts.judge([good])] == [True] * 6
    for name, worse, wrong in (
        ("as published", 1.6, [True, False, True, True, True, True]),
        ("as published", 1.08, [True, False, True, True, True, True]),
        ("auto", 1.06, [False, True, True, True, True, False]),
        ("two-tier", 1.03, [True, True, False, False, False, True]),
        ("balanced", 1.03, [True, True, True, True, True, False]),
    ):
        cell = made_up(GOOD | {name: worse}, table="servers")
        assert [verdict.met for verdict in verdicts.judge([cell])] == wrong, name
    missed = verdicts.judge([good, made_up(GOOD | {"auto": 1.5}, table="servers")])[0]
    assert (len(missed.cells), [figure for _, figure in missed.missed]) == (2, [1.5])
    # Planning counts.
    slow = made_up(GOOD, table="servers")
    slow["contestants"]["auto"]["planning"] = 0.1
    assert not verdicts.judge([slow])[0].met
    assert [len(verdict.cells) for verdict in verdicts.judge([made_up(GOOD)])] == [1] * 4
    assert not any(verdict.met for verdict in verdicts.judge([]))


def test_an_exchange_counts_once():
    """However many tables it is in; of a kind of exchange, each seed is one."""
    same = [made_up(GOOD, table=table) for table in ("size", "traffic", "planner")]
    seeds = [made_up(GOOD | {"two-tier": 1.0}, seed=seed) for seed in (1, 2)]
    verdict = verdicts.judge([*same, *seeds])[0]
    assert (len(verdict.cells), verdict.kinds) == (3, 1)
    assert (len(verdict.missed), verdict.kinds_missed) == (2, 1)
    other = made_up(GOOD, servers=3)
    assert verdicts.judge([*same, other])[0].kinds == 2


def test_where_nothing_is_gained():
    """Kinds with a seed that gains little, each with all its seeds; the worst come first."""
    level = [made_up(GOOD | {"two-tier": time}, seed=s) for s, time in enumerate((1.15, 1.055))]
    behind = made_up(GOOD | {"pxn": 0.9}, servers=3)
    found = verdicts.little_gained([made_up(GOOD, servers=4), *level, behind])
    kinds = [(kind[1], [(round(gain, 3), who) for gain, who in gains]) for kind, gains in found]
    assert kinds == [
        (3, [(-0.143, "pxn")]),
        (2, [(0.005, "two-tier"), (0.095, "two-tier")]),
    ]
    shown = report._nothing_gained([made_up(GOOD, servers=4), *level, behind])[1].splitlines()
    assert shown[2] == "| h200 | 3 x 8 | pair-zipf 0.8 | 4 | pxn | -14.3% | -14.3% |"
    assert shown[3] == "| h200 | 2 x 8 | pair-zipf 0.8 | 4 | two-tier | 0.5% | 9.5% |"


def test_claims():
    claim = published.CLAIMS[1]
    cells = [
        made_up(GOOD | {"direct": 1.3 * ratio}, servers=4, size=100 * 10**6, seed=seed)
        for seed, ratio in enumerate((1.1, 1.25, 1.4))
    ]
    line = tables.claims(cells).splitlines()[2]
    assert "FAST ÷ NCCL | 1.2 to 1.3 | 1.10 to 1.40 |" in line
    assert "Nothing: our median is inside the published range." in line
    outside = tables.agreement([2.0], claim)
    assert outside.startswith("Our median, 2.00, is above the published range. Shares by rank")
    assert tables.agreement([1.0], claim).startswith("Our median, 1.00, is below")


def test_published_stages_pay():
    cells = [
        made_up(GOOD | {"as published": slow, "fast": fast}, size=size)
        for size, slow, fast in ((1, 2.0, 2.0), (10**6, 1.1, 2.0), (2 * 10**6, 1.3, 1.1))
    ]
    never, later = tables.staging_pays(cells).split("; ")
    assert never == "`as published` does not beat `rails` for good at any size"
    assert later == "`fast` beats `rails` from 2 MB on."


SMALL = {
    "size": {"presets": ("h200",), "servers": (2,), "workloads": (grids.ZIPF, grids.DRAWS)},
    "skew": {"servers": (2,), "workloads": ("pair-zipf 0.1", "zipf draws 0.8")},
    "mild": {"presets": ("h200",), "servers": (2,), "workloads": ("trained",), "sizes": (10**6,)},
    "servers": {"presets": ("h200",), "servers": (2, 3), "sizes": (10**9,)},
    "ablations": {"presets": ("mi300x",), "servers": (2,)},
    "overlap": {"presets": ("h200",), "servers": (2,), "sizes": (10**6,)},
    "planner": {"presets": ("planner",), "servers": (2,), "workloads": ("single flow",)},
    "memory": {"presets": ("h200",), "servers": (2,)},
    "scale": {"presets": ("h200",), "servers": (3,)},
    "traffic": {"presets": ("h200",), "servers": (2,), "workloads": ("balanced", "random")},
}


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(grids, "TABLES", SMALL)
    path = tmp_path / "results" / "paper.json"
    arguments = ["--seeds", "1", "--json", str(path), "--figures", str(path.parent)]
    status = program.main(arguments)
    shown = capsys.readouterr()
    assert "16 of 16: traffic h200 2 random 250000000 0" in shown.err
    record = json.loads(path.read_text())
    assert status == (0 if all(v.met for v in verdicts.judge(record["cells"])) else 1)
    assert {cell["table"] for cell in record["cells"]} == set(SMALL)
    assert report.page(record, "FAST's tables, made anew") == shown.out.removesuffix("\n")
    assert to_markdown.PAGES[record["schema"]](record, "paper").startswith("# paper\n")
    for head in report.SECTIONS:
        assert "nothing is gained" in head or f"## {head}\n" in shown.out
    for name in figures.PICTURES:
        assert (path.parent / name).read_bytes().startswith(b"\x89PNG")
        assert f"]({name})" in shown.out
    assert not path.with_name("paper.json.part").exists()


def test_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(grids, "TABLES", {"servers": SMALL["servers"]})
    path, measured = tmp_path / "paper.json", []

    def stop_at_second(one):
        if len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(one)
        return made_up(GOOD, **one)

    arguments = ["--tables", "servers", "--seeds", "1", "--json", str(path)]
    monkeypatch.setattr(contest, "measure", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        program.main(arguments)
    monkeypatch.setattr(contest, "measure", lambda one: made_up(GOOD | {"auto": 9.0}, **one))
    assert program.main(arguments) == 1
    assert "servers h200 3" in capsys.readouterr().err
    cells = json.loads(path.read_text())["cells"]
    assert [cell["contestants"]["auto"]["completion"]["none"] for cell in cells] == [1.05, 9.0]


def test_status_is_0_where_all_targets_are_met(monkeypatch, capsys):
    monkeypatch.setattr(grids, "TABLES", {"servers": SMALL["servers"]})
    monkeypatch.setattr(contest, "measure", lambda one: made_up(GOOD, **one))
    assert program.main(["--tables", "servers"]) == 0
    assert "| yes |" in capsys.readouterr().out


def test_refuses(capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["--seeds", "0"])
    assert "--seeds must be 1 or more, got 0." in capsys.readouterr().err
