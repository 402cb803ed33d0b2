"""The command line: what an exchange would cost."""

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import PLAIN, run_command, says_what_is_wrong, simulated_exchange

import fastjax
from fastjax import Topology, cli, make_plan, traffic
from fastjax.cli.simulate import exchange
from fastjax.simulation import PRESETS, Timeline
from fastjax.traffic import write_matrix

run = functools.partial(run_command, command="simulate")
ROOT = Path(__file__).parents[3]


def test_one_flow_done_by_hand(tmp_path):
    """1000 rows of 1000 bytes over a NIC of 1e8 bytes/s take 10 ms."""
    matrix = np.zeros((2, 2), int)
    matrix[0, 1] = 1000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=1000)
    found = simulated_exchange(tmp_path / "matrix", "--servers 2 --schedulers direct", PLAIN)
    (cost,) = found.each
    planning = cost.plan.planning_time()
    assert cost.timeline.completion_time == pytest.approx(10e-3)
    assert cost.timeline.lower_bound == pytest.approx(10e-3)
    assert cost.seconds == pytest.approx(10e-3 + planning)
    assert exchange.limits(cost.timeline)["busy"] == pytest.approx(10e-3)
    assert found.today == pytest.approx(10e-3)


def test_rates_in_place_of_the_preset_s():
    found = simulated_exchange(
        "--generate expert-popularity --devices 8 --rows 900 --preset mi300x --servers 4",
        "--scale-out-bandwidth 2e9 --scale-out-latency 0.001 --incast infiniband",
        "--synchronization barrier --oversubscription 2 --schedulers spreadout",
    )
    rates = PRESETS["mi300x"].rates | {"scale_out_bandwidth": 2e9, "scale_out_latency": 1e-3}
    matrix = traffic.expert_popularity(8, 900)
    plan = make_plan(matrix, Topology(4, 2, **rates), scheduler="spreadout", row_bytes=4096)
    timeline = fastjax.simulate(
        plan, synchronization="barrier", incast="infiniband", oversubscription=2
    )
    (cost,) = found.each
    assert cost.plan.topology == plan.topology
    assert cost.timeline.fabric == timeline.fabric
    assert cost.timeline.completion_time == timeline.completion_time


def test_incast_by_hand(tmp_path):
    """32 devices send to one at once, which gets 60 % of its NIC's rate until they end together."""
    matrix = np.zeros((33, 33), int)
    matrix[:32, 32] = 1000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=1000)
    options = "--servers 33 --schedulers direct --incast roce"
    found = simulated_exchange(tmp_path / "matrix", options, PLAIN)
    (cost,) = found.each
    bytes_at_rate = 32e6 / 1e8
    assert cost.timeline.completion_time == pytest.approx(bytes_at_rate / 0.6)


def test_a_narrow_core_by_hand():
    """Each NIC sends 500 rows, 5 ms at its rate, and the core carries an eighth of them all."""
    arguments = "--generate uniform --devices 4 --rows 1000 --servers 2 --schedulers direct"
    found = simulated_exchange(arguments, PLAIN, "--oversubscription 8")
    (cost,) = found.each
    limits = exchange.limits(cost.timeline)
    assert limits["core"] == pytest.approx(40e-3)
    assert cost.timeline.completion_time == pytest.approx(40e-3)
    assert sum(limits.values()) == pytest.approx(cost.seconds)


def test_failed_nics():
    arguments = "--generate uniform --devices 8 --rows 800 --servers 2 --oversubscription 3"
    found = simulated_exchange(arguments, "--failed-nics 1 6", PLAIN)
    assert found.today is None
    tried = {cost.asked for cost in found.each}
    assert tried >= {"fast", "rails", "auto"}
    assert not tried & {"spreadout", "direct", "optimal"}
    # 1600 rows leave each server, and six NICs of 1e5 rows/s share a third of their rate.
    assert exchange.limits(found.each[0].timeline)["core"] == pytest.approx(3200 / 2e5)


def test_the_picture_is_of_the_best(capsys, monkeypatch, tmp_path):
    drawn, plot = [], Timeline.plot
    monkeypatch.setattr(Timeline, "plot", lambda self: drawn.append(self) or plot(self))
    picture = tmp_path / "new/a.svg"
    matrix = np.zeros((4, 4), int)
    matrix[0, 3] = 4000
    write_matrix(tmp_path / "matrix", matrix, row_bytes=4096)
    arguments = (tmp_path / "matrix", "--row-bytes 4096 --servers 2 --schedulers direct rails")
    run(capsys, *arguments, "--draw", picture)
    direct, rails = simulated_exchange(*arguments).each
    assert "<svg" in picture.read_text()
    (timeline,) = drawn
    assert timeline.scheduler == "rails"
    assert timeline.completion_time == rails.timeline.completion_time
    assert rails.seconds < 0.7 * direct.seconds


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--generate uniform --devices 2 --rows 0 --servers 2", "There is nothing to move."),
        ("--generate uniform --devices 2 --rows 100000 --servers 2", "Planning gains nothing.*"),
        ("--generate uniform --devices 4 --servers 2 --failed-nics 1", "direct, .* cannot go.*"),
        (
            "--generate pair-zipf --devices 32 --rows 400000 --servers 4",
            r"direct, as NCCL .* takes .*, 2\.\d\d x as long\.",
        ),
    ],
)
def test_verdicts(capsys, arguments, said):
    """Each of the sentences that depend on what is found."""
    *_, last = run(capsys, arguments, "--schedulers fast auto").splitlines()
    assert re.fullmatch(said, last), last


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--devices 4 --servers 1", r"the busiest link \(1\.\d\d x the bound\) \d\d%"),
        (
            (f"--devices 2 --rows 1 --servers 2 --scale-out-bandwidth 2e18 --row-bytes {2**39} "
            "--scale-out-latency 1"),
            "before the NICs 100%",
        ),
    ],
)  # fmt: skip
def test_what_limits_it(arguments, said):
    found = simulated_exchange("--generate uniform --schedulers direct auto", arguments)
    assert re.fullmatch(said, exchange.limited_by(found.best.timeline))
    assert found.best.asked == "direct"  # which auto only takes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("FILE --preset h200", "4 devices are no whole number of servers of 8; give --servers"),
        ("FILE --servers 2 --oversubscription 0.5", "oversubscription must be a number from 1 to"),
        ("FILE --servers 2 --oversubscription inf", "oversubscription must be a number from 1 to"),
        ("FILE --servers 2 --scale-out-bandwidth 400", "scale_out_bandwidth is 400 bytes/s, which"),
        ("FILE --servers 2 --incast-loss 2", "incast_loss must be from 0 to 1"),
        ("FILE --servers 2 --failed-nics 0 --schedulers direct", "that of device 0 has failed"),
        ("FILE --servers 2 --draw FILE/a.png", "File exists"),
        ("FILE --servers 2 --draw a.doc", r"a\.doc: "),
    ],
)
def test_what_is_wrong_is_said(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "matrix").write_text("10 20 30 40\n" * 4)
    given = arguments.replace("FILE", "matrix")
    says_what_is_wrong(capsys, "simulate", *given.split(), told=message)


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --rows 40 --servers 2 --schedulers"
    assert cli.main([*arguments.split(), "fast", "direct"]) == 0
    *drawn, last = capsys.readouterr().err.split("\r")
    shares = [int(share) for share in re.findall(r"(\d+)%", " ".join(drawn))]
    assert shares == sorted(shares)
    assert shares[:2] == [0, 50]
    assert any(line.rstrip().endswith("50% direct") for line in drawn)
    assert last == drawn[-1].strip() == ""


def test_the_bar_goes_before_an_error(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    arguments = "simulate --generate uniform --devices 4 --servers 2 --failed-nics 0 --schedulers"
    assert cli.main([*arguments.split(), "direct"]) == 2
    assert re.search(r"\r +\rscheduler 'direct' sends rows", capsys.readouterr().err)


@pytest.mark.parametrize(("page", "count"), [("simulate", 2), ("balance_experts", 1)])
def test_the_guide_shows_what_is_printed(capsys, monkeypatch, page, count):
    monkeypatch.chdir(ROOT)
    guide = Path(f"docs/how_to/{page}.md").read_text()
    examples = re.findall(
        r"^    \$ python -m fastjax simulate ((?:.*\\\n)*.*)\n((?:    .*\n|\n)+)",
        guide,
        re.MULTILINE,
    )
    assert len(examples) == count
    for command, shown in examples:
        lines = run(capsys, command.replace("\\\n", "")).splitlines()
        printed = "".join(f"    {line}".rstrip() + "\n" for line in lines)
        # Three dots stand for what is left out.
        parts = map(re.escape, (shown.rstrip() + "\n").split("    ...\n"))
        assert re.fullmatch("(?s:.*)".join(parts), printed.rstrip() + "\n")
